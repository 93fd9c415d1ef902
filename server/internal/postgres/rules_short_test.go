package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Rule 6. Caught: a session that is opened without sessionSettings, or a setting left out.
func TestShort_SettingsOfEverySession(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	want := map[string]string{
		"application_name": "leasehold", "idle_in_transaction_session_timeout": "5s", "lock_timeout": "2s",
		"statement_timeout": "10s", "default_transaction_isolation": "read committed", "TimeZone": "UTC",
	}
	for range 3 { // several connections at once
		conn, err := s.store.Pool().Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for name, value := range want {
			var got string
			if err := conn.QueryRow(t.Context(), "SHOW "+name).Scan(&got); err != nil || got != value {
				t.Errorf("%s is %q (%v), want %q", name, got, err, value)
			}
		}
		// Over a Unix socket the system has none to show; over TCP they are as we said.
		for name, value := range map[string]string{
			"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3", "tcp_user_timeout": "20000",
		} {
			var got string
			if err := conn.QueryRow(t.Context(), "SHOW "+name).Scan(&got); err != nil || got != value && got != "0" {
				t.Errorf("%s is %q (%v), want %q", name, got, err, value)
			}
		}
	}
}

// frozen is a replica that stopped in the middle of a transaction: a session with the
// service's settings, idle, with locks.
func (s *stand) frozen(statements ...string) {
	s.t.Helper()
	conn, err := s.store.Pool().Acquire(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	raw := conn.Hijack() // nobody gives it back
	s.t.Cleanup(func() { _ = raw.Close(context.Background()) })
	if _, err := raw.Exec(s.t.Context(), "BEGIN"); err != nil {
		s.t.Fatal(err)
	}
	for _, statement := range statements {
		if _, err := raw.Exec(s.t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			s.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// Rule 6. A replica freezes in a transaction that holds an execution, its lease and its worker.
// The others' calls go on at once, and within the timeout of idle transactions the held ones
// do too. Caught: a statement that waits where it should skip (the other calls take seconds);
// sessions without idle_in_transaction_session_timeout (the held report is never done).
func TestShort_AFrozenReplicaStopsNobodyElse(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r := startReplica(t, s.url)
	s.store = r.store
	ctx := t.Context()
	w := s.register("frozen", "a", 5)
	held := s.enqueue(spec("a", 1))
	l := s.leaseOne(w, time.Minute)
	healthy := s.register("healthy", "b", 50)
	s.frozen(
		"SELECT FROM executions WHERE id = '"+held.Execution.String()+"' FOR NO KEY UPDATE",
		"SELECT FROM leases WHERE attempt_id = '"+l.AttemptID.String()+"' FOR UPDATE",
		"SELECT FROM workers WHERE id = '"+w.WorkerID.String()+"' FOR NO KEY UPDATE")
	began := time.Now()
	heldReport := async(func() error { return r.Report(ctx, []scheduler.Report{success(l)})[0].Err })
	slowest := time.Duration(0)
	calls := 0
	for time.Since(began) < 3*time.Second { // while it is frozen
		start := time.Now()
		s.healthyRound(r, healthy)
		slowest = max(slowest, time.Since(start))
		calls++
	}
	t.Logf("%d rounds of enqueue, lease, renew and report while another was frozen; the slowest took %v", calls, slowest)
	if slowest > 1500*time.Millisecond || calls < 5 {
		t.Errorf("others were stopped by the frozen replica: %d rounds, slowest %v", calls, slowest)
	}
	err := <-heldReport // UNAVAILABLE is an answer too: the caller repeats
	for err != nil && time.Since(began) < 20*time.Second {
		err = r.Report(ctx, []scheduler.Report{success(l)})[0].Err
	}
	t.Logf("the held report was done after %v", time.Since(began))
	if err != nil {
		t.Fatalf("the held report: %v", err)
	}
	s.sane()
}

func (s *stand) healthyRound(r *replica, w worker) {
	s.t.Helper()
	ctx := s.t.Context()
	if _, err := r.Enqueue(ctx, spec("b", 1)); err != nil {
		s.t.Fatalf("enqueue: %v", err)
	}
	answer, err := r.Poll(ctx, scheduler.Poll{
		WorkerID: w.WorkerID, SessionID: w.SessionID, MaxLeases: 1, Wait: 10 * time.Second, Duration: time.Minute, Received: time.Now(),
	})
	if err != nil || len(answer.Leases) != 1 {
		s.t.Fatalf("poll: %v, %d leases", err, len(answer.Leases))
	}
	l := answer.Leases[0]
	if res := r.Renew(ctx, []scheduler.Renewal{renewal(l, w, time.Minute)}); res[0].Err != nil {
		s.t.Fatalf("renew: %v", res[0].Err)
	}
	if res := r.Report(ctx, []scheduler.Report{success(l)}); res[0].Err != nil {
		s.t.Fatalf("report: %v", res[0].Err)
	}
}

// Rule 6. The worker that parked first is in a frozen replica's hands: what it could take goes
// to the next one that can, long before the freeze ends. Caught: a dispatcher that
// offers a poll first again after what was placed to it was left.
func TestShort_AHeldWorkerDoesNotStarveTheOthers(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r := startReplica(t, s.url)
	s.store = r.store
	first, second := s.register("first", "a", 1), s.register("second", "a", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	poll := func(w worker) <-chan error {
		return async(func() error {
			answer, err := r.Poll(ctx, scheduler.Poll{
				WorkerID: w.WorkerID, SessionID: w.SessionID, MaxLeases: 1, Wait: 20 * time.Second, Duration: time.Minute, Received: time.Now(),
			})
			if err == nil && len(answer.Leases) == 0 {
				return context.DeadlineExceeded
			}
			return err
		})
	}
	poll(first)
	time.Sleep(time.Second) // it is parked and looked up
	answered := poll(second)
	time.Sleep(time.Second)
	s.frozen("SELECT FROM workers WHERE id = '" + first.WorkerID.String() + "' FOR NO KEY UPDATE")
	began := time.Now()
	s.enqueue(spec("a", 1))
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("the second worker had it after %v", took)
	if took > 4*time.Second {
		t.Errorf("the second worker waited %v for a step that the first could not take", took)
	}
}

// Rule 6. A frozen replica that holds a key which another enqueues too delays that caller, not
// for ever. Caught: a session without lock_timeout.
func TestShort_LocksAreNotWaitedForWithoutEnd(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 1))
	s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", ids.Execution)
	began := time.Now()
	_, err := cancelOne(s.store, t.Context(), ids.Execution, "")
	if !isUnavailable(err) || time.Since(began) > 20*time.Second {
		t.Fatalf("cancel of a held execution: %v after %v", err, time.Since(began))
	}
	if _, err := s.store.Enqueue(t.Context(), []scheduler.NewExecution{newExecution(spec("a", 1))}, false, true); err != nil {
		t.Fatalf("enqueue meanwhile: %v", err)
	}
}

func isUnavailable(err error) bool {
	var away *scheduler.UnavailableError
	return errors.As(err, &away)
}
