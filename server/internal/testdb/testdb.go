// Package testdb gives tests a PostgreSQL of their own: one private server for a test binary,
// and for each test a fresh database, copied from a migrated template. It may import devpg and
// postgres; only tests import it.
package testdb

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

const template = "template_leasehold"

// Server is the private server of a test binary. It starts with the first database.
type Server struct {
	mu sync.Mutex
	pg *devpg.Server
}

// Main runs a binary's tests with the server, ends it, and looks that no goroutine outlives them.
func (s *Server) Main(m *testing.M) (status int) {
	status = m.Run()
	s.Stop()
	return Leakless(status)
}

// Leakless is a status of tests, or that of a failure if it was good and a goroutine is left.
func Leakless(status int) int {
	// While it fuzzes, the library for tests has goroutines of its own.
	if f := flag.Lookup("test.fuzz"); status != 0 || f != nil && f.Value.String() != "" {
		return status
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// Stop ends the server, if it was started. Call it at the end of TestMain.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pg == nil {
		return
	}
	if err := s.pg.Stop(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "stop PostgreSQL:", err)
	}
}

// New makes a database for a test and returns its URL; it is dropped when the test ends.
func (s *Server) New(t testing.TB) string {
	t.Helper()
	database, drop := s.Make(t)
	t.Cleanup(drop)
	return database
}

// Make makes a database that is there until drop is called: for a test that needs many, one after
// the other.
func (s *Server) Make(t testing.TB) (database string, drop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	base := s.start(ctx, t)
	name := "test_" + uuid.NewString()
	s.mu.Lock() // a template can be copied by one at a time
	err := admin(ctx, base, fmt.Sprintf(`CREATE DATABASE %q TEMPLATE %s`, name, template))
	s.mu.Unlock()
	if err != nil {
		t.Fatalf("create database: %v", err)
	}
	return withDatabase(base, name), func() {
		if err := admin(context.Background(), base, fmt.Sprintf(`DROP DATABASE %q WITH (FORCE)`, name)); err != nil {
			fmt.Fprintln(os.Stderr, "drop database:", err)
		}
	}
}

// start starts the server once and migrates the template. Durability is off: tests that kill
// PostgreSQL start their own.
func (s *Server) start(ctx context.Context, t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pg != nil {
		return s.pg.URL()
	}
	pg, err := devpg.Start(ctx, devpg.Config{Ephemeral: true, Settings: map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300",
	}})
	if err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	s.pg = pg
	if err := admin(ctx, pg.URL(), "CREATE DATABASE "+template); err != nil {
		t.Fatalf("create template: %v", err)
	}
	if err := postgres.Migrate(ctx, withDatabase(pg.URL(), template), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatalf("migrate template: %v", err)
	}
	return pg.URL()
}

func admin(ctx context.Context, base, statement string) error {
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

func withDatabase(base, name string) string {
	u, err := url.Parse(base)
	if err != nil {
		panic(err) // devpg makes it
	}
	u.Path = "/" + name
	return u.String()
}
