package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Rule 4. Caught: a report that locks no execution, or waits for it (LockExecutionsWaiting)
// where it should leave the item, or fails its neighbours with it.
func TestGate_HeldExecutionIsBusyAndLaterDone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	held, free := s.enqueue(spec("a", 1)), s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	leases := s.lease(w, 2, time.Minute)
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", held.Execution)
	results, err := s.store.Report(t.Context(), []scheduler.Report{success(leases[0]), success(leases[1])}, false)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range leases {
		busy := errors.Is(results[i].Err, scheduler.ErrBusy)
		if busy != (l.ExecutionID == held.Execution) || !busy && results[i].Err != nil {
			t.Errorf("report on execution %s (held %s, free %s): %v", l.ExecutionID, held.Execution, free.Execution, results[i].Err)
		}
	}
	h.release()
	for _, l := range leases {
		if got, err := s.report(success(l)); err != nil || got.Replayed != (l.ExecutionID == free.Execution) {
			t.Errorf("once it is free: %v, %+v", err, got)
		}
	}
	s.sane()
}

// Rule 4, dispatch and sweep. Caught: either that does not lock the execution, or waits.
func TestGate_HeldExecutionIsLeftByDispatchAndSweep(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 2))
	w := s.register("w", "a", 5)
	s.leaseOne(w, time.Minute)
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	claim, claimed := s.claim(w, 1)
	h := s.hold("SELECT FROM executions FOR NO KEY UPDATE")
	command := assign(w, claim, claimed.Requests, time.Minute)
	done, err := s.store.Dispatch(t.Context(), command)
	if err != nil || len(done.Granted)+done.Dropped != 0 {
		t.Fatalf("dispatch: %v, %+v", err, done)
	}
	swept, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{})
	if err != nil || swept.Done != 0 || len(swept.Missed) != 1 || swept.Missed[0] != ids.Execution {
		t.Fatalf("sweep: %v, %+v", err, swept)
	}
	h.release()
	if swept, err = s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{}); err != nil || swept.Done != 1 {
		t.Fatalf("sweep once it is free: %v, %+v", err, swept)
	}
	if done, err = s.store.Dispatch(t.Context(), command); err != nil || len(done.Granted) != 1 {
		t.Fatalf("dispatch once it is free: %v, %+v", err, done)
	}
	s.sane()
}

// Rule 4. Parents that are reported at the same moment by several replicas release their child
// exactly once. Caught: reports that do not lock the execution, or read the child before it.
func TestGate_ConcurrentParentsReleaseTheirChildOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	stores := []*postgres.Store{s.store, s.open(postgres.Config{Events: task.AllEventTypes()})}
	w := s.register("w", "a", 1000)
	const parents = 4
	for range rounds(25, 500) {
		s.enqueue(spec("a", parents+1, func(e *task.ExecutionSpec) {
			child := &e.Steps[parents]
			for _, p := range e.Steps[:parents] {
				child.DependsOn = append(child.DependsOn, p.Name)
			}
		}))
		leases := s.lease(w, parents, time.Minute)
		s.reportTogether(stores, leases)
		child := s.lease(w, parents, time.Minute)
		if len(child) != 1 || child[0].AttemptNumber != 1 {
			t.Fatalf("after the parents %d steps were leased, want the child alone", len(child))
		}
		if _, err := s.report(success(child[0])); err != nil {
			t.Fatal(err)
		}
	}
	s.sane()
}

// reportTogether reports successes at the same moment, each until it is not busy.
func (s *stand) reportTogether(stores []*postgres.Store, leases []scheduler.LeaseView) {
	s.t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, l := range leases {
		wg.Go(func() {
			<-start
			for {
				results, err := stores[i%len(stores)].Report(context.Background(), []scheduler.Report{success(l)}, false)
				if err == nil && errors.Is(results[0].Err, scheduler.ErrBusy) {
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
					continue
				}
				if err = errors.Join(err, firstErr(results)); err != nil {
					s.t.Errorf("report: %v", err)
				}
				return
			}
		})
	}
	close(start)
	wg.Wait()
}

// Rule 5. What a dispatcher holds is not waited for: a cancel and a report go on. Caught:
// DropRequests without SKIP LOCKED, InsertRequests without ON CONFLICT DO NOTHING.
func TestLockOrder_NobodyWaitsForADispatchersRequests(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	first := s.enqueue(spec("a", 2))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, time.Minute)
	h := s.hold("SELECT FROM scheduling_requests FOR UPDATE")
	if got, err := s.report(failure(l)); err != nil || got.StepState != task.StepReady {
		t.Fatalf("report: %v, %+v", err, got)
	}
	if _, err := cancelOne(s.store, t.Context(), first.Execution, ""); err != nil {
		t.Fatalf("cancel: %v", err)
	}
	h.release()
	// The one that was in a dispatcher's hands is dropped there.
	claim, claimed := s.claim(w, 5)
	if len(claimed.Requests) != 1 {
		t.Fatalf("claimed %d requests, want the one that was held", len(claimed.Requests))
	}
	done, err := s.store.Dispatch(t.Context(), assign(w, claim, claimed.Requests, time.Minute))
	if err != nil || done.Dropped != 1 || len(done.Granted) != 0 {
		t.Fatalf("dispatch of a canceled step: %v, %+v", err, done)
	}
	if n := query[int](s, "SELECT count(*) FROM scheduling_requests"); n != 0 {
		t.Fatalf("%d requests are left", n)
	}
	s.sane()
}

// Rule 5. Two batches with the same keys in different order never deadlock. Caught:
// InsertExecutions without its ORDER BY.
func TestLockOrder_SameKeysInDifferentOrder(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for round := range rounds(40, 1000) {
		var wg sync.WaitGroup
		start := make(chan struct{})
		var created sync.Map
		for range 2 {
			batch := keyedBatch(round, 30)
			rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			wg.Go(func() {
				<-start
				results, err := s.store.Enqueue(context.Background(), batch, false, true)
				if err = errors.Join(err, firstErr(results)); err != nil {
					t.Errorf("enqueue: %v", err)
					return
				}
				for i, r := range results {
					if !r.Value.Created {
						continue
					}
					if _, twice := created.LoadOrStore(batch[i].Spec.IdempotencyKey, true); twice {
						t.Errorf("key %s was created twice", batch[i].Spec.IdempotencyKey)
					}
				}
			})
		}
		close(start)
		wg.Wait()
	}
	s.noDeadlocks()
}

func keyedBatch(round, n int) []scheduler.NewExecution {
	batch := make([]scheduler.NewExecution, n)
	for i := range batch {
		e := &task.ExecutionSpec{
			Namespace: "default", Name: "keyed", IdempotencyKey: strconv.Itoa(round) + "-" + strconv.Itoa(i),
			Steps: []task.StepSpec{{Name: "s", Capability: "a", Retry: task.DefaultRetryPolicy(), StartToClose: time.Hour}},
		}
		batch[i] = newExecution(e)
	}
	return batch
}

// noDeadlocks fails if PostgreSQL has seen a deadlock in this database, or the store retried.
func (s *stand) noDeadlocks(stores ...*postgres.Store) {
	s.t.Helper()
	s.store.Close() // sessions hand their statistics in when they end
	for _, store := range stores {
		store.Close()
	}
	s.eventually("the sessions' end", func() bool {
		return query[int](s, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold'") == 0
	})
	if n := query[int](s, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		s.t.Errorf("PostgreSQL has seen %d deadlocks", n)
	}
	if n := s.ear.failed(postgres.FailedConflict); n != 0 {
		s.t.Errorf("%d transactions were retried", n)
	}
}

// Rule 5. Deregistering by force ends the leases of the sessions that are over, never those of
// a session that the worker has opened since. Caught: loseLeasesOf of all the worker's leases.
func TestDeregister_LeavesTheNextSessionAlone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	held := s.enqueue(spec("a", 1))
	old := s.register("w", "a", 5)
	s.leaseOne(old, time.Minute)
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", held.Execution)
	ended := 0
	deregistered := async(func() error {
		var err error
		ended, err = s.store.Deregister(t.Context(), old.WorkerID, old.SessionID, true)
		return err
	})
	s.waiting(1)
	s.enqueue(spec("a", 1))
	fresh := s.register("w", "a", 5)
	l := s.leaseOne(fresh, time.Minute)
	h.release()
	if err := <-deregistered; err != nil || ended != 1 {
		t.Fatalf("deregister: %v, %d leases ended", err, ended)
	}
	if _, err := s.renew(renewal(l, fresh, time.Minute)); err != nil {
		t.Fatalf("the next session lost its lease: %v", err)
	}
	s.sane()
}

// pick is something random of a list.
func pick[T any](list []T) T { return list[rand.IntN(len(list))] }
