package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// FenceMigration makes the table and the function of Fence, in the database of what is
// guarded. Each statement may be run again.
//
// leasehold_fence(resource, token) answers whether the token is not smaller than any that the
// resource has seen, and remembers it. It locks the resource's row until the end of the
// transaction, so that no later owner slips in between the answer and what is written after
// it. Call it in a statement of its own, before the writes: one statement may look at rows as
// they were before it got the lock.
//
// A row is small, and there is one for each resource. Delete it with the resource, when no
// lease on it can be live any more: a resource without a row takes any token.
const FenceMigration = `
CREATE TABLE IF NOT EXISTS leasehold_fences (
    resource text   PRIMARY KEY,
    token    bigint NOT NULL CHECK (token > 0)
);

CREATE OR REPLACE FUNCTION leasehold_fence(resource text, token bigint) RETURNS boolean
LANGUAGE sql AS $$
    WITH passed AS (
        INSERT INTO leasehold_fences AS f (resource, token) VALUES ($1, $2)
        ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM passed)
$$;
`

// Fence lets a transaction go on only if token, a lease version, is not smaller than any that
// the resource has seen; else it returns a *StaleTokenError. It needs FenceMigration, and calls
// its function: what is written in tx after it is guarded until tx ends. Another owner's Fence
// on the same resource waits for that. If tx is rolled back, the token was not seen.
//
// resource is any text that names what is guarded, the same for all who write to it.
func Fence(ctx context.Context, tx pgx.Tx, resource string, token int64) error {
	var passed bool
	if err := tx.QueryRow(ctx, `SELECT leasehold_fence($1, $2)`, resource, token).Scan(&passed); err != nil {
		return fmt.Errorf("fence %q: %w", resource, err)
	}
	if passed {
		return nil
	}
	stale := &StaleTokenError{Resource: resource, Token: token}
	// The row is locked even though it was not changed.
	if err := tx.QueryRow(ctx, `SELECT token FROM leasehold_fences WHERE resource = $1`, resource).Scan(&stale.Newest); err != nil {
		return fmt.Errorf("fence %q: read the newest token: %w", resource, err)
	}
	return stale
}
