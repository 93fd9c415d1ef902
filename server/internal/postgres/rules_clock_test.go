package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Rule 7. Caught: RenewLeases without GREATEST (the shorter renewal shortens) or without
// LEAST (it passes a deadline or the end of a cancel's grace).
func TestClock_RenewalNeverShortensAndNeverPassesCaps(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 1, func(e *task.ExecutionSpec) { e.Timeout = 20 * time.Minute }))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, 10*time.Minute)
	got, err := s.renew(renewal(l, w, time.Second))
	if err != nil || got.ExpiresAt.Before(l.ExpiresAt) {
		t.Fatalf("a shorter renewal: %v, from %v to %v", err, l.ExpiresAt, got.ExpiresAt)
	}
	deadline := query[time.Time](s, "SELECT deadline FROM executions")
	if got, err = s.renew(renewal(l, w, time.Hour)); err != nil || !got.ExpiresAt.Equal(deadline) {
		t.Fatalf("a longer renewal: %v, until %v, the execution's deadline is %v", err, got.ExpiresAt, deadline)
	}
	if _, err := cancelOne(s.store, t.Context(), ids.Execution, ""); err != nil {
		t.Fatal(err)
	}
	if got, err = s.renew(renewal(l, w, time.Hour)); err != nil || !got.Cancel || got.CancelAt == nil || !got.ExpiresAt.Equal(*got.CancelAt) {
		t.Fatalf("a renewal after a cancel: %v, %+v", err, got)
	}
	if got.CancelRemaining > time.Minute || got.CancelRemaining <= 0 {
		t.Errorf("%v of the grace remain, want at most a minute", got.CancelRemaining)
	}
}

// Rule 7. A renewal that waited for its lock does not take back what another one, which came
// later and was first, has given. Caught: RenewLeases that sets now() + d as it is.
func TestClock_ARenewalThatWaitedShortensNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, time.Second)
	h := s.hold("SELECT FROM leases FOR UPDATE")
	waited := async(func() error {
		results, err := s.store.Renew(t.Context(), []scheduler.Renewal{renewal(l, w, time.Minute)}, true)
		if err == nil {
			err = results[0].Err
		}
		return err
	})
	s.waiting(1)
	h.exec("UPDATE leases SET expires_at = now() + interval '5 minutes'")
	later := query[time.Time](s, "SELECT now() + interval '4 minutes'")
	h.release()
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if got := query[time.Time](s, "SELECT expires_at FROM leases"); got.Before(later) {
		t.Fatalf("the lease ends at %v: the renewal that waited has shortened it", got)
	}
}

// Rule 7. A grant lasts from the last lock on, however long its transaction took until then.
// Caught: DrawLeaseVersions with now(), or drawn before the workers are locked.
func TestClock_ASlowDispatchGivesAFullLease(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	claim, claimed := s.claim(w, 1)
	h := s.hold("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE") // what SKIP LOCKED does not skip
	dispatched := async(func() error {
		done, err := s.store.Dispatch(t.Context(), assign(w, claim, claimed.Requests, 10*time.Second))
		if err == nil && len(done.Granted) != 1 {
			err = fmt.Errorf("granted %v", done.Granted)
		}
		return err
	})
	s.waiting(1)
	time.Sleep(300 * time.Millisecond)
	full := query[time.Time](s, "SELECT clock_timestamp() + interval '10 seconds'")
	h.release()
	if err := <-dispatched; err != nil {
		t.Fatal(err)
	}
	if got := query[time.Time](s, "SELECT expires_at FROM leases"); got.Before(full) {
		t.Fatalf("the lease ends %v before it should", full.Sub(got))
	}
}

// skewed makes a database's clock be ahead: its own now() and clock_timestamp() come first.
func (s *stand) skewed(by string) *postgres.Store {
	s.t.Helper()
	s.exec(`CREATE SCHEMA skewed`)
	s.exec(`CREATE FUNCTION skewed.now() RETURNS timestamptz STABLE LANGUAGE sql AS $$ SELECT pg_catalog.now() + interval '` + by + `' $$`)
	s.exec(`CREATE FUNCTION skewed.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS $$ SELECT pg_catalog.clock_timestamp() + interval '` + by + `' $$`)
	s.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = skewed, pg_catalog, public', current_database()); END $$`)
	s.store.Close()
	return s.open(postgres.Config{Events: task.AllEventTypes()})
}

// Rule 7. The database's clock is two days ahead of the application's: every instant in every
// table is the database's, and leases live and end by it. Caught: any value of time.Now() that
// reaches a statement; a statement that uses the session's own idea of time.
func TestClock_NoInstantIsTheApplications(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.store = s.skewed("2 days")
	began := query[time.Time](s, "SELECT pg_catalog.now() + interval '2 days' - interval '1 minute'")
	ids := s.walkEverywhere()
	s.exec("UPDATE leases SET expires_at = expires_at - interval '2 minutes'")
	if swept, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{}); err != nil || swept.Done == 0 {
		t.Fatalf("sweep: %v, %+v", err, swept)
	}
	if _, err := cancelOne(s.store, t.Context(), ids.Execution, ""); err != nil {
		t.Fatal(err)
	}
	rows, err := s.sql.Query(t.Context(), `SELECT table_name, column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND data_type = 'timestamp with time zone' AND table_name NOT IN ('goose_db_version', 'horizons')`) // horizons is about sessions, whose clock this test cannot change
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	looked := 0
	for rows.Next() {
		var table, column string
		if err := rows.Scan(&table, &column); err != nil {
			t.Fatal(err)
		}
		n := query[int](s, fmt.Sprintf("SELECT count(*) FROM %q WHERE %q < $1", table, column), began)
		if n != 0 {
			t.Errorf("%s.%s: %d instants that are not the database's", table, column, n)
		}
		looked += query[int](s, fmt.Sprintf("SELECT count(%q) FROM %q", column, table))
	}
	if looked < 40 {
		t.Fatalf("only %d instants were written: the test tries too little", looked)
	}
}

// walkEverywhere makes every kind of row that holds an instant.
func (s *stand) walkEverywhere() task.IDs {
	s.t.Helper()
	change := func(e *task.ExecutionSpec) {
		e.Timeout = time.Hour
		for i := range e.Steps {
			e.Steps[i].ScheduleToStart, e.Steps[i].ScheduleToClose = 30*time.Minute, 50*time.Minute
		}
	}
	ids := s.enqueue(spec("a", 4, change))
	s.enqueue(spec("b", 1, func(e *task.ExecutionSpec) { e.StartDelay = time.Hour }))
	s.register("w", "a", 10)
	w := s.register("w", "a", 10)
	leases := s.lease(w, 4, time.Minute)
	if len(leases) != 4 {
		s.t.Fatalf("leased %d", len(leases))
	}
	if _, err := s.renew(renewal(leases[0], w, 2*time.Minute)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.report(success(leases[1])); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.report(failure(leases[2])); err != nil {
		s.t.Fatal(err)
	}
	late := failure(leases[2])
	late.Outcome.Failure.Type = "OTHER"
	if _, err := s.report(late); err == nil {
		s.t.Fatal("a late report was accepted")
	}
	if _, err := s.store.BeginSweep(s.t.Context(), time.Second); err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// Rule 7, one level up: when a poll was received, by a clock that is off, moves no lease.
// Caught: a deadline computed from Poll.Received.
func TestClock_ReceivedMovesNoLease(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r := startReplica(t, s.url)
	s.store = r.store
	w := s.register("w", "a", 5)
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		s.enqueue(spec("a", 1))
		answer, err := r.Poll(t.Context(), scheduler.Poll{
			WorkerID: w.WorkerID, SessionID: w.SessionID, MaxLeases: 1, Wait: 10 * time.Second, Duration: time.Minute, Received: time.Now().Add(off),
		})
		if err != nil || len(answer.Leases) != 1 {
			t.Fatalf("poll: %v, %d leases", err, len(answer.Leases))
		}
		left := query[float64](s, "SELECT extract(epoch FROM expires_at - now())::float8 FROM leases WHERE attempt_id = $1", answer.Leases[0].AttemptID)
		if left > 60 || left < 30 {
			t.Errorf("received %v off: the lease lasts another %v s, want about 60", off, left)
		}
		if answer.Held < 0 {
			t.Errorf("held for %v", answer.Held)
		}
	}
}
