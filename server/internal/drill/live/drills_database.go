package live

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	core "github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/subprocess"
)

// postgresRestart: PostgreSQL is shut down and started again, as for an update.
func postgresRestart(ctx context.Context, x *exercise) error {
	return postgresAway(ctx, x, func() { x.primary.Down(ctx) }, "after a restart of PostgreSQL")
}

// postgresKilled: PostgreSQL crashes, and recovers.
func postgresKilled(ctx context.Context, x *exercise) error {
	return postgresAway(ctx, x, x.primary.Kill, "after a crash of PostgreSQL")
}

func postgresAway(ctx context.Context, x *exercise, end func(), when string) error {
	for range 2 {
		end()
		x.fault()
		if err := x.primary.Restart(ctx); err != nil {
			return err
		}
		x.db.Reset() // Its connections are broken.
		if err := x.goesOn(ctx, now(), when); err != nil {
			return err
		}
	}
	return nil
}

// failoverSync: the primary dies. Its standby has all that was answered, for commits waited for it.
func failoverSync(ctx context.Context, x *exercise) error {
	x.spent = true
	for _, statement := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		if _, err := x.db.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make the standby synchronous: %w", err)
		}
	}
	if err := x.await(ctx, goOnLimit, "a synchronous standby", some, `SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'`); err != nil {
		return err
	}
	if err := x.goesOn(ctx, now(), "with a synchronous standby"); err != nil {
		return err
	}
	return x.failOver(ctx)
}

// backLimit is within which the service is back after a promotion.
const backLimit = 10 * time.Second

// failOver ends the primary and promotes the standby.
func (x *exercise) failOver(ctx context.Context) error {
	x.primary.Kill()
	x.fault()
	if err := x.standby.Promote(ctx); err != nil {
		return err
	}
	x.db.Reset() // Its connections are broken.
	took, err := x.load.goesOn(ctx, now(), backLimit)
	if err != nil {
		return fmt.Errorf("after a failover: %w", err)
	}
	x.recovered(took)
	return nil
}

// failoverAsync: the standby has not got the last moments when the primary dies.
func failoverAsync(ctx context.Context, x *exercise) error {
	const lost = 1500 * time.Millisecond
	x.spent = true
	x.gone = &lostMoments{cut: now()}
	if err := onStandby(ctx, x, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	if err := x.await(ctx, goOnLimit, "the replication ended", none, `SELECT count(*) FROM pg_stat_replication`); err != nil {
		return err
	}
	x.gone.cutOff = now()
	x.fault()
	if err := x.goesOn(ctx, now(), "without replication"); err != nil {
		return err
	}
	if !pause(ctx, lost) {
		return context.Cause(ctx)
	}
	before, err := x.highestVersion(ctx)
	if err != nil {
		return err
	}
	x.primary.Kill()
	x.fault()
	if err := x.standby.Promote(ctx); err != nil {
		return err
	}
	x.db.Reset() // Its connections are broken.
	x.gone.promoted = now()
	promoted, err := x.clock(ctx)
	if err != nil {
		return err
	}
	if err := x.goesOn(ctx, x.gone.promoted, "after a failover"); err != nil {
		return err
	}
	after, err := x.number(ctx, `SELECT min(lease_version) FROM attempts WHERE leased_at > $1`, promoted)
	if err == nil && after <= before {
		err = fmt.Errorf("the lost primary gave lease version %d, the new one %d", before, after)
	}
	return err
}

func (x *exercise) highestVersion(ctx context.Context) (int64, error) {
	return x.number(ctx, `SELECT max(lease_version) FROM attempts`)
}

func onStandby(ctx context.Context, x *exercise, statements ...string) error {
	conn, err := pgx.Connect(ctx, x.standby.URL())
	if err != nil {
		return fmt.Errorf("open the standby: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// openTransaction: somebody has begun a transaction and gone home. Its snapshot keeps PostgreSQL
// from cleaning up, its locks are those of a reader.
func openTransaction(ctx context.Context, x *exercise) error {
	const enough = 6 * time.Second
	tx, err := x.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return fmt.Errorf("leave a transaction open: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `SELECT (SELECT count(*) FROM executions), (SELECT count(*) FROM leases), pg_current_xact_id()`); err != nil {
		return fmt.Errorf("leave a transaction open: %w", err)
	}
	x.fault()
	began := time.Now() // monotonic
	for time.Since(began) < enough {
		if err := x.goesOn(ctx, now(), "with a transaction left open"); err != nil {
			return err
		}
		pause(ctx, time.Second/2)
	}
	if err := x.settle(ctx); err != nil {
		return err
	}
	x.note("open for %s", time.Since(began).Round(time.Second/10))
	return nil
}

// databaseClock: the clock that decides is wrong, twice.
func databaseClock(ctx context.Context, x *exercise) error {
	const minute = time.Minute
	x.clockMoved = true
	for _, by := range []time.Duration{minute, -minute, minute} {
		if err := core.SetClock(ctx, x.db, by); err != nil {
			return err
		}
		x.fault()
		if err := x.goesOn(ctx, now(), fmt.Sprintf("with PostgreSQL's clock off by %s", by)); err != nil {
			return err
		}
		pause(ctx, leaseDuration)
		if err := x.clockBites(ctx, by); err != nil {
			return err
		}
	}
	// It stays ahead: what was made due by a clock that was ahead comes then, not after minutes.
	x.note("to +1m, then -1m, then +1m")
	return nil
}

// clockBites tells whether leases are given by the clock that was set: what is given now is as far off
// the machine's own clock.
func (x *exercise) clockBites(ctx context.Context, by time.Duration) error {
	const ofThatClock = `SELECT count(*) FROM attempts a JOIN steps s ON s.id = a.step_id JOIN executions e ON e.id = s.execution_id
		WHERE e.namespace = $1 AND abs(extract(epoch FROM a.leased_at - (pg_catalog.clock_timestamp() + $2::interval))) < $3`
	if err := x.await(ctx, goOnLimit, "leased anything by the clock that was set", some, ofThatClock, x.namespace, by, leaseDuration.Seconds()); err != nil {
		return fmt.Errorf("the fault was none: %w", err)
	}
	return nil
}

// replicaClock: PostgreSQL and the servers do not agree on the hour, from their start on.
func replicaClock(ctx context.Context, x *exercise) error {
	x.stopAll()
	if err := core.SetClock(ctx, x.db, time.Hour); err != nil {
		return err
	}
	x.fault()
	x.clockMoved = true
	if err := x.startAll(ctx); err != nil {
		return err
	}
	if err := x.goesOn(ctx, now(), "with the servers' clocks an hour behind"); err != nil {
		return err
	}
	pause(ctx, 2*leaseDuration)
	if err := x.clockBites(ctx, time.Hour); err != nil {
		return err
	}
	x.note("the servers' clocks are an hour behind")
	return x.goesOn(ctx, now(), "with the servers' clocks an hour behind")
}

// migration: what a newer version's migration does, comes while this version serves; and three
// programs migrate to this one's at once.
func migration(ctx context.Context, x *exercise) error {
	for _, table := range []string{"executions", "steps", "attempts", "leases", "workers", "outbox_events", "scheduling_requests"} {
		for _, change := range []string{"ADD COLUMN of_a_newer_version text NOT NULL DEFAULT 'x'", "DROP COLUMN of_a_newer_version"} {
			began := now()
			if _, err := x.db.Exec(ctx, "ALTER TABLE "+table+" "+change); err != nil {
				return fmt.Errorf("migrate: %w", err)
			}
			x.fault()
			if err := x.goesOn(ctx, began, "after a change of table "+table); err != nil {
				return err
			}
		}
	}
	began := now()
	var migrating errgroup.Group
	for i := range replicaCount {
		migrating.Go(func() error { return x.migrateUp(i) })
	}
	if err := migrating.Wait(); err != nil {
		return err
	}
	x.fault()
	return x.goesOn(ctx, began, "after migrations")
}

// migrateUp runs the command that migrates.
func (x *exercise) migrateUp(i int) error {
	p, err := subprocess.Start(subprocess.Config{
		Program: x.cfg.Program, Folder: x.folder, Name: fmt.Sprintf("migrate-%d", i+1),
		Env: []string{"LEASEHOLD_DATABASE_URL=" + x.url}, Args: []string{"migrate", "up"},
	})
	if err != nil {
		return err
	}
	<-p.Exited()
	return p.Result()
}
