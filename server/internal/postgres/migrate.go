package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/leasehold/leasehold/db"
)

// migrationLock is the key of the session's advisory lock that whoever migrates holds. It is
// the one lock that no transaction takes, and so stands outside the order of locks.
const migrationLock int64 = 0x6c656173_65686f6c // "leasehol"

const (
	migrationLockPoll = 50 * time.Millisecond
	// awaitPause is the pause between two looks at a database that is away, awaitTry the
	// bound of one look, complainEvery how often a wait is told of.
	awaitPause    = 250 * time.Millisecond
	awaitTry      = 5 * time.Second
	complainEvery = 5 * time.Second
)

// Migration is one step of the schema's history.
type Migration struct {
	Version int64
	Name    string // of its file; empty if this program does not know it
	Applied bool
	Time    time.Time // at which it was applied
}

// SchemaError says that the database's schema is not the one that this program works on.
type SchemaError struct {
	Have int64 // version of the newest migration that was applied; 0: none
	Want int64 // version of the newest that this program knows
}

func (e *SchemaError) Error() string {
	const remedy = "run: leasehold migrate up --database-url ..."
	switch {
	case e.Have == 0:
		return "the database has no schema of Leasehold's yet; " + remedy
	case e.Have < e.Want:
		return fmt.Sprintf("the database's schema has version %d, and this program needs %d; %s", e.Have, e.Want, remedy)
	default:
		return fmt.Sprintf("the database's schema has version %d, and this program knows none after %d; run a newer leasehold", e.Have, e.Want)
	}
}

// Await returns when the database answers a query, and gives up after patience, or at once if
// waiting cannot help: a wrong password, no such database, sessions without their settings.
func Await(ctx context.Context, url string, patience time.Duration, log *slog.Logger) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	sessionSettings(cfg)
	start := time.Now()
	for complained := -complainEvery; ; {
		err := pingDatabase(ctx, cfg)
		waited := time.Since(start)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errSettings) || errors.Is(err, errPrepared) || classify(err) != faultTransient:
			return fmt.Errorf("connect to the database: %w", err)
		case waited >= patience:
			return fmt.Errorf("the database could not be reached for %s: %w", patience, err)
		case waited-complained >= complainEvery:
			log.Warn("waiting for the database", "error", err, "giving_up_in", (patience - waited).Round(time.Second))
			complained = waited
		}
		if err := pauseFor(ctx, awaitPause); err != nil {
			return err
		}
	}
}

func pingDatabase(ctx context.Context, cfg *pgx.ConnConfig) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTry)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if isRefusedStart(err) {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return checkSession(ctx, conn)
}

// Migrate applies the migrations that the database lacks, each in a transaction. Several
// programs may call it at once: one works, the others wait for it and find nothing to do. A
// schema that is newer than this program is left alone and is a *SchemaError.
func Migrate(ctx context.Context, url string, log *slog.Logger) error {
	handle, err := migrationDB(url, log)
	if err != nil {
		return err
	}
	defer handle.Close()
	files, err := fs.Sub(db.Migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open the migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, handle, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	done, err := provider.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		done = partial.Applied
		err = fmt.Errorf("%s: %w", path.Base(partial.Failed.Source.Path), partial.Err)
	}
	for _, m := range done {
		log.Info("migration applied", "version", m.Source.Version, "name", path.Base(m.Source.Path), "took", m.Duration.Round(time.Millisecond))
	}
	if err != nil {
		return fmt.Errorf("migrate the database: %w", err)
	}
	return CheckSchema(ctx, url)
}

// migrationDB is a handle of one connection, which holds the lock for migrations from its
// first moment to its end: whatever goes over the handle is alone, and the lock cannot be lost
// while the work goes on. goose's own locker looks every 5 s only, and not before it makes its
// table.
func migrationDB(url string, log *slog.Logger) (*sql.DB, error) {
	cfg, err := migrationConfig(url)
	if err != nil {
		return nil, err
	}
	handle := stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		return lockMigrations(ctx, conn, log)
	}))
	handle.SetMaxOpenConns(1)
	return handle, nil
}

// migrationConfig has no bound for a statement, since an index of a large table takes its time;
// but a lock that does not come stops everybody who queues behind it, and a frozen migrator all
// who need what it holds.
func migrationConfig(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database url: %w", err)
	}
	maps.Copy(cfg.RuntimeParams, map[string]string{
		"application_name":                    "leasehold migrate",
		"statement_timeout":                   "0",
		"lock_timeout":                        "5s",
		"idle_in_transaction_session_timeout": "60s",
		"timezone":                            "UTC",
	})
	return cfg, nil
}

// lockMigrations asks again and again instead of waiting inside PostgreSQL: a statement that
// waits there has a snapshot, for whose end CREATE INDEX CONCURRENTLY would wait in turn.
func lockMigrations(ctx context.Context, conn *pgx.Conn, log *slog.Logger) error {
	if err := checkOwnSession(ctx, conn); err != nil { // the lock would stay with the pooler
		return fmt.Errorf("lock the migrations: %w", err)
	}
	start := time.Now()
	for complained := time.Duration(0); ; {
		var locked bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", migrationLock).Scan(&locked); err != nil {
			return fmt.Errorf("lock the migrations: %w", err)
		}
		if locked {
			return nil
		}
		if waited := time.Since(start); waited-complained >= complainEvery {
			log.Info("another process migrates the database; waiting for it", "waited", waited.Round(time.Second))
			complained = waited
		}
		if err := pauseFor(ctx, migrationLockPoll); err != nil {
			return err
		}
	}
}

// MigrationStatus lists the migrations that this program knows or the database has, in their
// order. It changes nothing and waits for nobody.
func MigrationStatus(ctx context.Context, url string) ([]Migration, error) {
	known, err := knownMigrations()
	if err != nil {
		return nil, err
	}
	applied, err := appliedMigrations(ctx, url)
	if err != nil {
		return nil, err
	}
	all := map[int64]Migration{}
	for _, m := range append(known, applied...) {
		m.Name = cmp.Or(m.Name, all[m.Version].Name)
		all[m.Version] = m
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Migration) int { return cmp.Compare(a.Version, b.Version) }), nil
}

// CheckSchema returns a *SchemaError if the database's schema is missing, older, or newer than
// the one that this program knows.
func CheckSchema(ctx context.Context, url string) error {
	known, err := knownMigrations()
	if err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, url)
	if err != nil {
		return err
	}
	if have, want := newestVersion(applied), newestVersion(known); have != want {
		return &SchemaError{Have: have, Want: want}
	}
	return nil
}

func newestVersion(migrations []Migration) int64 {
	var version int64
	for _, m := range migrations {
		version = max(version, m.Version)
	}
	return version
}

func knownMigrations() ([]Migration, error) {
	files, err := fs.Glob(db.Migrations, "migrations/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list the migrations: %w", err)
	}
	known := make([]Migration, 0, len(files))
	for _, file := range files {
		version, err := goose.NumericComponent(file)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", file, err)
		}
		known = append(known, Migration{Version: version, Name: path.Base(file)})
	}
	return known, nil
}

// appliedMigrations reads goose's table; where there is none, nothing was applied.
func appliedMigrations(ctx context.Context, url string) ([]Migration, error) {
	cfg, err := migrationConfig(url)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Version 0 is goose's own mark that the table is in use. CollectRows returns the error.
	rows, _ := conn.Query(ctx, "SELECT version_id, tstamp FROM goose_db_version WHERE is_applied AND version_id > 0")
	applied, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Migration, error) {
		m := Migration{Applied: true}
		return m, row.Scan(&m.Version, &m.Time)
	})
	var failure *pgconn.PgError
	if errors.As(err, &failure) && failure.Code == codeUndefinedTable {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the schema's version: %w", err)
	}
	return applied, nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
