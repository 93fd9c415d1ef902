package runner

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

// databases are the tests' own.
var databases testdb.Server

func TestMain(m *testing.M) { os.Exit(databases.Main(m)) }

// has tells whether a database is there.
func (s *stand) has(t *testing.T, name string) (there bool) {
	t.Helper()
	err := s.do(t.Context(), func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&there)
	})
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// TestStand_DropsOnlyItsOwn: two may measure on one server, and each removes what it made. Caught:
// names that count from 1.
func TestStand_DropsOnlyItsOwn(t *testing.T) {
	t.Parallel()
	server := databases.New(t)
	one, two := &stand{url: server}, &stand{url: server}
	for _, s := range []*stand{one, two, one} {
		before := s.last
		address, err := s.fresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u, err := url.Parse(address); err != nil || u.Path != "/"+s.last || !s.has(t, s.last) {
			t.Errorf("%s, and its database is %q", address, s.last)
		}
		if before != "" && s.has(t, before) {
			t.Error("the database of the run before is still there")
		}
	}
	for _, s := range []*stand{one, two} {
		if !s.has(t, s.last) {
			t.Error("another stand dropped the database")
		}
		if err := s.close(); err != nil || s.has(t, s.last) {
			t.Errorf("a database stays, %v", err)
		}
	}
}

// TestStand_LeavesNothingWhenItIsInterrupted while it makes a database, wherever that is. It runs
// alone, so that what it finds is its own. Caught: statements that are stopped in the middle, and a
// database that is kept in mind only when all is well.
func TestStand_LeavesNothingWhenItIsInterrupted(t *testing.T) {
	server := databases.New(t)
	for i := range 8 {
		s := &stand{url: server}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i)*15*time.Millisecond, cancel)
		if _, err := s.fresh(ctx); err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		cancel()
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.fresh(ctx); err == nil {
			t.Error("a database was made after the end")
		}
		var left int
		err := s.do(t.Context(), func(conn *pgx.Conn) error {
			return conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_database WHERE datname LIKE 'leasehold\_bench\_%'`).Scan(&left)
		})
		if err != nil || left != 0 {
			t.Fatalf("interrupted after %d ms: %d databases stay, %v", i*15, left, err)
		}
	}
}

// TestOpenStand_WantsAURL, and shows no password.
func TestOpenStand_WantsAURL(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"host=h dbname=one password=secret", "postgres://u:secret@h:no/one", "/one", "secret"} {
		if _, err := openStand(t.Context(), address); err == nil || !strings.Contains(err.Error(), "--database-url") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
