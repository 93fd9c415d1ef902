package drill

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB95_OnlyPostgresClockCounts: it is a minute ahead of all replicas and workers, or behind.
// Nobody loses a lease that is renewed, nothing starts early, and what is not renewed is over
// after its time. Broken once: a dispatch that takes the replica's time for the lease's.
func TestB95_OnlyPostgresClockCounts(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"ahead": time.Minute, "behind": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) { setClock(t, c.URL, ahead) })
			w.startsWhenDue(count(t, 20, 100), time.Duration(count(t, 2, 20))*time.Second)
			inTime(t, time.Duration(count(t, 3, 10))*time.Second, w.keepsByRenewing)
		})
	}
}

func setClock(t *testing.T, url string, ahead time.Duration) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := MakeClock(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := SetClock(t.Context(), conn, ahead); err != nil {
		t.Fatal(err)
	}
}

// late is more than a slow machine needs, and less than the clock is off.
const late = 30 * time.Second

// startsWhenDue has steps wait that are delayed: they come after that, and not much later.
func (w *world) startsWhenDue(n int, delay time.Duration) {
	w.t.Helper()
	before := time.Now()
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest {
		delayed := step("a")
		delayed.StartDelay = durationpb.New(delay)
		return graph(delayed)
	})
	after := time.Now()
	h := w.worker(0, int32(n))
	first := h.one(long)
	if took := time.Since(before); took < delay {
		w.t.Errorf("delayed by %s, and leased after %s", delay, took)
	}
	h.succeedAll(append(h.take(n-1, long), first))
	if took := time.Since(after); took > delay+late {
		w.t.Errorf("delayed by %s, and leased after %s", delay, took)
	}
	early := w.rows(`SELECT e.id::text FROM attempts a JOIN steps s ON s.id = a.step_id JOIN executions e ON e.id = s.execution_id
		WHERE e.id = ANY ($1::uuid[]) AND a.leased_at < e.created_at + $2::interval`, ids, delay)
	want(w.t, "steps that started early", len(early), 0)
}

// keepsByRenewing keeps one lease for longer than it lasts, and lets another be over. It is false
// where the machine did not let it renew in time.
func (w *world) keepsByRenewing(ttl time.Duration) bool {
	t := w.t
	kept, left := w.enqueue(graph(step("a"))), w.enqueue(graph(step("a")))
	began := time.Now()
	h := w.worker(0, 2)
	leases := byExecution(h.take(2, ttl))
	l := leases[kept][0]
	for _, told := range []time.Duration{l.GetLeaseDuration().AsDuration(), leases[left][0].GetLeaseDuration().AsDuration()} {
		if told <= 0 || told > ttl {
			t.Errorf("told %s of a lease of %s", told, ttl)
		}
	}
	for i, last := 0, began; time.Since(began) < 5*ttl/2; i++ {
		sent := time.Now()
		answer, err := h.at(i).Renew(w.ctx, l, ttl)
		if err != nil || time.Since(last) > ttl/2 {
			if time.Since(last) > ttl/2 {
				w.cancel(0, kept)
				w.cancel(0, left)
				return false
			}
			t.Fatalf("%s after it was renewed last: %v", time.Since(last), status.Convert(err))
		}
		if told := answer.GetLeaseDuration().AsDuration(); told <= 0 || told > ttl {
			t.Errorf("told %s of a lease that was renewed for %s", told, ttl)
		}
		last = sent
		time.Sleep(ttl / 10) // the scenario: its pace
	}
	want(t, "attempts of the one that was renewed", len(w.stepOf(kept, "a").GetAttempts()), 1)
	h.succeed(l)
	w.await(left, "the end of the one that was not renewed", func(e *leaseholdv1.Execution) bool {
		return find(t, e, "a").GetAttempts()[0].GetState() == attemptLost
	})
	if took := time.Since(began); took > 5*ttl/2+late {
		t.Errorf("a lease of %s was not over after %s", ttl, took)
	}
	_, err := h.Report(w.ctx, leases[left][0], Succeeded(nil))
	want(t, "its late report", status.Code(err), codes.FailedPrecondition)
	h.succeed(h.one(long))
	return true
}
