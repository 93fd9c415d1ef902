package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// deafReplica is a replica whose hints reach nobody, and who hears none.
func deafReplica(t *testing.T, url string) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	store, err := postgres.Open(ctx, postgres.Config{URL: url, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{store: store, Scheduler: scheduler.New(scheduler.Config{Store: store})}
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { r.StopPolls(); cancel(); <-done; store.Close() })
	return r
}

// poll parks a poll of a worker, and hands over its error or what it got.
func (r *replica) poll(ctx context.Context, w worker) <-chan error {
	return async(func() error {
		answer, err := r.Poll(ctx, scheduler.Poll{
			WorkerID: w.WorkerID, SessionID: w.SessionID, MaxLeases: 1, Wait: 30 * time.Second, Duration: time.Minute, Received: time.Now(),
		})
		if err == nil && len(answer.Leases) != 1 {
			err = fmt.Errorf("got %d leases", len(answer.Leases))
		}
		return err
	})
}

// Rule 9. Every hint is lost, and a poll that is parked on another replica has the work soon
// all the same. Caught: a dispatcher that sleeps until it is woken.
func TestHints_LostAltogether(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a, b := deafReplica(t, s.url), deafReplica(t, s.url)
	w := s.register("w", "a", 1)
	for round := range 3 {
		polled := b.poll(t.Context(), w)
		time.Sleep(700 * time.Millisecond) // it is parked, and has found nothing
		began := time.Now()
		if _, err := a.Enqueue(t.Context(), spec("a", 1)); err != nil {
			t.Fatal(err)
		}
		if err := <-polled; err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("round %d: leased %v after the enqueue on the other replica", round, took)
		if took > 4*time.Second {
			t.Errorf("a poll waited %v for work, want about a second", took)
		}
		// The slot is freed through the other replica, too.
		view := query[string](s, "SELECT attempt_id::text FROM leases")
		s.exec("UPDATE leases SET expires_at = now() WHERE attempt_id::text = $1", view)
		s.exec("UPDATE scheduling_requests SET available_at = now() + interval '1 hour'")
		s.eventually("the lease's end", func() bool { return query[int](s, "SELECT count(*) FROM leases") == 0 })
		s.exec("DELETE FROM scheduling_requests")
	}
}

// Rule 9. The session that listens is cut five times; work goes on arriving, and after each
// cut the replica listens again. Caught: a listener that ends with its connection.
func TestHints_TheListenerIsCut(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a, b := startReplica(t, s.url), startReplica(t, s.url)
	w := s.register("w", "a", 100)
	const listeners = `FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'`
	listening := func() bool { return query[int](s, "SELECT count(*) "+listeners) == 2 }
	for range 5 {
		s.eventually("both replicas listen", listening)
		polled := b.poll(t.Context(), w)
		time.Sleep(200 * time.Millisecond)
		if n := query[int](s, "SELECT count(pg_terminate_backend(pid)) "+listeners); n == 0 {
			t.Fatal("nobody listens")
		}
		began := time.Now()
		if _, err := a.Enqueue(t.Context(), spec("a", 1)); err != nil {
			t.Fatal(err)
		}
		if err := <-polled; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("work arrived only after %v", took)
		}
	}
	s.eventually("both replicas listen again", listening)
}
