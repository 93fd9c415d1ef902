package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var _ scheduler.RetentionStore = (*Store)(nil)

// Bounds of one batch. What a transaction removes is bounded by rows, as far as these stand in
// the executions; one that is larger by itself goes alone, some rows with each statement.
const (
	purgeLooked = 1_000  // rows that are looked at
	purgeRows   = 20_000 // of a transaction, about
	purgeAtOnce = 5_000  // rows that one statement deletes
	purgeSteps  = 500    // steps whose payloads one statement deletes: up to 3 MiB each
	purgeHeads  = 200
)

// HoldPurge takes or keeps the right to purge.
func (s *Store) HoldPurge(ctx context.Context, holder uuid.UUID, silence time.Duration) (bool, error) {
	n, err := s.reads.HoldPurge(ctx, dbsqlc.HoldPurgeParams{Holder: holder, Silence: interval(silence)})
	return n == 1, outwardOrNil(ctx, "hold the right to purge", err)
}

// EndedGroups lists how executions ended, in which namespaces.
func (s *Store) EndedGroups(ctx context.Context) ([]scheduler.EndedGroup, error) {
	rows, err := s.reads.EndedGroups(ctx)
	groups := make([]scheduler.EndedGroup, len(rows))
	for i, r := range rows {
		groups[i] = scheduler.EndedGroup(r)
	}
	return groups, outwardOrNil(ctx, "list groups of executions", err)
}

// Purge removes one batch of what is old enough.
func (s *Store) Purge(ctx context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	switch b.Kind {
	case scheduler.PurgeExecutions:
		return s.purgeExecutions(ctx, b)
	case scheduler.PurgeEvents:
		return s.purgeEvents(ctx, b)
	case scheduler.PurgeDeadEvents:
		return s.dropDeadEvents(ctx, b)
	case scheduler.PurgeWorkers:
		return s.purgeWorkers(ctx, b)
	default:
		return scheduler.Purged{}, fmt.Errorf("nothing of the kind %q can be purged", b.Kind)
	}
}

// purgeExecutions removes whole executions. Which those may be is looked up first, without a
// lock; then they are locked, then looked at anew.
func (s *Store) purgeExecutions(ctx context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	rows, err := s.reads.OldExecutions(ctx, dbsqlc.OldExecutionsParams{
		Namespace: b.Group.Namespace, Outcome: b.Group.Outcome, Age: interval(b.Age),
		AfterTime: instantAfter(b.After.At), AfterID: b.After.ID, Executions: purgeLooked,
	})
	if err != nil {
		return scheduler.Purged{}, outwardOrNil(ctx, "find old executions", err)
	}
	ids, p := pickOld(rows, b)
	if b.DryRun {
		p.Removed = len(ids)
	}
	if b.DryRun || len(ids) == 0 {
		return p, nil
	}
	err = s.tx(ctx, "purge executions", func(ctx context.Context, t *txn) error {
		var err error
		p.Removed, err = t.purgeExecutions(ctx, ids, b.Age)
		return err
	})
	return p, err
}

// pickOld chooses those that are due, up to the bounds of a transaction.
func pickOld(rows []dbsqlc.OldExecutionsRow, b scheduler.PurgeBatch) ([]uuid.UUID, scheduler.Purged) {
	p := scheduler.Purged{Next: b.After, More: len(rows) == purgeLooked}
	var ids []uuid.UUID
	weight := int64(0)
	for _, r := range rows {
		if r.Due {
			weight += 4*int64(r.StepCount) + r.Revision + r.Sequence // steps, edges, payloads; entries and attempts; events
			if len(ids) == b.Limit || weight > purgeRows && len(ids) > 0 {
				p.More = true
				break
			}
			ids = append(ids, r.ID)
		}
		p.Looked++
		p.Next = scheduler.PurgePosition{At: r.CreatedAt.Time.UTC(), ID: r.ID}
	}
	return ids, p
}

func (t *txn) purgeExecutions(ctx context.Context, ids []uuid.UUID, age time.Duration) (removed int, err error) {
	if t.again { // an earlier try may have removed them
		there, err := t.q.ExistingExecutions(ctx, ids)
		if err != nil {
			return 0, fmt.Errorf("find executions: %w", err)
		}
		removed = len(ids) - len(there)
	}
	locked, err := t.q.LockOldExecutions(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("lock executions: %w", err)
	}
	old, err := t.q.OldExecutionsNow(ctx, dbsqlc.OldExecutionsNowParams{Ids: locked, Age: interval(age)})
	if err != nil || len(old) == 0 {
		return removed, wrap("look at executions", err)
	}
	if err := t.purgeGraphs(ctx, old); err != nil {
		return 0, err
	}
	for what, purge := range map[string]func() (int64, error){
		"timeline": func() (int64, error) {
			return t.q.PurgeEntries(ctx, dbsqlc.PurgeEntriesParams{ExecutionIds: old, Batch: purgeAtOnce})
		},
		"events": func() (int64, error) {
			return t.q.PurgeEventsOf(ctx, dbsqlc.PurgeEventsOfParams{ExecutionIds: old, Batch: purgeAtOnce})
		},
		"timers": func() (int64, error) { return 0, t.q.DropTimers(ctx, old) },
	} {
		if err := purgeAll(what, purge); err != nil {
			return 0, err
		}
	}
	n, err := t.q.PurgeExecutions(ctx, old)
	if err == nil && int(n) != len(old) {
		return 0, fmt.Errorf("%w: %d of %d executions", errStale, n, len(old))
	}
	return removed + len(old), wrap("purge executions", err)
}

// purgeGraphs removes the steps of locked executions and all that belongs to them.
func (t *txn) purgeGraphs(ctx context.Context, executions []uuid.UUID) error {
	steps, err := t.q.StepIDsOf(ctx, executions)
	if err != nil {
		return fmt.Errorf("find steps: %w", err)
	}
	for chunk := range slices.Chunk(steps, purgeSteps) {
		if _, err := t.q.DropRequests(ctx, chunk); err != nil {
			return fmt.Errorf("purge requests: %w", err)
		}
		if err := t.q.PurgePayloads(ctx, chunk); err != nil {
			return fmt.Errorf("purge payloads: %w", err)
		}
		if err := purgeAll("attempts", func() (int64, error) {
			return t.q.PurgeAttempts(ctx, dbsqlc.PurgeAttemptsParams{StepIds: chunk, Batch: purgeAtOnce})
		}); err != nil {
			return err
		}
		if err := t.q.PurgeEdges(ctx, chunk); err != nil {
			return fmt.Errorf("purge edges: %w", err)
		}
		if err := t.q.PurgeSteps(ctx, chunk); err != nil {
			return fmt.Errorf("purge steps: %w", err)
		}
	}
	return nil
}

// purgeAll repeats a statement that deletes some rows until none are left.
func purgeAll(what string, purge func() (int64, error)) error {
	for n := int64(purgeAtOnce); n == purgeAtOnce; {
		var err error
		if n, err = purge(); err != nil {
			return fmt.Errorf("purge %s: %w", what, err)
		}
	}
	return nil
}

// purgeEvents removes events that were published or skipped long ago.
func (s *Store) purgeEvents(ctx context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	rows, err := s.reads.OldEvents(ctx, dbsqlc.OldEventsParams{
		Age: interval(b.Age), AfterTime: instantAfter(b.After.At), AfterID: b.After.ID, Events: purgeLooked,
	})
	if err != nil {
		return scheduler.Purged{}, outwardOrNil(ctx, "find old events", err)
	}
	p := scheduler.Purged{Looked: len(rows), Next: b.After, More: len(rows) == purgeLooked}
	var ids []uuid.UUID
	for _, r := range rows {
		if r.Due {
			ids = append(ids, r.ID)
		}
		p.Next = scheduler.PurgePosition{At: r.CreatedAt.Time.UTC(), ID: r.ID}
	}
	if b.DryRun {
		p.Removed = len(ids)
	}
	if b.DryRun || len(ids) == 0 {
		return p, nil
	}
	err = s.tx(ctx, "purge events", func(ctx context.Context, t *txn) error {
		n, err := t.q.PurgeEvents(ctx, dbsqlc.PurgeEventsParams{Ids: ids, Age: interval(b.Age)})
		p.Removed = int(n)
		return wrap("purge events", err)
	})
	return p, err
}

// purgeWorkers removes workers that were not seen for long, and that no operator has drained.
func (s *Store) purgeWorkers(ctx context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	rows, err := s.reads.OldWorkers(ctx, dbsqlc.OldWorkersParams{Age: interval(b.Age), AfterID: b.After.ID, Workers: purgeLooked})
	if err != nil {
		return scheduler.Purged{}, outwardOrNil(ctx, "find old workers", err)
	}
	p := scheduler.Purged{Looked: len(rows), Next: b.After, More: len(rows) == purgeLooked}
	var ids []uuid.UUID
	for _, r := range rows {
		if r.Due {
			ids = append(ids, r.ID)
		}
		p.Next = scheduler.PurgePosition{ID: r.ID}
	}
	if b.DryRun {
		p.Removed = len(ids)
	}
	if b.DryRun || len(ids) == 0 {
		return p, nil
	}
	err = s.tx(ctx, "purge workers", func(ctx context.Context, t *txn) error {
		var err error
		p.Removed, err = t.purgeWorkers(ctx, ids, b.Age)
		return err
	})
	return p, err
}

func (t *txn) purgeWorkers(ctx context.Context, ids []uuid.UUID, age time.Duration) (int, error) {
	locked, err := t.q.LockOldWorkers(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("lock workers: %w", err)
	}
	n, err := t.q.PurgeWorkers(ctx, dbsqlc.PurgeWorkersParams{Ids: locked, Age: interval(age)})
	return int(n), wrap("purge workers", err)
}

// instantAfter is the instant to begin after; the zero time stands for the beginning.
func instantAfter(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return instant(t)
}
