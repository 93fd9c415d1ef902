package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what Purge works on: a *pgxpool.Pool or a *pgx.Conn.
type DB interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

// purgeBatch is how many rows a statement of Purge deletes at most.
const purgeBatch = 1000

// The rows are chosen into an array, once: as a subquery that is joined they may be chosen again for
// each row, without an end to the batch.
const (
	purgeHandled = `
DELETE FROM leasehold_inbox WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM leasehold_inbox
    WHERE consumer = $1 AND handled_at < now() - $2::interval
    ORDER BY handled_at LIMIT $3 FOR UPDATE SKIP LOCKED))`

	purgePositions = `
DELETE FROM leasehold_inbox_positions WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM leasehold_inbox_positions
    WHERE consumer = $1 AND moved_at < now() - $2::interval
    ORDER BY moved_at LIMIT $3 FOR UPDATE SKIP LOCKED))`
)

// Purge forgets what this consumer handled longer ago than keep, by the clock of PostgreSQL,
// and returns how many rows it deleted. It works in batches of 1,000, each a transaction of
// its own, and may run in several processes at once. How long keep must be stands in the
// package's documentation: an event that comes again after its row was purged is handled again.
// keep must be more than 0.
func (i Inbox) Purge(ctx context.Context, db DB, keep time.Duration) (deleted int64, err error) {
	if keep <= 0 {
		return 0, fmt.Errorf("inbox %q: purge: keep is %s, must be more than 0", i.Consumer, keep)
	}
	for _, statement := range []string{purgeHandled, purgePositions} {
		for {
			tag, err := db.Exec(ctx, statement, i.Consumer, keep, purgeBatch)
			if err != nil {
				return deleted, fmt.Errorf("inbox %q: purge: %w", i.Consumer, err)
			}
			deleted += tag.RowsAffected()
			if tag.RowsAffected() < purgeBatch {
				break
			}
		}
	}
	return deleted, nil
}
