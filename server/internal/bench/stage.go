package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/devpg"
)

const (
	setUpLimit   = 3 * time.Minute
	postgresStop = 10 * time.Second
)

// stage is what scenarios run on, one after the other.
type stage struct {
	cfg        Config
	folder     string        // logs of the processes, and NATS's files
	pg         *devpg.Server // nil: the database is the user's own
	url        string        // of a database, beside which scenarios make theirs
	postmaster int           // its process id; 0: not on this machine
	notes      []string      // what makes the figures worth less
}

// newStage starts or looks at PostgreSQL. What it started until an error, tearDown ends.
func newStage(ctx context.Context, cfg Config) (*stage, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("PostgreSQL is not ready after %s", setUpLimit))
	defer cancel()
	s := &stage{cfg: cfg, url: cfg.DatabaseURL}
	for _, step := range []func(context.Context) error{s.startPostgres, s.lookAtPostgres} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, s.tearDown())
		}
	}
	return s, nil
}

func (s *stage) startPostgres(ctx context.Context) (err error) {
	if s.folder, err = os.MkdirTemp("", "leasehold-bench-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if s.url != "" {
		return nil
	}
	binaries, err := devpg.FindOrInstall(ctx, s.cfg.Err)
	if err != nil {
		return err
	}
	durable := map[string]string{"fsync": "on", "synchronous_commit": "on"}
	counting := map[string]string{"fsync": "on", "synchronous_commit": "on", "shared_preload_libraries": "pg_stat_statements"}
	s.pg, err = devpg.Start(ctx, devpg.Config{Ephemeral: true, Binaries: binaries, Settings: counting})
	var failed *devpg.StartError
	if errors.As(err, &failed) { // The library is not installed everywhere.
		s.pg, err = devpg.Start(ctx, devpg.Config{Ephemeral: true, Binaries: binaries, Settings: durable})
	}
	if err != nil {
		return err
	}
	s.url = s.pg.URL()
	return nil
}

// lookAtPostgres finds its process, and what would make the figures worth less.
func (s *stage) lookAtPostgres(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		var value string
		if err := conn.QueryRow(ctx, `SELECT current_setting($1)`, setting).Scan(&value); err != nil {
			return fmt.Errorf("look at PostgreSQL's settings: %w", err)
		}
		if value == "off" {
			s.notes = append(s.notes, setting+" is off: what was answered OK can be lost, and the figures are too good")
		}
	}
	if s.pg != nil {
		s.postmaster = s.pg.PID()
		return nil
	}
	s.postmaster, err = findPostmaster(ctx, conn)
	return err
}

// admin runs a statement beside the databases of the scenarios.
func (s *stage) admin(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

// withDatabase names another database in a URL, or in keywords and values.
func withDatabase(database, name string) (string, error) {
	if !strings.Contains(database, "://") {
		return database + " dbname=" + name, nil // The last one counts.
	}
	u, err := url.Parse(database)
	if err != nil {
		return "", errors.New("--database-url: it is no URL") // The error would show a password.
	}
	u.Path = "/" + name
	return u.String(), nil
}

// tearDown ends PostgreSQL, if it is ours, and removes what is left.
func (s *stage) tearDown() error {
	var errs []error
	if s.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), postgresStop)
		defer cancel()
		errs = append(errs, s.pg.Stop(ctx))
	}
	if s.folder != "" && !s.cfg.KeepLogs {
		errs = append(errs, os.RemoveAll(s.folder))
	}
	return errors.Join(errs...)
}
