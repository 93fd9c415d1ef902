package drill

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Executor is a connection to PostgreSQL, or a pool of them.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// MakeClock puts the functions that tell the time before PostgreSQL's own, for sessions of the
// database that begin from now on: they are ahead by what SetClock says.
func MakeClock(ctx context.Context, db Executor) error {
	_, err := db.Exec(ctx, `
CREATE SCHEMA clock;
CREATE TABLE clock.ahead (by interval NOT NULL);
INSERT INTO clock.ahead VALUES ('0');
CREATE FUNCTION clock.now() RETURNS timestamptz STABLE LANGUAGE sql
	AS $$ SELECT pg_catalog.now() + by FROM clock.ahead $$;
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
	AS $$ SELECT pg_catalog.clock_timestamp() + by FROM clock.ahead $$;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = clock, pg_catalog, public', current_database()); END $$`)
	if err != nil {
		return fmt.Errorf("make a clock that can be set: %w", err)
	}
	return nil
}

// SetClock sets it: ahead of PostgreSQL's own, or behind.
func SetClock(ctx context.Context, db Executor, ahead time.Duration) error {
	if _, err := db.Exec(ctx, `UPDATE clock.ahead SET by = make_interval(secs => $1)`, ahead.Seconds()); err != nil {
		return fmt.Errorf("set PostgreSQL's clock: %w", err)
	}
	return nil
}
