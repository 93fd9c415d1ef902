package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// underWay runs a call whose connection is cut while its COMMIT is under way: PostgreSQL has all of
// it, and is not done with it before the next try has met it, or has gone by. Rows of the table make
// the commit wait.
func (s *cutStand) underWay(table string, call func() error) {
	s.stand.t.Helper()
	s.exec(`CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM set_config('lock_timeout', '0', true); PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$`)
	s.exec(`CREATE CONSTRAINT TRIGGER held AFTER INSERT OR DELETE OR UPDATE ON ` + table + ` DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION held()`)
	h := s.hold("SELECT pg_advisory_xact_lock(4711)")
	s.arm(cutBehind, nil)
	done := async(call)
	s.eventually("the next try", func() bool {
		return s.done() == 1 && (len(done) > 0 || query[int](s.stand, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasehold' AND wait_event_type = 'Lock'`) >= 2)
	})
	h.release()
	if err := <-done; err != nil {
		s.stand.t.Errorf("with its own commit under way: %v", err)
	}
	s.eventually("the first try is over", func() bool {
		return query[int](s.stand, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 0
	})
	if n := s.ear.failed(postgres.FailedUnknown); n != 1 {
		s.stand.t.Errorf("%d unknown commits were counted, want 1", n)
	}
}

// Rule 10: an unknown commit is found, also one that PostgreSQL is not done with when it is looked
// for. Caught: a next try that takes another's id for a bug (the call fails, and is committed), or a
// key that its own first try holds for another's; a call that is told that it was not the first.
func TestRepeats_CommitOfAnEnqueueUnderWay(t *testing.T) {
	t.Parallel()
	key := func(e *task.ExecutionSpec) { e.IdempotencyKey = "k" }
	for name, specs := range map[string][]*task.ExecutionSpec{
		"no key": {spec("warm", 1), spec("warm", 2)},
		"a key":  {spec("warm", 1, key)},
		"both":   {spec("warm", 1), spec("warm", 2, key)},
	} {
		for _, whole := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", all or nothing ", whole), func(t *testing.T) {
				t.Parallel()
				s := newCutStand(t)
				batch := make([]scheduler.NewExecution, len(specs))
				for i, e := range specs {
					batch[i] = newExecution(e)
				}
				before := query[int](s.stand, "SELECT count(*) FROM executions")
				s.underWay("executions", func() error {
					results, err := s.store.Enqueue(t.Context(), batch, whole, whole)
					for i, r := range results {
						if r.Err != nil || !r.Value.Created || r.Value.Execution.ID != batch[i].IDs.Execution {
							return fmt.Errorf("item %d: %w, created %v", i, r.Err, r.Value.Created)
						}
					}
					return err
				})
				if n := query[int](s.stand, "SELECT count(*) FROM executions") - before; n != len(batch) {
					t.Errorf("%d executions were made, want %d", n, len(batch))
				}
				s.sane()
			})
		}
	}
}

// Rule 10. Caught: a registration that looks for its session before it has the name.
func TestRepeats_CommitOfARegistrationUnderWay(t *testing.T) {
	for _, request := range []string{"", "r"} {
		t.Run("request "+request, func(t *testing.T) {
			t.Parallel()
			s := newCutStand(t)
			mine := uuid.New()
			reg := scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"warm"}, Slots: 3, RequestID: request}
			s.underWay("sessions", func() error {
				got, err := s.store.Register(t.Context(), reg, uuid.New(), mine)
				if err == nil && got.SessionID != mine {
					err = fmt.Errorf("session is %s, want %s", got.SessionID, mine)
				}
				return err
			})
			if current := query[uuid.UUID](s.stand, "SELECT session_id FROM workers WHERE name = 'w'"); current != mine {
				t.Errorf("the current session is %s, mine %s", current, mine)
			}
		})
	}
}

// Rule 10. Caught: a dispatch that takes what its own first try holds for another's; the leases would
// be there and delivered to nobody.
func TestRepeats_CommitOfADispatchUnderWay(t *testing.T) {
	t.Parallel()
	s := newCutStand(t)
	s.direct.enqueue(spec("a", 3))
	w := s.direct.register("w", "a", 5)
	claim, claimed := s.claim(w, 3)
	command := assign(w, claim, claimed.Requests, time.Minute)
	s.underWay("leases", func() error {
		done, err := s.store.Dispatch(t.Context(), command)
		if err == nil && len(done.Granted) != 3 {
			err = fmt.Errorf("granted %+v, want all 3", done)
		}
		return err
	})
	s.sane()
}

// Rule 10. Caught: a report that is busy with itself.
func TestRepeats_CommitOfAReportUnderWay(t *testing.T) {
	t.Parallel()
	s := newCutStand(t)
	s.direct.enqueue(spec("a", 1))
	l := s.direct.leaseOne(s.direct.register("w", "a", 5), time.Minute)
	s.underWay("attempts", func() error {
		results, err := s.store.Report(t.Context(), []scheduler.Report{success(l)}, false)
		if err == nil && (results[0].Err != nil || results[0].Value.Replayed) {
			err = fmt.Errorf("%+v", results[0])
		}
		return err
	})
	s.sane()
}
