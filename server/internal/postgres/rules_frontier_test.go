package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// line is a capability of which much was dispatched.
type line struct {
	*stand
	w     worker
	group scheduler.Group
}

func newLine(t *testing.T) *line {
	t.Helper()
	s := newStand(t)
	l := &line{s, s.register("w", "a", 1000), scheduler.Group{Namespace: "default", Capability: "a"}}
	l.look() // the horizon is known: what is seen from now on has a frontier
	return l
}

func prioritized(priority int) func(*task.ExecutionSpec) {
	return func(e *task.ExecutionSpec) {
		for i := range e.Steps {
			e.Steps[i].Priority = priority
		}
	}
}

// drainOne enqueues a step and works it off.
func (l *line) drainOne(change ...func(*task.ExecutionSpec)) {
	l.t.Helper()
	l.enqueue(spec("a", 1, change...))
	if _, err := l.report(success(l.leaseOne(l.w, time.Minute))); err != nil {
		l.t.Fatal(err)
	}
}

// look asks once whether something is due.
func (l *line) look(groups ...scheduler.Group) bool {
	l.t.Helper()
	wait, due, err := nextDue(l.t.Context(), l.store, append(groups, l.group))
	if err != nil {
		l.t.Fatal(err)
	}
	return due && wait <= 0
}

// now is the time of the last commit, and of none later.
func (l *line) now() time.Time {
	l.t.Helper()
	return query[time.Time](l.stand, "SELECT clock_timestamp()")
}

// pass waits until the frontier of priority 0 has passed an instant.
func (l *line) pass(at time.Time) {
	l.t.Helper()
	l.eventually("the frontier passes what was dispatched", func() bool {
		l.look()
		return l.store.Frontier(l.group, 0).After(at)
	})
}

// oldSnapshot begins a transaction that sees the database as it is now, and keeps every row that is
// deleted from then on.
func (s *stand) oldSnapshot() {
	s.t.Helper()
	tx, err := s.sql.BeginTx(s.t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		s.t.Fatal(err)
	}
	h := &holder{s.t, tx}
	s.t.Cleanup(func() { _ = tx.Rollback(s.t.Context()) })
	h.exec("SELECT count(*) FROM executions")
}

// What comes to wait, or could not be had for a while, is found by the next look, however far
// the frontier has moved meanwhile, and without a look in full. Caught, in this order: a frontier that
// passes what another has claimed or locked; one that is moved while its capability is paused, or
// stays when it is resumed; surveys that look at the priorities only that they know; a frontier
// that passes a transaction under way (no xact_start in the horizon), one that stays when the
// clock is set back, or when PostgreSQL is another one.
func TestFrontier_HidesNothing(t *testing.T) {
	t.Parallel()
	type act = func()
	for name, prepare := range map[string]func(l *line) act{
		"a claim that is given back": func(l *line) act {
			l.enqueue(spec("a", 1))
			id, claimed := l.claim(l.w, 1)
			return func() {
				if err := l.store.Free(l.t.Context(), id, []uuid.UUID{claimed.Requests[0].StepID}); err != nil {
					l.t.Fatal(err)
				}
			}
		},
		"a claim of a replica that died": func(l *line) act {
			l.enqueue(spec("a", 1))
			l.claim(l.w, 1)
			return func() { l.exec("UPDATE scheduling_requests SET claim_expires_at = now()") }
		},
		"a row that another has locked": func(l *line) act {
			l.enqueue(spec("a", 1))
			return l.hold("SELECT FROM scheduling_requests FOR UPDATE").release
		},
		"what came while paused": func(l *line) act {
			key := scheduler.CapabilityKey{Namespace: "default", Name: "a"}
			if _, err := l.store.Pause(l.t.Context(), key, ""); err != nil {
				l.t.Fatal(err)
			}
			l.enqueue(spec("a", 1))
			for range 3 {
				time.Sleep(100 * time.Millisecond) // the horizon moves
				l.look()
			}
			return func() {
				if _, err := l.store.Resume(l.t.Context(), key); err != nil {
					l.t.Fatal(err)
				}
			}
		},
		"a released attempt": func(l *line) act {
			l.enqueue(spec("a", 1))
			lease := l.leaseOne(l.w, time.Minute)
			return func() {
				r := success(lease)
				r.Outcome = task.Outcome{State: task.AttemptReleased}
				if _, err := l.report(r); err != nil {
					l.t.Fatal(err)
				}
			}
		},
		"an execution that is retried": func(l *line) act {
			ids := l.enqueue(spec("a", 1, func(e *task.ExecutionSpec) { e.Steps[0].Retry.MaximumAttempts = 1 }))
			if _, err := l.report(failure(l.leaseOne(l.w, time.Minute))); err != nil {
				l.t.Fatal(err)
			}
			return func() {
				if _, err := l.store.Retry(l.t.Context(), scheduler.Retry{Execution: ids.Execution, RequestID: uuid.NewString()}); err != nil {
					l.t.Fatal(err)
				}
			}
		},
		"a lease that is over": func(l *line) act {
			l.enqueue(spec("a", 1))
			l.leaseOne(l.w, time.Minute)
			return func() {
				l.exec("UPDATE leases SET expires_at = now()")
				if swept, err := l.store.ExpireLeases(l.t.Context(), scheduler.SweepBatch{}); err != nil || swept.Done != 1 {
					l.t.Fatalf("swept %+v, %v", swept, err)
				}
			}
		},
		"a higher priority": func(l *line) act { return func() { l.enqueue(spec("a", 1, prioritized(7))) } },
		"a lower priority":  func(l *line) act { return func() { l.enqueue(spec("a", 1, prioritized(-7))) } },
		"a priority between": func(l *line) act {
			l.drainOne(prioritized(2))
			l.look()
			return func() { l.enqueue(spec("a", 1, prioritized(1))) }
		},
		"a node that is new": func(l *line) act {
			return func() {
				l.w.reg.Node = "n"
				l.enqueue(spec("a", 1, func(e *task.ExecutionSpec) { e.Steps[0].Node = "n" }))
			}
		},
		"a transaction that was under way": func(l *line) act {
			started, commit := make(chan struct{}), make(chan struct{})
			other := l.open(postgres.Config{AroundCommit: func(name string, done bool) {
				if name == "enqueue" && !done {
					close(started)
					<-commit
				}
			}})
			n := newExecution(spec("a", 1))
			committed := async(func() error {
				results, err := other.Enqueue(l.t.Context(), []scheduler.NewExecution{n}, false, true)
				if err == nil {
					err = results[0].Err
				}
				return err
			})
			<-started
			for range 3 {
				time.Sleep(100 * time.Millisecond) // the horizon would move
				l.look()
			}
			return func() {
				close(commit)
				if err := <-committed; err != nil {
					l.t.Fatal(err)
				}
			}
		},
		"a clock that is set back": func(l *line) act {
			return func() {
				l.store.ShiftFrontiers(time.Hour)
				l.enqueue(spec("a", 1))
			}
		},
		"another PostgreSQL, where it was not deleted": func(l *line) act {
			return func() {
				l.store.OtherServer()
				l.enqueue(spec("a", 1))
				l.exec("UPDATE scheduling_requests SET available_at = now() - interval '1 hour'")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			l.drainOne()
			l.pass(time.Time{})
			act := prepare(l)
			for range 3 {
				if name != "what came while paused" {
					l.drainOne()
				}
				l.look()
			}
			l.store.LookedInFull()
			act()
			if !l.look(scheduler.Group{Namespace: "default", Capability: "a", Node: "n"}) {
				t.Error("the next look says that nothing is due")
			}
			if got := l.lease(l.w, 10, time.Minute); len(got) != 1 {
				t.Errorf("leased %d, want 1", len(got))
			}
			l.sane()
		})
	}
}

// The frontier moves on with what is dispatched: a look does not begin where nothing is any more.
// Caught: a frontier that is never moved; one that looks in full only moves.
func TestFrontier_MovesOn(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	l.drainOne()
	l.pass(time.Time{})
	l.store.LookedInFull()
	at := l.now()
	l.pass(at)
	l.enqueue(spec("a", 1))
	at = l.now()
	for range 3 {
		time.Sleep(100 * time.Millisecond) // the horizon moves
		l.look()
	}
	if f := l.store.Frontier(l.group, 0); f.After(at) {
		t.Errorf("the frontier is at %v, and what was enqueued before %v still waits", f, at)
	}
}

// Whatever comes below a frontier without any rule is found by a look in full: soon while the
// group looks empty, a little later while it does not, and then in the order of the claim. Caught: no looks in
// full of groups that look empty; of those that do not.
func TestFrontier_FullLooksFindTheRest(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			t.Parallel()
			l := newLine(t)
			l.drainOne()
			l.pass(l.now())
			hidden := l.enqueue(spec("a", 1)).Steps[0]
			h := l.hold("UPDATE scheduling_requests SET available_at = now() - interval '1 hour'")
			for range 3 {
				time.Sleep(50 * time.Millisecond)
				l.look()
			}
			if busy {
				l.enqueue(spec("a", 1))
			}
			h.release()
			l.eventually("it is found", func() bool {
				if !l.look() {
					return false
				}
				id, claimed := l.claim(l.w, 1)
				if len(claimed.Requests) == 0 {
					return false
				}
				if got := claimed.Requests[0].StepID; got != hidden {
					if err := l.store.Free(t.Context(), id, []uuid.UUID{got}); err != nil {
						t.Fatal(err)
					}
					return false
				}
				return true
			})
		})
	}
}

// A session of the service that may not be looked at could be in the middle of anything: the
// horizon stays as far back as any transaction may last. Caught: NULL taken for "not in a transaction".
func TestFrontier_HorizonBehindSessionsThatAreHidden(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	role := "reader_" + uuid.NewString()[:8]
	s.exec("CREATE ROLE " + role)
	t.Cleanup(func() { _, _ = s.sql.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	s.exec("GRANT SELECT ON horizons TO " + role)
	age := func(conn *pgxpool.Pool) (d time.Duration) {
		err := conn.QueryRow(t.Context(), "SELECT now() - horizon FROM horizons").Scan(&d)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if err := s.store.Ping(t.Context()); err != nil { // it has a session
		t.Fatal(err)
	}
	ours := s.pool(map[string]string{"application_name": "leasehold"})
	if got := age(ours); got > 10*time.Second {
		t.Errorf("the horizon is %v back, and nothing is under way", got)
	}
	hidden := s.pool(map[string]string{"application_name": "leasehold", "role": role})
	if got := age(hidden); got < 40*time.Second || got > time.Minute {
		t.Errorf("the horizon is %v back, with a session that may not be looked at", got)
	}
}

// A pooler may put its client's address behind the name of a session. Caught: a horizon that is of the
// sessions with the very same name only: each one's own, which is in no other transaction.
func TestFrontier_HorizonBehindAPooler(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	named := func(name string) *pgxpool.Pool { return s.pool(map[string]string{"application_name": name}) }
	begin := func(pool *pgxpool.Pool) (began time.Time) {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		if err := tx.QueryRow(t.Context(), "SELECT now()").Scan(&began); err != nil {
			t.Fatal(err)
		}
		return began
	}
	other := begin(named("another - 10.0.0.1:40000"))
	s.eventually("time passes", func() bool { return s.since(other) > 200*time.Millisecond })
	began := begin(named("leasehold - 10.0.0.1:40001"))
	s.eventually("time passes", func() bool { return s.since(began) > 200*time.Millisecond })
	var horizon time.Time
	if err := named("leasehold - 10.0.0.2:40002").QueryRow(t.Context(), "SELECT horizon FROM horizons").Scan(&horizon); err != nil {
		t.Fatal(err)
	}
	if !horizon.Equal(began) {
		t.Errorf("the horizon is %v after the transaction that is under way, want it there", horizon.Sub(began))
	}
}

// since is how long ago an instant of PostgreSQL's is.
func (s *stand) since(at time.Time) time.Duration {
	s.t.Helper()
	return query[time.Time](s, "SELECT clock_timestamp()").Sub(at)
}
