package runner

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/devpg"
)

// stand is the PostgreSQL that everybody is measured on. Each run has a fresh database on it.
type stand struct {
	pg   *devpg.Server // nil: somebody else's
	url  string
	last string // name of the database of the last run
}

// openStand starts a private PostgreSQL, or takes the one at an address. Either must commit
// durably: a benchmark without that compares nothing.
func openStand(ctx context.Context, address string) (*stand, error) {
	s := &stand{url: address}
	if address != "" {
		if _, err := s.address("any"); err != nil {
			return nil, err
		}
	} else {
		pg, err := startPostgres(ctx)
		if err != nil {
			return nil, fmt.Errorf("start PostgreSQL: %w", err)
		}
		s.pg, s.url = pg, pg.URL()
	}
	if err := s.do(ctx, func(conn *pgx.Conn) error { return checkDurable(ctx, conn) }); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// startPostgres starts one that counts statements, for both sides alike, if it can.
func startPostgres(ctx context.Context) (*devpg.Server, error) {
	pg, err := devpg.Start(ctx, devpg.Config{Ephemeral: true, Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"}})
	var failed *devpg.StartError
	if errors.As(err, &failed) { // The library is not installed everywhere.
		return devpg.Start(ctx, devpg.Config{Ephemeral: true})
	}
	return pg, err
}

func checkDurable(ctx context.Context, conn *pgx.Conn) error {
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil {
			return fmt.Errorf("read setting %s: %w", setting, err)
		}
		if value != "on" {
			return fmt.Errorf("PostgreSQL's %s is %s, not on: what is measured would not be durable", setting, value)
		}
	}
	return nil
}

// makeLimit is for the statements that make a database. They are not stopped in the middle: one that
// is made after we went to drop it would stay.
const makeLimit = 3 * time.Minute

// fresh removes the database of the last run and makes one for the next; all that was dirty is
// written before, so that no run pays for the one before it. Its name is its own: on a server of
// somebody else's nothing is dropped that we did not make.
func (s *stand) fresh(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeLimit)
	defer cancel()
	name := "leasehold_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "_")
	database, err := s.address(name)
	if err != nil {
		return "", err
	}
	err = s.do(ctx, func(conn *pgx.Conn) error {
		for _, q := range []string{s.drop(), "CREATE DATABASE " + name, "VACUUM (ANALYZE)", "CHECKPOINT"} {
			if q == "" {
				continue
			}
			if _, err := conn.Exec(ctx, q); err != nil {
				return fmt.Errorf("%s: %w", q, err)
			}
			if strings.HasPrefix(q, "CREATE") {
				s.last = name
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make a database: %w", err)
	}
	return database, nil
}

// drop is the statement that removes the database of the last run; nothing if there is none.
func (s *stand) drop() string {
	if s.last == "" {
		return ""
	}
	return "DROP DATABASE IF EXISTS " + s.last + " WITH (FORCE)"
}

// address is that of another database on the same server.
func (s *stand) address(name string) (string, error) {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme == "" || u.Host == "" && !u.Query().Has("host") {
		return "", errors.New("--database-url: give it as postgres://user@host/database") // The error would show a password.
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (s *stand) do(ctx context.Context, what func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(ctx)
	return what(conn)
}

// close removes what is left, and ends a private PostgreSQL.
func (s *stand) close() error {
	ctx := context.Background()
	if s.pg != nil {
		return s.pg.Stop(ctx)
	}
	if s.last == "" {
		return nil
	}
	return s.do(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, s.drop())
		return err
	})
}
