package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// DispatchKey is the advisory key of one try of a step, for tests that hold it.
func DispatchKey(step uuid.UUID, number int) int64 { return dispatchKey(step, number) }

// Pool gives tests the sessions of the service.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// DrawVersions draws lease versions as dispatch does, in a transaction of their own.
func (s *Store) DrawVersions(ctx context.Context, n int) ([]int64, error) {
	var versions []int64
	err := s.tx(ctx, "draw", func(ctx context.Context, t *txn) error {
		var err error
		versions, _, err = t.drawVersions(ctx, t.q, n)
		return err
	})
	return versions, err
}

// Trace makes every statement of the store's sessions known to a tracer. It replaces the pool.
func (s *Store) Trace(ctx context.Context, tracer pgx.QueryTracer, settings map[string]string) error {
	cfg := s.pool.Config()
	cfg.ConnConfig.Tracer = tracer
	for name, value := range settings {
		cfg.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	s.pool.Close()
	s.pool, s.reads = pool, dbsqlc.New(pool)
	return nil
}

// Together runs calls in one round trip of a transaction.
func (s *Store) Together(ctx context.Context, calls ...func(q *dbsqlc.Queries) error) error {
	list := make([]call, len(calls))
	for i, c := range calls {
		list[i] = c
	}
	return s.tx(ctx, "together", func(ctx context.Context, t *txn) error { return t.together(ctx, list...) })
}

// ErrStale says that a statement has not changed all that it was to change.
var ErrStale = errStale

// Last runs calls and the COMMIT in one round trip.
func (s *Store) Last(ctx context.Context, calls ...func(q *dbsqlc.Queries) error) error {
	list := make([]call, len(calls))
	for i, c := range calls {
		list[i] = func(q *dbsqlc.Queries) error { return stale(c(q)) }
	}
	return s.tx(ctx, "last", func(ctx context.Context, t *txn) error { return t.last(ctx, "last", list...) })
}

// Frontier is from when on something can wait at a priority of a group, as far as the store
// remembers; zero is from the beginning.
func (s *Store) Frontier(g scheduler.Group, priority int16) time.Time {
	s.frontiers.mu.Lock()
	defer s.frontiers.mu.Unlock()
	if known := s.frontiers.groups[g]; known != nil {
		return known.since[priority]
	}
	return time.Time{}
}

// ShiftFrontiers moves what the store remembers, as if PostgreSQL's clock had been ahead then.
func (s *Store) ShiftFrontiers(d time.Duration) {
	s.frontiers.mu.Lock()
	defer s.frontiers.mu.Unlock()
	s.frontiers.horizon, s.frontiers.asked = s.frontiers.horizon.Add(d), time.Time{}
	for _, known := range s.frontiers.groups {
		for p, at := range known.since {
			known.since[p] = at.Add(d)
		}
	}
}

// OtherServer makes the store see that PostgreSQL was started again since.
func (s *Store) OtherServer() {
	s.frontiers.mu.Lock()
	defer s.frontiers.mu.Unlock()
	s.frontiers.started = s.frontiers.started.Add(-time.Hour)
}

// ForgetFrontiers makes the store look in full: for tests that move what the tables hold in time.
func (s *Store) ForgetFrontiers() {
	s.frontiers.mu.Lock()
	defer s.frontiers.mu.Unlock()
	s.frontiers.forget()
	s.timers.mu.Lock()
	defer s.timers.mu.Unlock()
	s.timers.since = time.Time{}
}

// LookedInFull makes the store believe that it has just looked at all that it knows in full, and
// will not for an hour.
func (s *Store) LookedInFull() {
	s.frontiers.mu.Lock()
	defer s.frontiers.mu.Unlock()
	for _, known := range s.frontiers.groups {
		known.full = time.Now().Add(time.Hour)
	}
}

// SweepByWorkers makes sweeps look worker by worker, as they do while leases has many dead rows.
func (s *Store) SweepByWorkers() { s.smallLeases, s.leasesOfWorker = 0, 0 }

// TimersFrom is from when on timers are left, as far as the store remembers.
func (s *Store) TimersFrom() time.Time {
	s.timers.mu.Lock()
	defer s.timers.mu.Unlock()
	return s.timers.since
}
