package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// acknowledging is a sink that takes everything at once.
type acknowledging struct{}

func (acknowledging) Publish(context.Context, *outbox.Event) error { return nil }
func (acknowledging) Close() error                                 { return nil }

// newForgetful starts replicas that keep executions for a while after their end. Their events are
// published, and kept as long: so every invariant holds of what is there.
func newForgetful(t *testing.T, replicas int, keep time.Duration) *world {
	t.Helper()
	return newWorld(t, func(c *Config) {
		c.Replicas, c.Retention.Executions = replicas, keep
		c.Publisher = func() (outbox.Publisher, error) { return acknowledging{}, nil }
	})
}

// gone waits until an execution was removed.
func (w *world) gone(id string) {
	w.t.Helper()
	err := Await(w.ctx, patient, "gone", func(ctx context.Context) (bool, error) {
		_, err := w.Client(1).Get(ctx, id)
		if status.Code(err) == codes.NotFound {
			refused(w.t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
			return true, nil
		}
		return false, err
	})
	if err != nil {
		w.t.Fatalf("execution %s: %v", id, err)
	}
}

// TestB53_RetentionKeepsWholeRuns: while a step waits for its time, its execution stays as it is,
// with the result of the parent, however often retention has been there; others go. Broken once:
// a purge that does not look whether an execution has ended.
func TestB53_RetentionKeepsWholeRuns(t *testing.T) {
	t.Parallel()
	w := newForgetful(t, 2, time.Duration(count(t, 1, 5))*time.Second)
	h := w.worker(0, 5)
	delayed := step("b", "a")
	delayed.StartDelay = durationpb.New(time.Duration(count(t, 8, 60)) * time.Second)
	id := w.enqueue(graph(step("a"), delayed))
	first := h.one(long)
	h.report(first, Succeeded(JSON(`{"result": 42}`)))
	for range 3 { // each of these goes by a look of retention that came after the one before
		other := w.enqueue(graph(step("a")))
		h.succeed(h.one(long))
		w.gone(other)
	}
	e := w.get(id)
	want(t, "steps", len(e.GetSteps()), 2)
	want(t, "a", find(t, e, "a").GetState(), stepSucceeded)
	want(t, "output of a", find(t, e, "a").GetOutput().GetJson(), `{"result": 42}`)
	l := h.one(long)
	want(t, "leased", l.GetStepName(), "b")
	want(t, "parent's output", l.GetParentOutputs()["a"].GetJson(), `{"result": 42}`)
	h.succeed(l)
	w.gone(id)
	_, err := h.Report(w.ctx, first, Succeeded(JSON(`{"result": 42}`)))
	refused(t, err, codes.NotFound, "ATTEMPT_NOT_FOUND")
	_, err = h.Renew(w.ctx, first, long)
	refused(t, err, codes.NotFound, "ATTEMPT_NOT_FOUND")
	_, err = w.Client(0).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
	_, err = w.Client(0).Executions.ListTimeline(w.ctx, &leaseholdv1.ListTimelineRequest{ExecutionId: id})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
}

// TestB58_APurgedKeyIsFree, alike on single and batch calls, also for other content.
func TestB58_APurgedKeyIsFree(t *testing.T) {
	t.Parallel()
	w := newForgetful(t, 2, time.Second)
	h := w.worker(0, 5)
	request := graph(step("a"))
	request.IdempotencyKey = "k"
	seen := map[string]bool{}
	for round := range 3 {
		i := 4*round + 3*(round%2) // single, batch (each fourth), single
		id, created := w.enqueueAs(i, request)
		if !created || seen[id] {
			t.Errorf("round %d: created %v, a new id %v", round, created, !seen[id])
		}
		seen[id] = true
		h.fail(h.one(long)) // it is tried again
		h.succeed(h.one(long))
		w.gone(id)
		request.Labels = map[string]string{"round": fmt.Sprint(round)}
	}
}

// TestRetention_WaitsForEvents: an execution whose event the sink refuses stays, until an
// operator skips that event; those beside it go.
func TestRetention_WaitsForEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) {
		c.Replicas, c.Retention = 2, scheduler.Retention{Executions: time.Second}
		c.Publisher = func() (outbox.Publisher, error) { return picky{}, nil }
	})
	h := w.worker(0, 5)
	bad := graph(step("a"))
	bad.Name = "poison"
	stays := w.enqueue(bad)
	h.succeed(h.one(long))
	for range 2 {
		other := w.enqueue(graph(step("a")))
		h.succeed(h.one(long))
		w.gone(other)
	}
	want(t, "the one with a dead event", w.get(stays).GetState(), succeeded)
	answer, err := w.Client(0).Operators.SkipOutboxEvents(w.ctx, &leaseholdv1.SkipOutboxEventsRequest{Status: eventDead, Reason: "test"})
	if err != nil || answer.GetCount() != 1 {
		t.Fatalf("skip: %v, %v", answer, err)
	}
	w.gone(stays)
}

// picky refuses the first event of poisoned executions.
type picky struct{ acknowledging }

func (picky) Publish(_ context.Context, e *outbox.Event) error {
	if e.Sequence == 1 && strings.Contains(string(e.Data), `"poison"`) {
		return &outbox.RefusedError{Cause: errors.New("it is picky")}
	}
	return nil
}

// TestB92_NoDeadlocksWithRetention: reports, retries, cancels in random order, the sweep and
// retention at once, through three replicas: nobody hears of a deadlock or of a serialization
// failure, and PostgreSQL has seen none. What is removed meanwhile is removed whole, and nothing
// else. Broken once: a purge that leaves payloads behind, and one that takes what is live.
func TestB92_NoDeadlocksWithRetention(t *testing.T) {
	t.Parallel()
	w := newForgetful(t, 3, time.Second)
	executions, steps := count(t, 24, 200), count(t, 10, 20)
	ids := w.enqueueMany(executions, func(int) *leaseholdv1.EnqueueExecutionRequest { return layered(steps) })
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	var wg sync.WaitGroup
	var reported, canceled atomic.Int64
	began := time.Now()
	left := func() int { return len(w.rows(`SELECT id::text FROM executions WHERE id = ANY($1::uuid[])`, ids)) }
	wg.Go(func() { // for a while, and until enough has happened
		defer stop()
		sleepFor(ctx, time.Duration(count(t, 8, 120))*time.Second)
		for time.Since(began) < patient && (reported.Load() < 100 || left() > executions/2) {
			sleepFor(ctx, time.Second)
		}
	})
	for i := range 4 {
		wg.Go(func() { w.reportAtRandom(ctx, w.worker(i, 20), &reported) })
	}
	wg.Go(func() { w.cancelAtRandom(ctx, ids, &canceled) })
	wg.Go(func() { // what is removed is made up for
		for ctx.Err() == nil {
			w.enqueueMany(5, func(int) *leaseholdv1.EnqueueExecutionRequest { return layered(steps) })
			sleepFor(ctx, 200*time.Millisecond)
		}
	})
	wg.Wait()
	for code, n := range w.Watch.Codes() {
		if code != codes.OK && code != codes.NotFound && code != codes.FailedPrecondition {
			t.Errorf("%d calls were answered %s", n, code)
		}
	}
	t.Logf("%d reports, %d cancels, %d of the first %d executions were removed", reported.Load(), canceled.Load(), executions-left(), executions)
	if left() > executions/2 || reported.Load() < 100 {
		t.Errorf("%d of %d executions are left after %d reports: this tries little", left(), executions, reported.Load())
	}
	w.endAll()
	want(t, "deadlocks", w.rows(`SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()`)[0], "0")
}

// layered is a graph of steps each of which waits for some of those before it; some are short
// of time.
func layered(n int) *leaseholdv1.EnqueueExecutionRequest {
	steps := make([]*leaseholdv1.StepSpec, n)
	for i := range steps {
		steps[i] = step(fmt.Sprint("s", i))
		for p := max(0, i-4); p < i; p++ {
			if rand.IntN(4) == 0 {
				steps[i].DependsOn = append(steps[i].DependsOn, fmt.Sprint("s", p))
			}
		}
		steps[i].RetryPolicy = retries(3, 20*time.Millisecond)
	}
	e := graph(steps...)
	e.FailFast, e.CancelGrace = rand.IntN(3) == 0, durationpb.New(200*time.Millisecond)
	if rand.IntN(4) == 0 {
		e.Timeout = durationpb.New(2 * time.Second)
	}
	return e
}

// reportAtRandom leases and reports, or lets leases lapse, through all replicas.
func (w *world) reportAtRandom(ctx context.Context, h *hand, reported *atomic.Int64) {
	for ctx.Err() == nil {
		leases := h.poll(Poll{Max: 20, Wait: 200 * time.Millisecond, TTL: time.Second}).GetLeases()
		each(leases, func(i int, l *leaseholdv1.Lease) {
			r := Succeeded(JSON(`1`))
			switch rand.IntN(10) {
			case 0:
				return // it lapses
			case 1, 2:
				r = broken()
			}
			if _, err := h.at(i).Report(w.ctx, l, r); err == nil {
				reported.Add(1)
			}
		})
	}
}

// cancelAtRandom cancels executions in random order, through all replicas.
func (w *world) cancelAtRandom(ctx context.Context, ids []string, canceled *atomic.Int64) {
	for i := 0; ctx.Err() == nil; i++ {
		id := ids[rand.IntN(len(ids))]
		if rand.IntN(3) > 0 { // those that came later too
			if young := w.rows(`SELECT id::text FROM executions WHERE outcome IS NULL ORDER BY random() LIMIT 1`); len(young) > 0 {
				id = young[0]
			}
		}
		if _, err := w.Client(i).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id}); err == nil {
			canceled.Add(1)
		}
		sleepFor(ctx, 40*time.Millisecond)
	}
}

// endAll cancels what is open, so that the world comes to rest.
func (w *world) endAll() {
	w.t.Helper()
	each(w.rows(`SELECT id::text FROM executions WHERE outcome IS NULL`), func(i int, id string) {
		_, err := w.Client(i).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
		if c := status.Code(err); c != codes.OK && c != codes.NotFound && c != codes.FailedPrecondition {
			w.t.Errorf("cancel: %v", err)
		}
	})
	err := Await(w.ctx, patient, "all ended", func(context.Context) (bool, error) {
		return len(w.rows(`SELECT id::text FROM executions WHERE outcome IS NULL`)) == 0, nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// sleepFor waits, until the context ends at most.
func sleepFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
