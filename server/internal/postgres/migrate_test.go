package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

// TestMigrations runs on a PostgreSQL of its own: each part has an empty database.
func TestMigrations(t *testing.T) {
	t.Parallel()
	server, err := devpg.Start(migrationTime(t), devpg.Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	parts := map[string]func(*testing.T, string){
		"SeveralStartTogether":     severalStartTogether,
		"StatusChangesNothing":     statusChangesNothing,
		"RefusesOtherSchemas":      refusesOtherSchemas,
		"WaitsForAnother":          waitsForAnother,
		"LongStatementsAreAllowed": longStatementsAreAllowed,
	}
	n := 0
	for name, part := range parts {
		n++
		database := emptyDatabase(t, server.URL(), fmt.Sprintf("migrations%d", n))
		t.Run(name, func(t *testing.T) { part(t, database) })
	}
}

func severalStartTogether(t *testing.T, database string) {
	ctx := migrationTime(t)
	start := time.Now()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := postgres.Migrate(ctx, database, slog.New(slog.DiscardHandler)); err != nil {
				t.Errorf("Migrate: %v", err)
			}
		})
	}
	all.Wait()
	// Each needs some tenths of a second; waiting for another's look at the lock every 5 s
	// would take 15 s.
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("five at once took %s", took)
	}
	if err := postgres.CheckSchema(ctx, database); err != nil {
		t.Errorf("CheckSchema afterwards: %v", err)
	}
	for _, m := range migrationStatus(t, database) {
		if !m.Applied {
			t.Errorf("migration %d is not applied", m.Version)
		}
	}
}

func statusChangesNothing(t *testing.T, database string) {
	before := migrationStatus(t, database)
	if len(before) == 0 {
		t.Fatal("no migrations are known")
	}
	for _, m := range before {
		if m.Applied || m.Version == 0 || m.Name == "" || !m.Time.IsZero() {
			t.Errorf("on an empty database: %+v", m)
		}
	}
	var tables int
	queryRow(t, database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", &tables)
	if tables != 0 {
		t.Errorf("looking made %d tables", tables)
	}
	mustMigrate(t, database)
	for i, m := range migrationStatus(t, database) {
		if !m.Applied || m.Version != before[i].Version || m.Name != before[i].Name {
			t.Errorf("after Migrate: %+v, before: %+v", m, before[i])
		}
		if age := time.Since(m.Time); age < -time.Minute || age > time.Hour {
			t.Errorf("migration %d was applied %s ago", m.Version, age)
		}
	}
}

func refusesOtherSchemas(t *testing.T, database string) {
	known := migrationStatus(t, database)
	want := known[len(known)-1].Version
	check := func(when string, have int64, words string, check func() error) {
		t.Helper()
		err := check()
		var refused *postgres.SchemaError
		if !errors.As(err, &refused) || refused.Have != have || refused.Want != want {
			t.Fatalf("%s: got %v, want a SchemaError from %d to %d", when, err, have, want)
		}
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %q does not say %q", when, err, words)
		}
	}
	look := func() error { return postgres.CheckSchema(migrationTime(t), database) }
	check("empty", 0, "no schema", look)
	mustMigrate(t, database)
	if err := look(); err != nil {
		t.Fatalf("after Migrate: %v", err)
	}

	execSQL(t, database, fmt.Sprintf("INSERT INTO goose_db_version (version_id, is_applied) VALUES (%d, true)", want+7))
	check("newer", want+7, "run a newer leasehold", look)
	check("Migrate, newer", want+7, "run a newer leasehold", func() error {
		return postgres.Migrate(migrationTime(t), database, slog.New(slog.DiscardHandler))
	})
	status := migrationStatus(t, database)
	if last := status[len(status)-1]; last.Version != want+7 || last.Name != "" || !last.Applied {
		t.Errorf("status of a migration that is not known: %+v", last)
	}

	execSQL(t, database, fmt.Sprintf("DELETE FROM goose_db_version WHERE version_id >= %d", want))
	check("older", want-1, "leasehold migrate up", look)
}

func TestSchemaError_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  postgres.SchemaError
		want string
	}{
		{postgres.SchemaError{Have: 0, Want: 3}, "the database has no schema of Leasehold's yet; run: leasehold migrate up --database-url ..."},
		{postgres.SchemaError{Have: 2, Want: 3}, "the database's schema has version 2, and this program needs 3; run: leasehold migrate up --database-url ..."},
		{postgres.SchemaError{Have: 4, Want: 3}, "the database's schema has version 4, and this program knows none after 3; run a newer leasehold"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func waitsForAnother(t *testing.T, database string) {
	conn := connect(t, database)
	// The key that migrate.go gives to the lock; another program of ours may hold it.
	const lock = 0x6c656173_65686f6c
	if _, err := conn.Exec(migrationTime(t), "SELECT pg_advisory_lock($1)", int64(lock)); err != nil {
		t.Fatal(err)
	}
	brief, cancel := context.WithTimeout(migrationTime(t), 300*time.Millisecond)
	defer cancel()
	if err := postgres.Migrate(brief, database, slog.New(slog.DiscardHandler)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while another migrates: %v, want to wait until the deadline", err)
	}
	done := make(chan error, 1)
	go func() { done <- postgres.Migrate(migrationTime(t), database, slog.New(slog.DiscardHandler)) }()
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the other's end: %v", err)
	}
}

// longStatementsAreAllowed has the role's own limit stand in for a long migration.
func longStatementsAreAllowed(t *testing.T, database string) {
	execSQL(t, database, "ALTER ROLE CURRENT_USER IN DATABASE "+databaseName(t, database)+" SET statement_timeout = '1ms'")
	mustMigrate(t, database)
}

func TestAwait_WaitsForADatabaseThatStarts(t *testing.T) {
	t.Parallel()
	server, err := devpg.Start(migrationTime(t), devpg.Config{Ephemeral: true, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	server.Down(migrationTime(t))
	var said bytes.Buffer
	done := make(chan error, 1)
	go func() {
		done <- postgres.Await(migrationTime(t), server.URL(), time.Minute, slog.New(slog.NewTextHandler(&said, nil)))
	}()
	time.Sleep(300 * time.Millisecond)
	if err := server.Restart(migrationTime(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Await: %v", err)
	}
	if !strings.Contains(said.String(), "waiting for the database") {
		t.Errorf("nothing was said of the wait: %q", said.String())
	}

	t.Run("WrongPasswordIsTold", func(t *testing.T) {
		wrong := parse(t, server.URL())
		wrong.User = url.UserPassword(wrong.User.Username(), "hunter2-wrong")
		start := time.Now()
		err := postgres.Await(migrationTime(t), wrong.String(), time.Minute, slog.New(slog.DiscardHandler))
		if err == nil || time.Since(start) > 20*time.Second {
			t.Fatalf("got %v after %s, want an error at once", err, time.Since(start))
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error tells the password: %v", err)
		}
	})
}

func TestAwait_GivesUp(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	err = postgres.Await(migrationTime(t), "postgres://u@"+address+"/d", 400*time.Millisecond, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "could not be reached for 400ms") {
		t.Errorf("Await: %v", err)
	}
}

func migrationTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustMigrate(t *testing.T, database string) {
	t.Helper()
	if err := postgres.Migrate(migrationTime(t), database, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatalf("Migrate: %v", err)
	}
}

func migrationStatus(t *testing.T, database string) []postgres.Migration {
	t.Helper()
	status, err := postgres.MigrationStatus(migrationTime(t), database)
	if err != nil {
		t.Fatalf("MigrationStatus: %v", err)
	}
	return status
}

// emptyDatabase makes a database and returns its URL.
func emptyDatabase(t *testing.T, server, name string) string {
	t.Helper()
	execSQL(t, server, "CREATE DATABASE "+name)
	u := parse(t, server)
	u.Path = "/" + name
	return u.String()
}

func databaseName(t *testing.T, database string) string {
	t.Helper()
	return strings.TrimPrefix(parse(t, database).Path, "/")
}

func parse(t *testing.T, database string) *url.URL {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(migrationTime(t), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execSQL(t *testing.T, database, statement string) {
	t.Helper()
	if _, err := connect(t, database).Exec(migrationTime(t), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func queryRow(t *testing.T, database, statement string, into ...any) {
	t.Helper()
	if err := connect(t, database).QueryRow(migrationTime(t), statement).Scan(into...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
