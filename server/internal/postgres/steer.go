package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// A drain and a pause are committed first, and then wait for the dispatches under way. Dispatch
// locks workers and capabilities, and looks at both by a later statement: one that had its locks
// before the wait is over when the wait ends, one that gets them afterwards sees the commit. The
// commit itself waits for no dispatch, and from then on no claim brings new ones: dispatches
// that overlap for ever cannot put it off.

// SetDrain drains a worker, a node or a version, or ends that drain.
func (s *Store) SetDrain(ctx context.Context, d scheduler.Drain) (scheduler.Drained, error) {
	err := s.tx(ctx, "set drain", func(ctx context.Context, t *txn) error {
		t.vouch() // for one that was there before
		if d.Kind == scheduler.DrainWorker {
			if err := t.findWorkerIn(ctx, d.Namespace, d.Value); err != nil {
				return err
			}
		}
		if !d.Draining {
			_, err := t.q.DeleteDrain(ctx, dbsqlc.DeleteDrainParams{Namespace: d.Namespace, Kind: string(d.Kind), Value: d.Value})
			return wrap("delete drain", err)
		}
		if err := t.roomForDrain(ctx, d); err != nil {
			return err
		}
		return wrap("put drain", t.q.PutDrain(ctx, dbsqlc.PutDrainParams{
			Namespace: d.Namespace, Kind: string(d.Kind), Value: d.Value, Reason: d.Reason,
		}))
	})
	if err != nil {
		return scheduler.Drained{}, err
	}
	if d.Draining {
		workers := dbsqlc.AwaitDispatchesToWorkersParams{Namespace: d.Namespace, Kind: string(d.Kind), Value: d.Value}
		err := s.awaitDispatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) error { return q.AwaitDispatchesToWorkers(ctx, workers) })
		if err != nil {
			return scheduler.Drained{}, err
		}
	}
	return s.countDrained(ctx, d)
}

// mostDrained is up to how many workers of a drain are counted.
const mostDrained = 10_000

func (s *Store) countDrained(ctx context.Context, d scheduler.Drain) (done scheduler.Drained, err error) {
	err = s.readOnly(ctx, "count drained workers", func(q *dbsqlc.Queries) error {
		row, err := q.CountDrained(ctx, dbsqlc.CountDrainedParams{Namespace: d.Namespace, Kind: string(d.Kind), Value: d.Value, Most: mostDrained + 1})
		done = scheduler.Drained{Workers: min(int(row.Workers), mostDrained), More: row.Workers > mostDrained, Leases: int(row.Leases)}
		return err
	})
	return done, err
}

func (t *txn) findWorkerIn(ctx context.Context, namespace, id string) error {
	worker, err := uuid.Parse(id)
	if err != nil {
		return own(&scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: id})
	}
	found, err := t.q.HoldWorker(ctx, worker) // retention leaves alone who is drained
	if errors.Is(err, pgx.ErrNoRows) || err == nil && found != namespace {
		return own(&scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: id})
	}
	return wrap("find worker", err)
}

// Pause stops grants of a capability; one that is not known is made, so that a pause ahead of
// its first step holds.
func (s *Store) Pause(ctx context.Context, c scheduler.CapabilityKey, reason string) (scheduler.CapabilityView, error) {
	err := s.tx(ctx, "pause", func(ctx context.Context, t *txn) error {
		t.vouch() // for a pause that was there before
		if err := t.roomForCapabilities(ctx, dbsqlc.InsertCapabilitiesParams{Namespaces: []string{c.Namespace}, Names: []string{c.Name}}); err != nil {
			return err
		}
		return t.q.PauseCapability(ctx, dbsqlc.PauseCapabilityParams{Namespace: c.Namespace, Name: c.Name, Reason: reason})
	})
	if err != nil {
		return scheduler.CapabilityView{}, err
	}
	err = s.awaitDispatches(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		return q.AwaitDispatchesOfCapability(ctx, dbsqlc.AwaitDispatchesOfCapabilityParams{Namespace: c.Namespace, Name: c.Name})
	})
	if err != nil {
		return scheduler.CapabilityView{}, err
	}
	return s.getCapability(ctx, c)
}

// Resume ends a pause.
func (s *Store) Resume(ctx context.Context, c scheduler.CapabilityKey) (scheduler.CapabilityView, error) {
	err := s.tx(ctx, "resume", func(ctx context.Context, t *txn) error {
		n, err := t.q.ResumeCapability(ctx, dbsqlc.ResumeCapabilityParams{Namespace: c.Namespace, Name: c.Name})
		if err == nil && n == 0 {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindCapability, ID: c.Name})
		}
		return err
	})
	if err != nil {
		return scheduler.CapabilityView{}, err
	}
	return s.getCapability(ctx, c)
}

// lockTries is how often a lock is waited for: a replica that froze with it in hand is cut off
// by PostgreSQL after 5 s, and each wait lasts 2.
const lockTries = 5

// awaitDispatches takes the locks that dispatches under way hold, once.
func (s *Store) awaitDispatches(ctx context.Context, lock func(context.Context, *dbsqlc.Queries) error) error {
	var err error
	for range lockTries {
		err = s.tx(ctx, "await dispatches", func(ctx context.Context, t *txn) error { return lock(ctx, t.q) })
		var away *scheduler.UnavailableError
		if !errors.As(err, &away) || !away.Locked {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("await dispatches: %w", err)
	}
	return nil
}
