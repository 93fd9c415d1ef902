package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// counters is what PostgreSQL has counted of a database; of the WAL, of the whole cluster.
type counters struct {
	Commits, WAL, Updates, HOTUpdates, Dead, LeaseUpdates, LeaseHOTUpdates int64

	queries, buffers int64 // of all statements
	claimBuffers     int64 // of the claim, which is found by the name that its text bears
	statements       bool  // that these are counted
}

func (c counters) since(earlier counters) counters {
	c.Commits -= earlier.Commits
	c.WAL -= earlier.WAL
	c.Updates -= earlier.Updates
	c.HOTUpdates -= earlier.HOTUpdates
	c.LeaseUpdates -= earlier.LeaseUpdates
	c.LeaseHOTUpdates -= earlier.LeaseHOTUpdates
	c.queries -= earlier.queries
	c.buffers -= earlier.buffers
	c.claimBuffers -= earlier.claimBuffers
	return c
}

// counters are what was counted until now. The WAL's position is exact at any time; the rest
// lacks what live sessions have not yet told.
func (s *site) counters(ctx context.Context) (counters, error) {
	rows, err := s.db.Query(ctx, `SELECT
		(SELECT d.xact_commit FROM pg_stat_database d WHERE d.datname = current_database()) AS commits,
		pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS wal,
		COALESCE(sum(t.n_tup_upd), 0)::bigint AS updates, COALESCE(sum(t.n_tup_hot_upd), 0)::bigint AS hot_updates,
		COALESCE(sum(t.n_dead_tup), 0)::bigint AS dead,
		COALESCE(sum(t.n_tup_upd) FILTER (WHERE t.relname = 'leases'), 0)::bigint AS lease_updates,
		COALESCE(sum(t.n_tup_hot_upd) FILTER (WHERE t.relname = 'leases'), 0)::bigint AS lease_hot_updates
		FROM pg_stat_user_tables t`)
	if err != nil {
		return counters{}, fmt.Errorf("ask what PostgreSQL counted: %w", err)
	}
	c, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByNameLax[counters])
	if err != nil {
		return counters{}, fmt.Errorf("ask what PostgreSQL counted: %w", err)
	}
	err = s.db.QueryRow(ctx, `SELECT COALESCE(sum(s.calls), 0)::bigint, COALESCE(sum(s.shared_blks_hit + s.shared_blks_read), 0)::bigint,
			COALESCE(sum(s.shared_blks_hit + s.shared_blks_read) FILTER (WHERE s.query ~ 'name: (Claim|Survey)Requests '), 0)::bigint
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()`).Scan(&c.queries, &c.buffers, &c.claimBuffers)
	c.statements = err == nil
	return c, ctx.Err()
}

// perUnit is what is reported of so much work.
func (c counters) perUnit(count int64) *Postgres {
	p := &Postgres{Commits: c.Commits, WALBytes: by(float64(c.WAL), float64(count)), HOTShare: by(float64(c.HOTUpdates), float64(c.Updates)), DeadTuples: c.Dead}
	if c.statements {
		queries := by(float64(c.queries), float64(count))
		p.Queries = &queries
	}
	return p
}

// by divides; nothing by nothing is 0.
func by(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
