package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Rule 5, for what operators do. While executions run, and retention removes what ended, they are
// tried again, terminated, their leases revoked, their workers drained and their capability
// paused, through two replicas: no deadlock, no error that is not an answer, and every graph holds
// what its rules say, whatever round it is in. Caught: a new round that counts its steps wrongly.
func TestLockOrder_OperatorsMixture(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	m := &mixture{
		stand: s, stores: []*postgres.Store{s.store, s.open(postgres.Config{Events: task.AllEventTypes()})},
		purged: map[scheduler.PurgeKind]int{},
	}
	for _, name := range []string{"w1", "w2", "w3"} {
		m.workers = append(m.workers, s.register(name, "a", 8))
	}
	o := &operatorsMixture{mixture: m}
	least := time.Now().Add(time.Duration(rounds(6, 120)) * time.Second)
	most := least.Add(2 * time.Minute) // a machine that is slow needs longer for enough of each
	calls := []func(context.Context, *postgres.Store) error{
		m.enqueueSome, m.dispatchSome, m.dispatchSome, m.reportSome, m.reportSome, m.reportAlone, m.renewSome, m.returnOne,
		m.cancelOne, m.sweep, m.relay, m.purge, m.registerOne, o.retryOne, o.retryOne, o.terminateOne, o.revokeOne, o.steer,
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for time.Now().Before(least) || !o.enough() && time.Now().Before(most) {
				if err := pick(calls)(context.Background(), m.stores[i%2]); err != nil && !isAnswer(err) {
					t.Errorf("a caller got %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.sane("sequence with gaps") // dropped events leave some
	s.leftovers()
	s.graphsHold()
	if t.Logf("%d new rounds, %d terminations, %d leases revoked, purged %v", o.retried.Load(), o.terminated.Load(), o.revoked.Load(), m.purged); !o.enough() {
		t.Error("the mixture tries little")
	}
	s.noDeadlocks(m.stores[1])
}

// Rule 5. Who takes leases away locks their execution first: whoever holds that gets at its leases.
// Caught: Terminate or RevokeLease that locks leases before executions.
func TestLockOrder_OperatorsTakeTheExecutionFirst(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*postgres.Store, scheduler.LeaseView) error{
		"terminate": func(store *postgres.Store, l scheduler.LeaseView) error {
			_, err := store.Terminate(context.Background(), l.ExecutionID, "")
			return err
		},
		"revoke": func(store *postgres.Store, l scheduler.LeaseView) error {
			_, err := store.RevokeLease(context.Background(), scheduler.Revocation{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.enqueue(spec("a", 1))
			l := s.leaseOne(s.register("w", "a", 1), time.Hour)
			h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", l.ExecutionID)
			done := async(func() error { return call(s.store, l) })
			s.waiting(1)
			h.exec("SELECT FROM leases WHERE attempt_id = $1 FOR UPDATE NOWAIT", l.AttemptID)
			h.release()
			if err := <-done; err != nil && !isUnavailable(err) { // a machine too slow for lock_timeout shows nothing
				t.Fatal(err)
			}
			s.sane()
		})
	}
}

// operatorsMixture counts what operators have done.
type operatorsMixture struct {
	*mixture
	retried, terminated, revoked atomic.Int64
}

func (m *operatorsMixture) enough() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(m.retried.Load(), m.terminated.Load(), m.revoked.Load()) >= 5 && m.purged[scheduler.PurgeExecutions] > 0
}

// done counts a call that was OK.
func done(n *atomic.Int64, err error) error {
	if err == nil {
		n.Add(1)
	}
	return err
}

// graphsHold checks steps against their executions, their parents and their attempts.
func (s *stand) graphsHold() {
	s.t.Helper()
	for what, statement := range map[string]string{
		"open steps counted wrongly": `SELECT count(*) FROM executions e WHERE open_steps <>
			(SELECT count(*) FROM steps s WHERE s.execution_id = e.id AND s.state IN ('BLOCKED', 'READY'))`,
		"unsuccessful steps counted wrongly": `SELECT count(*) FROM executions e WHERE unsuccessful_steps <>
			(SELECT count(*) FROM steps s WHERE s.execution_id = e.id AND s.state IN ('FAILED', 'CANCELED', 'SKIPPED'))`,
		"blocked steps that count their parents wrongly": `SELECT count(*) FROM steps s WHERE s.state = 'BLOCKED' AND s.waiting_parents <>
			(SELECT count(*) FROM step_edges g JOIN steps p ON p.id = g.parent_id WHERE g.child_id = s.id AND p.state <> 'SUCCEEDED')`,
		"steps that began before their parents succeeded": `SELECT count(*) FROM attempts a JOIN step_edges g ON g.child_id = a.step_id
			WHERE NOT EXISTS (SELECT FROM attempts p WHERE p.step_id = g.parent_id AND p.state = 'SUCCEEDED' AND p.end_entry < a.lease_entry)`,
		"steps with an attempt after their success": `SELECT count(*) FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number > a.number
			WHERE a.state = 'SUCCEEDED'`,
		"rounds of a step with too many attempts": `SELECT count(*) FROM (SELECT FROM attempts
			WHERE state IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'LOST') GROUP BY step_id, round HAVING count(*) > 3) x`,
	} {
		if n := query[int](s, statement); n != 0 {
			s.t.Errorf("%s: %d", what, n)
		}
	}
}

func (m *operatorsMixture) execution() uuid.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.execs) == 0 {
		return uuid.Nil
	}
	return pick(m.execs)
}

func (m *operatorsMixture) retryOne(ctx context.Context, store *postgres.Store) error {
	_, err := store.Retry(ctx, scheduler.Retry{Execution: m.execution(), RequestID: uuid.NewString(), Reason: "mixture"})
	return done(&m.retried, err)
}

func (m *operatorsMixture) terminateOne(ctx context.Context, store *postgres.Store) error {
	_, err := store.Terminate(ctx, m.execution(), "mixture")
	return done(&m.terminated, err)
}

func (m *operatorsMixture) revokeOne(ctx context.Context, store *postgres.Store) error {
	for _, l := range m.some(1) {
		_, err := store.RevokeLease(ctx, scheduler.Revocation{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Reason: "mixture"})
		return done(&m.revoked, err)
	}
	return nil
}

// steer drains and pauses, and takes that back.
func (m *operatorsMixture) steer(ctx context.Context, store *postgres.Store) error {
	if rand.IntN(4) > 0 {
		return nil
	}
	key := scheduler.CapabilityKey{Namespace: "default", Name: "a"}
	d := scheduler.Drain{Namespace: "default", Kind: scheduler.DrainWorker, Value: m.worker().WorkerID.String(), Draining: true}
	_, drainErr := store.SetDrain(ctx, d)
	_, pauseErr := store.Pause(ctx, key, "mixture")
	_, resumeErr := store.Resume(ctx, key)
	d.Draining = false
	_, undrainErr := store.SetDrain(ctx, d)
	for _, err := range []error{drainErr, pauseErr, resumeErr, undrainErr} {
		if err != nil && !isAnswer(err) {
			return err
		}
	}
	return errors.Join(drainErr, pauseErr, resumeErr, undrainErr)
}
