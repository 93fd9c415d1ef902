package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Rule 5, for what settles and removes. While executions run, relays publish, fail and give up,
// operators redrive and skip by id and by filter, and retention removes what ended, what died and
// who left, through two replicas: no deadlock, no error, and at the end no event is left that
// nobody would ever look at, and nothing of what is gone. Caught: heads locked before executions
// or out of order; a head that is moved under a relay's claim, or not moved at all; a purge that
// waits for a lock, or that removes what it did not lock.
func TestLockOrder_EventsMixture(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	m := &mixture{
		stand: s, stores: []*postgres.Store{s.store, s.open(postgres.Config{Events: task.AllEventTypes()})},
		purged: map[scheduler.PurgeKind]int{},
	}
	for _, name := range []string{"w1", "w2"} {
		m.workers = append(m.workers, s.register(name, "a", 20))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := []func(context.Context, *postgres.Store) error{
		m.enqueueSome, m.dispatchSome, m.reportSome, m.cancelOne, m.sweep, m.relay, m.relay, m.operate, m.listSome, m.purge, m.registerOne,
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := pick(calls)(context.WithoutCancel(ctx), m.stores[i%2]); err != nil && !isAnswer(err) {
					t.Errorf("a caller got %v", err)
					return
				}
			}
		})
	}
	lacks := m.mixed(time.Duration(rounds(4, 60)) * time.Second)
	cancel()
	wg.Wait()
	if lacks != "" {
		t.Errorf("the mixture tries little: %s", lacks)
	}
	s.sane("sequence with gaps") // dropped events leave some
	s.leftovers()
	for what, statement := range map[string]string{
		"heads that lead to nothing unsettled": `SELECT count(*) FROM outbox_heads h WHERE NOT EXISTS (SELECT FROM outbox_events e
			WHERE e.aggregate_id = h.aggregate_id AND e.sequence = h.next_sequence AND e.status NOT IN ('PUBLISHED', 'SKIPPED'))`,
		"unsettled events before their head": `SELECT count(*) FROM outbox_events e LEFT JOIN outbox_heads h ON h.aggregate_id = e.aggregate_id
			WHERE e.status NOT IN ('PUBLISHED', 'SKIPPED') AND (h.next_sequence IS NULL OR e.sequence < h.next_sequence)`,
		"dead events whose head is due": `SELECT count(*) FROM outbox_heads h JOIN outbox_events e ON e.aggregate_id = h.aggregate_id
			AND e.sequence = h.next_sequence WHERE (e.status = 'DEAD') <> (h.available_at = 'infinity')`,
		"FAILED or DEAD events that do not lead": `SELECT count(*) FROM outbox_heads h JOIN outbox_events e ON e.aggregate_id = h.aggregate_id
			AND e.sequence > h.next_sequence WHERE e.status IN ('FAILED', 'DEAD')`,
	} {
		if n := query[int](s, statement); n != 0 {
			t.Errorf("%s: %d", what, n)
		}
	}
	s.noDeadlocks(m.stores[1])
}

// mixed lets the mixture go on for at least so long, and until everything in it has happened
// often, which on a busy machine takes longer. It tells what has not when it has waited long enough.
func (m *mixture) mixed(least time.Duration) (lacks string) {
	m.t.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		lacks = ""
		for what, statement := range map[string]string{
			"published": `SELECT count(*) - 50 FROM outbox_events WHERE status = 'PUBLISHED'`,
			"skipped":   `SELECT count(*) - 50 FROM outbox_events WHERE status = 'SKIPPED'`,
			"redriven":  `SELECT count(*) - 10 FROM timeline_entries WHERE milestone LIKE '%/outbox/redriven/%'`,
		} {
			if n := query[int](m.stand, statement); n < 0 {
				lacks += fmt.Sprintf("%d more events %s; ", -n, what)
			}
		}
		m.mu.Lock()
		if m.purged[scheduler.PurgeExecutions] < 20 || m.purged[scheduler.PurgeDeadEvents] == 0 {
			lacks += fmt.Sprintf("retention removed only %v", m.purged)
		}
		purged := maps.Clone(m.purged)
		m.mu.Unlock()
		took := time.Since(began)
		if took > least && lacks == "" || took > least+time.Minute || m.t.Failed() {
			m.t.Logf("after %s; retention removed %v", took, purged)
			return lacks
		}
	}
}

// relay claims, and settles as if a sink had taken some and failed at one. Now and then it
// takes so long that its claim is over.
func (m *mixture) relay(ctx context.Context, store *postgres.Store) error {
	expires := time.Minute
	if rand.IntN(5) == 0 {
		expires = time.Millisecond
	}
	runs, err := store.Outbox().Claim(ctx, outbox.Claim{ID: uuid.New(), Heads: 10, Events: 5, Expires: expires})
	if err != nil || len(runs) == 0 {
		return err
	}
	var results []outbox.RunResult
	for _, run := range runs {
		result := outbox.RunResult{Run: run, Published: rand.IntN(len(run.Events) + 1)}
		if result.Published < len(run.Events) {
			result.Failure = &outbox.Failure{Dead: rand.IntN(2) == 0, Reason: "no", Again: 5 * time.Millisecond}
		}
		results = append(results, result)
	}
	_, err = store.Outbox().Settle(ctx, results)
	return err
}

// operate redrives or skips, by filter or by the ids of some events.
func (m *mixture) operate(ctx context.Context, store *postgres.Store) error {
	o := outbox.NewOperator(store.Outbox(), nil)
	action, s := outbox.Redrive, all(outbox.Dead)
	if rand.IntN(3) == 0 {
		action, s = outbox.Skip, all(pick([]outbox.Status{outbox.Pending, outbox.Failed, outbox.Dead}))
		s.CreatedBefore = time.Now().Add(-time.Duration(rand.IntN(3000)) * time.Millisecond)
	}
	if rand.IntN(2) == 0 {
		rows, err := m.sql.Query(ctx, "SELECT id FROM outbox_events WHERE status IN ('PENDING', 'FAILED', 'DEAD') ORDER BY random() LIMIT 5")
		if err != nil {
			return err
		}
		s = outbox.Selection{}
		for rows.Next() {
			var id uuid.UUID
			if err := rows.Scan(&id); err != nil {
				return err
			}
			s.IDs = append(s.IDs, id)
		}
		if err := rows.Err(); err != nil || len(s.IDs) == 0 {
			return err
		}
	}
	_, err := o.Change(ctx, action, s, "mixture")
	return err
}

// purge removes some of each kind, of an age within the test.
func (m *mixture) purge(ctx context.Context, store *postgres.Store) error {
	if rand.IntN(4) > 0 {
		return nil
	}
	groups, err := store.EndedGroups(ctx)
	if err != nil {
		return err
	}
	batches := []scheduler.PurgeBatch{
		{Kind: scheduler.PurgeDeadEvents, Age: 200 * time.Millisecond}, {Kind: scheduler.PurgeWorkers, Age: 2 * time.Second},
	}
	for _, g := range groups {
		batches = append(batches, scheduler.PurgeBatch{Kind: scheduler.PurgeExecutions, Group: g, Age: time.Second, Limit: 1 + rand.IntN(20)})
	}
	for _, b := range batches {
		p, err := store.Purge(ctx, b)
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.purged[b.Kind] += p.Removed
		m.mu.Unlock()
	}
	return nil
}

func (m *mixture) listSome(ctx context.Context, store *postgres.Store) error {
	_, listErr := store.Outbox().ListEvents(ctx, outbox.ListQuery{Namespace: "default", Statuses: []outbox.Status{outbox.Dead}, Limit: 20})
	_, allErr := store.Outbox().ListEvents(ctx, outbox.ListQuery{Namespace: "default", Limit: 20, Payload: true})
	return errors.Join(listErr, allErr)
}
