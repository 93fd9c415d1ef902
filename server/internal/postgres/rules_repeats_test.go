package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// cutStand is a stand whose store reaches PostgreSQL through a proxy; direct does not.
type cutStand struct {
	*stand
	*proxy
	direct *stand
}

func newCutStand(t *testing.T) *cutStand {
	t.Helper()
	direct := newStand(t)
	p := newProxy(t, direct.url)
	s := &stand{t: t, url: direct.url, sql: direct.sql}
	s.store = s.open(postgres.Config{URL: p.url(direct.url), Events: task.AllEventTypes()})
	direct.enqueue(spec("warm", 1)) // its capability is known, so that the next commit is the call's own
	c := &cutStand{stand: s, proxy: p, direct: direct}
	c.enqueue(spec("warm", 1))
	w := c.register("warm", "warm", 1)
	if _, err := c.store.Deregister(t.Context(), w.WorkerID, w.SessionID, false); err != nil {
		t.Fatal(err)
	}
	return c
}

// cuts runs a test for both halves of a COMMIT that can be lost.
func cuts(t *testing.T, f func(t *testing.T, s *cutStand, c cutting)) {
	t.Helper()
	t.Parallel()
	for name, c := range map[string]cutting{"the answer is lost": cutAnswer, "the request is lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCutStand(t)
			f(t, s, c)
			if n := s.ear.failed(postgres.FailedUnknown); n != 1 {
				t.Errorf("%d unknown commits were counted, want 1", n)
			}
			s.sane()
			s.told(&s.ear, &s.direct.ear)
		})
	}
}

// Rule 10. Caught: an enqueue that does not look for its own ids after an unknown commit (a
// second execution, or created=false for its own).
func TestRepeats_LostCommitOfAnEnqueue(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		keyed := newExecution(spec("warm", 2, func(e *task.ExecutionSpec) { e.IdempotencyKey = "k" }))
		batch := []scheduler.NewExecution{keyed, newExecution(spec("warm", 1))}
		before := query[int](s.stand, "SELECT count(*) FROM executions")
		s.cutOnce(c, nil, func() error {
			results, err := s.store.Enqueue(t.Context(), batch, false, true)
			for i, r := range results {
				if !r.Value.Created || r.Value.Execution.ID != batch[i].IDs.Execution {
					err = errors.Join(err, fmt.Errorf("item %d: %w, %+v", i, r.Err, r.Value))
				}
			}
			return err
		})
		if n := query[int](s.stand, "SELECT count(*) FROM executions") - before; n != 2 {
			t.Errorf("%d executions were made, want 2", n)
		}
		again := newExecution(keyed.Spec)
		results, err := s.store.Enqueue(t.Context(), []scheduler.NewExecution{again}, false, true)
		if err != nil || results[0].Value.Created || results[0].Value.Execution.ID != keyed.IDs.Execution {
			t.Errorf("the same key again: %v, %+v", err, results[0])
		}
	})
}

// Rule 10. Caught: ClaimRequests that does not find what bears its own claim (the requests
// would be hidden until the claim is over).
func TestRepeats_LostCommitOfAClaim(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.direct.enqueue(spec("a", 3))
		w := s.direct.register("w", "a", 5)
		s.cutOnce(c, nil, func() error {
			_, claimed := s.claim(w, 3)
			if len(claimed.Requests) != 3 {
				return fmt.Errorf("claimed %d requests, want 3", len(claimed.Requests))
			}
			return nil
		})
	})
}

// Rule 10. Caught: a dispatch that does not know its own claim on the lease: the grant would
// be delivered to nobody.
func TestRepeats_LostCommitOfADispatch(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.direct.enqueue(spec("a", 3))
		w := s.direct.register("w", "a", 5)
		claim, claimed := s.claim(w, 3)
		command := assign(w, claim, claimed.Requests, time.Minute)
		for i := range command.Items {
			command.Items[i].RequestID = "r"
		}
		s.cutOnce(c, nil, func() error {
			done, err := s.store.Dispatch(t.Context(), command)
			if err == nil && len(done.Granted) != 3 {
				err = fmt.Errorf("granted %+v, want all 3", done)
			}
			return err
		})
		if n := query[int](s.stand, "SELECT count(*) FROM attempts"); n != 3 {
			t.Errorf("%d attempts, want 3", n)
		}
		if n := query[int](s.stand, "SELECT count(*) FROM scheduling_requests WHERE claim_id IS NOT NULL"); n != 0 {
			t.Errorf("%d requests are left", n)
		}
	})
}

// Rule 10. Meanwhile the step's next attempt was leased by another worker. Caught: a report
// that refuses what it recorded itself, or says replayed for its own first call.
func TestRepeats_LostCommitOfAReport(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.direct.enqueue(spec("a", 1))
		w := s.direct.register("w", "a", 5)
		l := s.direct.leaseOne(w, time.Minute)
		meanwhile := func() {
			if c == cutAnswer {
				s.eventually("the retry is due", func() bool { return len(s.direct.lease(w, 1, time.Minute)) == 1 })
			}
		}
		r := failure(l)
		r.Outcome.Checkpoint = &task.Payload{JSON: true, Body: []byte("1")}
		s.cutOnce(c, meanwhile, func() error {
			got, err := s.report(r)
			if err == nil && got.Replayed {
				err = errors.New("the call is called a repeat of itself")
			}
			return err
		})
		if got, err := s.report(r); err != nil || !got.Replayed {
			t.Errorf("a repeat: %v, %+v", err, got)
		}
		if n := query[int](s.stand, "SELECT count(*) FROM outbox_events WHERE event_type LIKE '%attempt.v1.failed'"); n != 1 {
			t.Errorf("%d events of the failure, want 1", n)
		}
	})
}

// Rule 10. Caught: a renewal that shortens when it runs twice, or a cancel that refuses its own.
func TestRepeats_LostCommitOfARenewalAndACancel(t *testing.T) {
	t.Run("renewal", func(t *testing.T) {
		cuts(t, func(t *testing.T, s *cutStand, c cutting) {
			s.direct.enqueue(spec("a", 1))
			w := s.direct.register("w", "a", 5)
			l := s.direct.leaseOne(w, time.Second)
			s.cutOnce(c, nil, func() error { _, err := s.renew(renewal(l, w, time.Hour)); return err })
			if left := query[float64](s.stand, "SELECT extract(epoch FROM expires_at - now())::float8 FROM leases"); left < 1800 {
				t.Errorf("the lease lasts another %v s", left)
			}
		})
	})
	t.Run("cancel", func(t *testing.T) {
		cuts(t, func(t *testing.T, s *cutStand, c cutting) {
			ids := s.direct.enqueue(spec("a", 2))
			s.cutOnce(c, nil, func() error {
				view, err := cancelOne(s.store, t.Context(), ids.Execution, "why")
				if err == nil && view.State != task.ExecutionCanceled {
					err = fmt.Errorf("execution is %s", view.State)
				}
				return err
			})
			if n := query[int](s.stand, "SELECT count(*) FROM outbox_events WHERE event_type LIKE '%execution.v1.canceled'"); n != 1 {
				t.Errorf("%d events of the cancel, want 1", n)
			}
		})
	})
}

// Rule 10. Caught: a registration that supersedes its own session after an unknown commit, or
// fails on it when another process took the name meanwhile.
func TestRepeats_LostCommitOfARegistration(t *testing.T) {
	for _, superseded := range []bool{false, true} {
		t.Run(fmt.Sprintf("superseded meanwhile %v", superseded), func(t *testing.T) {
			cuts(t, func(t *testing.T, s *cutStand, c cutting) {
				var other worker
				meanwhile := func() {
					if superseded {
						other = s.direct.register("w", "warm", 1)
					}
				}
				mine := uuid.New()
				reg := scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"warm"}, Slots: 3, RequestID: "r"}
				s.cutOnce(c, meanwhile, func() error {
					got, err := s.store.Register(t.Context(), reg, uuid.New(), mine)
					if err == nil && got.SessionID != mine {
						err = fmt.Errorf("session is %s, want %s", got.SessionID, mine)
					}
					return err
				})
				current := query[uuid.UUID](s.stand, "SELECT session_id FROM workers WHERE name = 'w'")
				want := mine
				if superseded && c == cutAnswer {
					want = other.SessionID // ours came first
				}
				if current != want {
					t.Errorf("the current session is %s, mine %s, the other %s", current, mine, other.SessionID)
				}
				if n := query[int](s.stand, "SELECT count(*) FROM sessions WHERE id = $1", mine); n != 1 {
					t.Errorf("%d sessions, want 1", n)
				}
			})
		})
	}
}

// Rule 10. Caught: a deregistration that answers NOT_FOUND to itself.
func TestRepeats_LostCommitOfADeregistration(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		w := s.direct.register("w", "warm", 3)
		s.cutOnce(c, nil, func() error {
			_, err := s.store.Deregister(t.Context(), w.WorkerID, w.SessionID, false)
			return err
		})
		if n := query[int](s.stand, "SELECT count(*) FROM sessions WHERE id = $1 AND end_reason = 'deregistered'", w.SessionID); n != 1 {
			t.Errorf("the session has not ended")
		}
		if _, err := s.store.Deregister(t.Context(), w.WorkerID, w.SessionID, false); err == nil {
			t.Errorf("a session that is over was deregistered again")
		}
	})
}

// Rule 10. Caught: grants that are handed back twice, and end an attempt that is not theirs.
func TestRepeats_LostCommitOfAReturnAndAReplay(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.direct.enqueue(spec("a", 1))
		w := s.direct.register("w", "a", 5)
		l := s.direct.leaseOne(w, time.Minute)
		grants := []scheduler.Undelivered{{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Delivery: l.Delivery}}
		s.cutOnce(c, nil, func() error { return s.store.Return(t.Context(), grants) })
		if state := query[string](s.stand, "SELECT state FROM attempts"); state != "RELEASED" {
			t.Errorf("attempt is %s", state)
		}
		next := s.direct.leaseOne(w, time.Minute)
		if err := s.store.Return(t.Context(), grants); err != nil || query[int](s.stand, "SELECT count(*) FROM leases") != 1 {
			t.Errorf("a second hand-back: %v", err)
		}
		// A replay raises the delivery: what was delivered before cannot be handed back any more.
		views, err := s.store.Replay(t.Context(), []uuid.UUID{next.AttemptID})
		if err != nil || len(views) != 1 || views[0].Delivery != next.Delivery+1 {
			t.Fatalf("replay: %v, %+v", err, views)
		}
		stale := []scheduler.Undelivered{{AttemptID: next.AttemptID, LeaseVersion: next.LeaseVersion, Delivery: next.Delivery}}
		if err := s.store.Return(t.Context(), stale); err != nil || query[int](s.stand, "SELECT count(*) FROM leases") != 1 {
			t.Errorf("a stale delivery was handed back: %v", err)
		}
	})
}

// Rule 10. Somebody inserts under a key without having locked it (an older replica, a hand): the one
// that waited for it finds it, and nothing of its own stays. Caught: no second try.
func TestRepeats_AKeyThatWasNotLocked(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	first := newExecution(spec("a", 1, func(e *task.ExecutionSpec) { e.IdempotencyKey = "k" }))
	if results, err := s.store.Enqueue(t.Context(), []scheduler.NewExecution{first}, false, false); err != nil || results[0].Err != nil {
		t.Fatalf("enqueue: %v %v", err, results)
	}
	s.exec("UPDATE executions SET idempotency_key = 'elsewhere'")
	tx, err := s.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "UPDATE executions SET idempotency_key = 'k'"); err != nil {
		t.Fatal(err)
	}
	again := newExecution(first.Spec)
	var results []scheduler.Result[scheduler.Enqueued]
	done := async(func() (err error) {
		results, err = s.store.Enqueue(t.Context(), []scheduler.NewExecution{again, newExecution(spec("a", 1))}, false, false)
		return err
	})
	s.eventually("an insert that waits", func() bool {
		return query[int](s, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%InsertExecutions%'") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Err != nil || r.Value.Created || r.Value.Execution.ID != first.IDs.Execution {
		t.Errorf("the same key: %+v", r)
	}
	if r := results[1]; r.Err != nil || !r.Value.Created {
		t.Errorf("its neighbour: %+v", r)
	}
	if n := query[int](s, "SELECT count(*) FROM executions"); n != 2 {
		t.Errorf("%d executions, want 2", n)
	}
	if n := query[int](s, "SELECT count(*) FROM steps WHERE execution_id NOT IN (SELECT id FROM executions)"); n != 0 {
		t.Errorf("%d steps of no execution", n)
	}
}
