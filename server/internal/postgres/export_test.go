package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
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
