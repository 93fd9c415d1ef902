package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const unavailable = codes.Unavailable

// TestWatch_EveryChangeUntilTheEnd: whoever makes a change, through whichever replica, those that
// watch at all replicas are told, each change once and in order, until the execution has ended.
func TestWatch_EveryChangeUntilTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wide := graph(step("root"), step("bad", "root"), step("after bad", "bad"), step("lost", "root"), step("end", "lost"))
	wide.Steps[1].RetryPolicy, wide.Steps[3].RetryPolicy = retries(2, time.Millisecond), retries(5, time.Millisecond)
	for name, tt := range map[string]struct {
		request *leaseholdv1.EnqueueExecutionRequest
		run     func(h *hand, id string)
		end     leaseholdv1.ExecutionState
	}{
		"retries, a lost lease and skipped steps": {delayed(wide, 300*time.Millisecond), func(h *hand, _ string) {
			h.succeed(h.one(long))
			silent := true
			for range 5 { // bad twice, lost twice, end
				l := h.one(time.Second)
				switch {
				case l.GetStepName() == "bad":
					h.at(rand.IntN(3)).fail(l)
				case l.GetStepName() == "lost" && silent:
					silent = false
				default:
					h.at(rand.IntN(3)).succeed(l)
				}
			}
		}, leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED},
		"a cancel": {graph(step("a"), step("b", "a"), step("c")), func(h *hand, id string) {
			leases := h.take(2, long)
			h.w.cancel(2, id)
			h.at(1).report(leases[0], Canceled())
			h.at(2).succeed(leases[1])
		}, canceled},
		"success": {graph(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c")), func(h *hand, _ string) {
			h.finish(4)
		}, succeeded},
	} {
		t.Run(name, func(t *testing.T) {
			tt.request.Namespace = "ns-" + uuid.NewString()[:8]
			id := w.enqueue(tt.request)
			var stories []*story
			var ends []<-chan error
			for replica := range 3 {
				for _, after := range []int64{0, 1} {
					s := w.story(id, after)
					stories, ends = append(stories, s), append(ends, s.begin(w.ctx, replica))
				}
			}
			for _, s := range stories {
				s.awaitTold(1)
			}
			tt.run(w.register(0, &leaseholdv1.RegisterWorkerRequest{Namespace: tt.request.Namespace, Capabilities: []string{"work"}, Slots: 10}), id)
			for i, s := range stories {
				s.finished(fmt.Sprint("watch ", i), <-ends[i])
				want(t, "state", s.state, tt.end)
				want(t, "snapshots", s.snapshots, 1-i%2)
			}
		})
	}
}

// TestWatch_BeginsAnywhere: after each revision the rest is told, at the end nothing, beyond it a
// snapshot; what does not exist is refused.
func TestWatch_BeginsAnywhere(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("a"), step("b", "a")))
	w.worker(0, 1).finish(2)
	w.awaitState(id, succeeded)
	last := int64(len(w.timeline(id)))
	for after := range last + 3 {
		s := w.story(id, after)
		s.finished(fmt.Sprint("after ", after), s.listen(w.ctx, int(after)))
		entries, snapshots := last-after, 0
		if after == 0 || after > last {
			entries, snapshots = 0, 1
		}
		want(t, fmt.Sprint("entries after ", after), int64(len(s.entries)), entries)
		want(t, fmt.Sprint("snapshots after ", after), s.snapshots, snapshots)
	}
	refused(t, w.story(uuid.NewString(), 0).listen(w.ctx, 0), codes.NotFound, "EXECUTION_NOT_FOUND")
	refused(t, w.story(uuid.NewString(), 5).listen(w.ctx, 1), codes.NotFound, "EXECUTION_NOT_FOUND")
	refused(t, w.story("no id", 0).listen(w.ctx, 1), codes.InvalidArgument, "INVALID_FIELD")
	refused(t, w.story(id, -1).listen(w.ctx, 1), codes.InvalidArgument, "INVALID_FIELD")
}

// TestWatch_GoesOnAtAnotherReplica: a replica that is stopped tells from where to go on; of one
// that is cut off the last message tells. Nothing is told twice or missed by that.
func TestWatch_GoesOnAtAnotherReplica(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Replica){"stopped": (*Replica).Stop, "cut off": (*Replica).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.enqueue(graph(step("a"), step("b", "a"), step("c", "b"), step("d", "c")))
			h := w.worker(0, 1)
			s := w.story(id, 0)
			over := s.begin(w.ctx, 2)
			h.succeed(h.one(long))
			s.awaitTold(3)
			l := h.one(long)
			began := time.Now()
			end(w.Replica(2))
			err := <-over
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the stream ended only after %s", took)
			}
			if name == "stopped" {
				s.resumable(name, err)
			} else {
				want(t, name, status.Code(err), codes.Unavailable)
			}
			h.succeed(l) // while nobody watches
			over = s.begin(w.ctx, 1)
			h.succeed(h.one(long))
			h.succeed(h.one(long))
			s.finished(name, <-over)
			want(t, "snapshots", s.snapshots, 1)
		})
	}
}

// TestWatch_ConnectionAge: streams end before gRPC cuts their connections, and go on from there
// as long as the execution lives.
func TestWatch_ConnectionAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Replicas, c.ConnectionAge = 1, time.Second })
	id := w.enqueue(graph(step("a"), step("b", "a")))
	h := w.worker(0, 1)
	s := w.story(id, 0)
	ends := 0
	steps := &errgroup.Group{}
	for {
		err := s.listen(w.ctx, 0)
		if err == nil {
			break
		}
		s.resumable("old", err)
		if ends++; ends == 4 || ends == 8 {
			steps.Go(func() error { h.finish(1); return nil })
		}
	}
	_ = steps.Wait()
	s.finished("over many connections", nil)
	if ends < 8 {
		t.Errorf("only %d streams ended before the execution", ends)
	}
}

// TestWatch_Limit of streams, and that one which has ended leaves its place at once.
func TestWatch_Limit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Replicas, c.MaxStreams = 1, 3 })
	id := w.enqueue(graph(step("a")))
	var leave []context.CancelFunc
	var ends []<-chan error
	open := func() {
		ctx, cancel := context.WithCancel(w.ctx)
		s := w.story(id, 0)
		leave, ends = append(leave, cancel), append(ends, s.begin(ctx, 0))
		s.awaitTold(1)
	}
	for range 3 {
		open()
	}
	err := w.story(id, 0).listen(w.ctx, 0)
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_STREAMS")
	want(t, "limit", Info(err).GetMetadata()["limit"], "3")
	quota, retry := false, false
	for _, d := range status.Convert(err).Details() {
		switch d.(type) {
		case *errdetails.QuotaFailure:
			quota = true
		case *errdetails.RetryInfo:
			retry = true
		}
	}
	want(t, "QuotaFailure and RetryInfo", quota && retry, true)
	leave[0]()
	want(t, "one that leaves", status.Code(<-ends[0]), codes.Canceled)
	err = Await(w.ctx, patient, "room again", func(context.Context) (bool, error) { return w.Replica(0).service.Watchers() == 2, nil })
	want(t, "after one left", err, nil)
	open()
	w.worker(0, 1).finish(1)
	for _, end := range ends[1:] {
		want(t, "the others", <-end, nil)
	}
	err = Await(w.ctx, patient, "nobody watches", func(context.Context) (bool, error) { return w.Replica(0).service.Watchers() == 0, nil })
	want(t, "at the end", err, nil)
}

// TestWatch_ManySteps: a snapshot of many steps comes in several messages, also while they move.
func TestWatch_ManySteps(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	const n = 1205
	steps := []*leaseholdv1.StepSpec{step("root")}
	for i := range n - 1 {
		steps = append(steps, step(fmt.Sprint("s", i), "root"))
	}
	id := w.enqueue(graph(steps...))
	still := w.story(id, 0)
	over := still.begin(w.ctx, 0)
	still.awaitTold(1)
	want(t, "steps", len(still.steps), n)
	if still.messages < 2 {
		t.Errorf("%d messages", still.messages)
	}
	h := w.worker(1, 100)
	h.succeed(h.one(long))
	others := []*story{still}
	ends := []<-chan error{over}
	for range 3 {
		s := w.story(id, 0) // begins while they move
		others, ends = append(others, s), append(ends, s.begin(w.ctx, len(ends)))
		h.succeedAll(h.take(100, long))
	}
	w.cancel(1, id) // and the rest at once
	for i, s := range others {
		s.finished(fmt.Sprint("watch ", i), <-ends[i])
		want(t, "steps told of", len(s.steps), len(steps))
	}
}

// TestWatch_Crowd: a thousand that watch at one replica hold no connection, all are told, and
// calls besides are answered.
func TestWatch_Crowd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Replicas, c.MaxConns = 2, 4 })
	crowd := count(t, 200, 500)
	one := w.enqueue(graph(step("a"), step("b", "a"), step("c", "b")))
	others := w.enqueueMany(crowd, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a"), step("b", "a")) })
	var stories []*story
	var ends []<-chan error
	for i := range 2 * crowd {
		id := one
		if i >= crowd {
			id = others[i-crowd]
		}
		s := w.story(id, int64(i%2))
		stories, ends = append(stories, s), append(ends, s.begin(w.ctx, 0))
		if i%50 == 49 { // not all at the same instant
			for _, s := range stories[i-49:] {
				s.awaitTold(1)
			}
		}
	}
	// Of four connections an eighth is in use at most, as soon as all have begun to wait.
	err := Await(w.ctx, patient, "watches that hold no connection", func(context.Context) (bool, error) {
		busy := 0
		for range 100 {
			busy += int(w.Replica(0).Store.PoolStat().AcquiredConns())
			time.Sleep(5 * time.Millisecond)
		}
		return busy <= 50, nil
	})
	want(t, "idle", err, nil)
	want(t, "watches", w.Replica(0).service.Watchers(), 2*crowd)
	h := w.worker(1, 50)
	work := &errgroup.Group{}
	work.Go(func() error { h.finish(crowd + 3); h.finish(crowd); return nil })
	slowest := time.Duration(0)
	for _, id := range others[:100] { // besides
		began := time.Now()
		ctx, cancel := context.WithTimeout(w.ctx, patient)
		if _, err := w.Client(0).Executions.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: id}); err != nil {
			t.Errorf("a call besides: %v", err)
		}
		cancel()
		slowest = max(slowest, time.Since(began))
	}
	_ = work.Wait()
	done := time.Now()
	for i, s := range stories {
		if err := <-ends[i]; err != nil || s.told() != int64(2+2*(2+b2i(i < crowd))) {
			t.Errorf("watch %d ended with %v at %d", i, err, s.told())
		}
	}
	t.Logf("calls besides took at most %s; the last one was told %s after the last report", slowest, time.Since(done))
	if slowest > 10*time.Second {
		t.Errorf("calls besides took %s", slowest)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestWatch_SlowClient: one that does not read holds up nobody, and is told everything once it reads.
func TestWatch_SlowClient(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	const n = 150
	steps := make([]*leaseholdv1.StepSpec, n)
	for i := range steps {
		steps[i] = step(fmt.Sprint("s", i))
		steps[i].RetryPolicy = retries(1, time.Millisecond)
	}
	id := w.enqueue(graph(steps...))
	slow, err := w.Client(0).Executions.WatchExecution(w.ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: id, AfterRevision: 1})
	if err != nil {
		t.Fatal(err)
	}
	quick := w.story(id, 1)
	over := quick.begin(w.ctx, 0)
	h := w.worker(1, n)
	large := Failed(&leaseholdv1.Failure{Type: "LARGE", Message: string(make([]byte, 8000))}) // NUL becomes longer
	each(h.take(n, long), func(i int, l *leaseholdv1.Lease) {
		h.at(i).report(l, &leaseholdv1.ReportAttemptRequest{Outcome: large.Outcome})
	})
	quick.finished("the quick one", <-over)
	want(t, "the slow one is still at it", w.Replica(0).service.Watchers(), 1)
	late := w.story(id, 1)
	for {
		m, err := slow.Recv()
		if err != nil {
			break
		}
		late.hear(m)
	}
	late.finished("the slow one", nil)
}

// delayed lets an execution start after a pause.
func delayed(r *leaseholdv1.EnqueueExecutionRequest, d time.Duration) *leaseholdv1.EnqueueExecutionRequest {
	r.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(d)}
	return r
}
