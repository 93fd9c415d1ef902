package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// mixture is random calls by several replicas on few executions and workers.
type mixture struct {
	*stand
	stores []*postgres.Store

	mu      sync.Mutex
	workers []worker
	execs   []uuid.UUID
	leases  []heldLease
	purged  map[scheduler.PurgeKind]int
}

type heldLease struct {
	scheduler.LeaseView
	w worker
}

// Rule 5. Whatever is called at the same time, PostgreSQL sees no deadlock, nothing is retried,
// and no caller gets an error that is not an answer. Caught: any statement that locks out of
// order (LockExecutions, LockLeases without ORDER BY; report that locks leases before
// executions; a sweep that waits).
func TestLockOrder_RandomMixture(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	m := &mixture{stand: s, stores: []*postgres.Store{s.store, s.open(postgres.Config{Events: task.AllEventTypes()})}}
	for _, name := range []string{"w1", "w2", "w3", "w4"} {
		m.workers = append(m.workers, s.register(name, "a", 8))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds(12, 120))*time.Second)
	defer cancel()
	calls := []func(context.Context, *postgres.Store) error{
		m.enqueueSome, m.dispatchSome, m.dispatchSome, m.reportSome, m.reportSome, m.reportAlone, m.renewSome, m.renewSome,
		m.cancelOne, m.sweep, m.deregisterOne, m.registerOne, m.returnOne,
	}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := pick(calls)(context.WithoutCancel(ctx), m.stores[i%2]); err != nil && !isAnswer(err) {
					t.Errorf("a caller got %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.sane()
	s.eventsMatch()
	s.told(&s.ear)
	if n := query[int](s, "SELECT count(*) FROM attempts"); n < 50 {
		t.Errorf("only %d attempts: the mixture tries nothing", n)
	}
	s.noDeadlocks(m.stores[1])
}

// Rule 5. The credit after an outage locks every lease, while cancels lock those of their
// executions: both in order of id. Caught: LockLeasesWaiting or LockAllLeases in another order.
func TestLockOrder_CreditMeetsCancel(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 1000)
	for range rounds(5, 100) {
		ids := s.enqueue(spec("a", 20))
		if n := len(s.lease(w, 20, time.Minute)); n != 20 {
			t.Fatalf("%d leases", n)
		}
		s.exec("UPDATE sweeps SET swept_at = now() - interval '1 hour'")
		// Both come as far as the lease in the middle, and go on from there at the same time.
		h := s.hold(`SELECT FROM leases WHERE attempt_id =
			(SELECT attempt_id FROM leases ORDER BY attempt_id OFFSET 10 LIMIT 1) FOR UPDATE`)
		canceled := async(func() error { _, err := cancelOne(s.store, context.Background(), ids.Execution, ""); return err })
		s.waiting(1)
		credited := async(func() error { _, err := s.store.BeginSweep(context.Background(), time.Second); return err })
		s.waiting(2)
		h.release()
		for _, err := range []error{<-canceled, <-credited} {
			if err != nil && !isUnavailable(err) { // a machine too slow for lock_timeout shows nothing
				t.Fatal(err)
			}
		}
		s.exec("TRUNCATE leases, attempts, scheduling_requests, steps, executions, outbox_events, outbox_heads, timeline_entries")
	}
	s.noDeadlocks()
}

// isAnswer tells whether an error is one that the service gives on purpose.
func isAnswer(err error) bool {
	var refused *scheduler.RefusedError
	var missing *scheduler.NotFoundError
	return errors.As(err, &refused) || errors.As(err, &missing) || errors.Is(err, scheduler.ErrBusy)
}

func (m *mixture) some(n int) []heldLease {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := slices.Clone(m.leases)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}

func (m *mixture) worker() worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return pick(m.workers)
}

func (m *mixture) enqueueSome(ctx context.Context, store *postgres.Store) error {
	m.mu.Lock()
	m.execs = m.execs[max(len(m.execs)-12, 0):] // few: so that calls meet
	round := rand.IntN(1 << 30)
	m.mu.Unlock()
	batch := keyedBatch(round/(1<<10)%40, 5)
	for range 3 {
		batch = append(batch, newExecution(spec("a", 5, func(e *task.ExecutionSpec) {
			e.CancelGrace, e.FailFast, e.Timeout = 50*time.Millisecond, rand.IntN(2) == 0, time.Duration(rand.IntN(3))*time.Second
			e.Steps[3].DependsOn, e.Steps[4].DependsOn = []string{e.Steps[0].Name, e.Steps[1].Name}, []string{e.Steps[3].Name, e.Steps[2].Name}
		})))
	}
	rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
	results, err := store.Enqueue(ctx, batch, false, true)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, r := range results {
		if r.Value.Created {
			m.execs = append(m.execs, batch[i].IDs.Execution)
		}
	}
	return errors.Join(err, firstErr(results))
}

func (m *mixture) dispatchSome(ctx context.Context, store *postgres.Store) error {
	w, claim := m.worker(), uuid.New()
	claimed, err := store.Claim(ctx, scheduler.ClaimCommand{ClaimID: claim, Offers: []task.Offer{w.offer(6)}, Limit: 6, Expires: 100 * time.Millisecond})
	if err != nil || len(claimed.Requests) == 0 {
		return err
	}
	c := assign(w, claim, claimed.Requests, time.Duration(50+rand.IntN(400))*time.Millisecond)
	rand.Shuffle(len(c.Items), func(i, j int) { c.Items[i], c.Items[j] = c.Items[j], c.Items[i] })
	done, err := store.Dispatch(ctx, c)
	if err != nil {
		return err
	}
	var granted []uuid.UUID
	for id := range done.Granted {
		granted = append(granted, id)
	}
	views, err := store.Contents(ctx, granted)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range views {
		m.leases = append(m.leases, heldLease{views[i], w})
	}
	m.leases = m.leases[max(len(m.leases)-40, 0):]
	return store.Free(ctx, claim, []uuid.UUID{c.Items[0].StepID})
}

func (m *mixture) reportSome(ctx context.Context, store *postgres.Store) error {
	var batch []scheduler.Report
	for _, l := range m.some(6) {
		switch r := success(l.LeaseView); rand.IntN(4) {
		case 0:
			batch = append(batch, failure(l.LeaseView))
		case 1:
			r.Outcome.State = task.AttemptReleased
			batch = append(batch, r)
		default:
			batch = append(batch, r)
		}
	}
	if len(batch) == 0 {
		return nil
	}
	results, err := store.Report(ctx, batch, false)
	return unexpected(err, results)
}

// reportAlone reports one attempt and waits for its locks, as an item does that was busy long.
func (m *mixture) reportAlone(ctx context.Context, store *postgres.Store) error {
	some := m.some(1)
	if len(some) == 0 {
		return nil
	}
	results, err := store.Report(ctx, []scheduler.Report{failure(some[0].LeaseView)}, true)
	return unexpected(err, results)
}

func (m *mixture) renewSome(ctx context.Context, store *postgres.Store) error {
	var batch []scheduler.Renewal
	progress := 0.5
	for _, l := range m.some(10) {
		r := renewal(l.LeaseView, l.w, time.Duration(rand.IntN(300))*time.Millisecond)
		r.Progress, r.Checkpoint = &progress, &task.Payload{JSON: true, Body: []byte("1")}
		batch = append(batch, r)
	}
	if len(batch) == 0 {
		return nil
	}
	results, err := store.Renew(ctx, batch, false)
	return unexpected(err, results)
}

// unexpected is an error that is no answer, of any item.
func unexpected[T any](err error, results []scheduler.Result[T]) error {
	for _, r := range results {
		if r.Err != nil && !isAnswer(r.Err) {
			return r.Err
		}
	}
	return err
}

func (m *mixture) cancelOne(ctx context.Context, store *postgres.Store) error {
	m.mu.Lock()
	if len(m.execs) == 0 || rand.IntN(3) > 0 {
		m.mu.Unlock()
		return nil
	}
	id := pick(m.execs)
	m.mu.Unlock()
	_, err := cancelOne(store, ctx, id, "test")
	return err
}

func (m *mixture) sweep(ctx context.Context, store *postgres.Store) error {
	start, err := store.BeginSweep(ctx, 10*time.Millisecond)
	if err != nil || !start.Mine {
		return err
	}
	if _, err := store.ExpireLeases(ctx, scheduler.SweepBatch{}); err != nil {
		return err
	}
	_, err = store.FireTimers(ctx, scheduler.SweepBatch{})
	return err
}

func (m *mixture) deregisterOne(ctx context.Context, store *postgres.Store) error {
	if rand.IntN(5) > 0 {
		return nil
	}
	w := m.worker()
	_, err := store.Deregister(ctx, w.WorkerID, w.SessionID, rand.IntN(2) == 0)
	return err
}

func (m *mixture) registerOne(ctx context.Context, store *postgres.Store) error {
	w := m.worker()
	session, err := store.Register(ctx, w.reg, uuid.New(), uuid.New())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.workers {
		if m.workers[i].WorkerID == session.WorkerID {
			m.workers[i].Session = session
		}
	}
	return nil
}

func (m *mixture) returnOne(ctx context.Context, store *postgres.Store) error {
	var grants []scheduler.Undelivered
	for _, l := range m.some(2) {
		grants = append(grants, scheduler.Undelivered{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Delivery: l.Delivery})
	}
	if len(grants) == 0 {
		return nil
	}
	return store.Return(ctx, grants)
}
