// Package figures reads what a run cost PostgreSQL from its own counters, the same way for every
// peer. It imports result.
package figures

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// Counters are PostgreSQL's, as they stood at some time.
type Counters struct {
	commits, updated, hot, dead int64
	wal                         int64 // bytes since the beginning of the log
}

// Read reads the counters of a database. Backends tell what they did when they end, or seconds
// later: close a pool before the last look.
func Read(ctx context.Context, url string) (Counters, error) {
	var c Counters
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	defer conn.Close(ctx)
	const q = `
SELECT d.xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
    COALESCE(sum(t.n_tup_upd), 0)::bigint, COALESCE(sum(t.n_tup_hot_upd), 0)::bigint, COALESCE(sum(t.n_dead_tup), 0)::bigint
FROM pg_stat_database d LEFT JOIN pg_stat_user_tables t ON true
WHERE d.datname = current_database() GROUP BY d.xact_commit`
	if err := conn.QueryRow(ctx, q).Scan(&c.commits, &c.wal, &c.updated, &c.hot, &c.dead); err != nil {
		return c, fmt.Errorf("read counters: %w", err)
	}
	return c, nil
}

// Since is what happened between two looks, for so many pieces of work.
func (c Counters) Since(before Counters, count int64) result.Postgres {
	p := result.Postgres{Commits: c.commits - before.commits, DeadTuples: c.dead}
	if count > 0 {
		p.WALBytes = float64(c.wal-before.wal) / float64(count)
	}
	if updated := c.updated - before.updated; updated > 0 {
		p.HOTShare = float64(c.hot-before.hot) / float64(updated)
	}
	return p
}

// Analyze takes the statistics of a database that was just filled. There is no VACUUM and no
// checkpoint: `leasehold bench` makes none before it measures either, and after a checkpoint every
// page that changes is written to the log as a whole, which costs a fifth.
func Analyze(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("analyze the database: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "ANALYZE"); err != nil {
		return fmt.Errorf("analyze the database: %w", err)
	}
	return nil
}
