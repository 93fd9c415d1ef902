// Package limit is the physical limit of P2: pgbench, PostgreSQL's own load generator, which
// writes the rows of a drain with Leasehold's batching and does nothing else. There is no gRPC, no
// program that decides, no lock but those of the writes themselves, and nothing is looked at twice.
// What Leasehold reaches of it is what the promises leave.
//
// fill.sql writes what was enqueued before; drain.sql is one round of claim, dispatch and report. A
// test compares what they write with what the service's own store writes, table by table, so that
// the limit stays honest when the service changes: then change the scripts too.
//
// A round has 200 executions, as many as a round of Leasehold's dispatcher has at most, and four
// polls with 50 leases each; four connections work at once. pgbench prepares its statements, as the
// store does.
//
// It imports result, figures, and of the service postgres, for the schema, and devpg, to find
// pgbench.
package limit

import (
	"bytes"
	"context"
	_ "embed" // For the scripts.
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/bench/internal/figures"
	"github.com/leasehold/leasehold/server/bench/internal/result"
	"github.com/leasehold/leasehold/server/internal/devpg"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

var (
	//go:embed fill.sql
	fillScript string
	//go:embed drain.sql
	drainScript []byte
)

// leasesOfPoll is how many leases a poll of P2 brings.
const leasesOfPoll = 50

// Config says how much is written.
type Config struct {
	URL     string // an empty database
	Count   int    // executions; rounded up to whole rounds of every connection
	Batch   int    // executions of a round
	Clients int    // connections
}

// Run fills a database, and measures how fast pgbench drains it.
func Run(ctx context.Context, cfg Config) (*result.Run, error) {
	if cfg.Count < 1 || cfg.Batch < 1 || cfg.Clients < 1 {
		return nil, errors.New("executions, batch and clients have to be 1 or more")
	}
	rounds := (cfg.Count + cfg.Batch*cfg.Clients - 1) / (cfg.Batch * cfg.Clients)
	cfg.Count = rounds * cfg.Batch * cfg.Clients
	if err := postgres.Migrate(ctx, cfg.URL, slog.New(slog.DiscardHandler)); err != nil {
		return nil, fmt.Errorf("make the schema: %w", err)
	}
	if err := fill(ctx, cfg); err != nil {
		return nil, err
	}
	if err := figures.Analyze(ctx, cfg.URL); err != nil {
		return nil, err
	}
	program, err := find(ctx)
	if err != nil {
		return nil, err
	}
	before, err := figures.Read(ctx, cfg.URL)
	if err != nil {
		return nil, err
	}
	began := time.Now() // monotonic
	if err := drain(ctx, cfg, program, rounds); err != nil {
		return nil, err
	}
	r := &result.Run{Scenario: "P12", Side: "limit", Unit: "executions/s"}
	r.Took(int64(cfg.Count), time.Since(began))
	after, err := figures.Read(ctx, cfg.URL)
	if err != nil {
		return nil, err
	}
	r.Postgres = after.Since(before, r.Count)
	return r, count(ctx, cfg, r)
}

// fill writes what was enqueued before.
func fill(ctx context.Context, cfg Config) error {
	return on(ctx, cfg.URL, func(conn *pgx.Conn) error {
		statements := strings.ReplaceAll(fillScript, "$1", strconv.Itoa(cfg.Count))
		if _, err := conn.Exec(ctx, statements); err != nil {
			return fmt.Errorf("fill the database: %w", err)
		}
		return nil
	})
}

// drain runs pgbench.
func drain(ctx context.Context, cfg Config, program string, rounds int) error {
	conn, err := environment(cfg.URL)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "--no-vacuum", "--protocol=prepared", "--file=/dev/stdin",
		"--client="+strconv.Itoa(cfg.Clients), "--transactions="+strconv.Itoa(rounds), "--define=batch="+strconv.Itoa(cfg.Batch),
		"--define=polls="+strconv.Itoa((cfg.Batch+leasesOfPoll-1)/leasesOfPoll), "--define=claim="+uuid.NewString())
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(drainScript), &said, &said, append(os.Environ(), conn...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run pgbench: %w\n%s", err, said.String())
	}
	return nil
}

// find looks for pgbench beside PostgreSQL's other programs, then in PATH.
func find(ctx context.Context) (string, error) {
	if found, err := devpg.Find(ctx); err == nil {
		if beside := filepath.Join(found.Dir, "pgbench"); exec.Command(beside, "--version").Run() == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("pgbench")
	if err != nil {
		return "", fmt.Errorf("the limit needs pgbench, which comes with PostgreSQL: %w", err)
	}
	return path, nil
}

// environment says to libpq where to connect: arguments could be read by everybody.
func environment(url string) ([]string, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	env := []string{
		"PGHOST=" + c.Host, "PGPORT=" + strconv.Itoa(int(c.Port)), "PGUSER=" + c.User, "PGPASSWORD=" + c.Password, "PGDATABASE=" + c.Database,
		// The service's connections have these, for its plans find rows by index.
		"PGOPTIONS=-c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_bitmapscan=off",
	}
	if c.TLSConfig == nil {
		env = append(env, "PGSSLMODE=disable")
	}
	return env, nil
}

// count looks what became of the executions.
func count(ctx context.Context, cfg Config, r *result.Run) error {
	return on(ctx, cfg.URL, func(conn *pgx.Conn) error {
		const q = `
SELECT (SELECT count(*) FROM executions WHERE state <> 'SUCCEEDED'),
    (SELECT count(*) FROM attempts) - (SELECT count(DISTINCT step_id) FROM attempts)`
		if err := conn.QueryRow(ctx, q).Scan(&r.Lost, &r.Doubled); err != nil {
			return fmt.Errorf("count executions: %w", err)
		}
		return nil
	})
}

func on(ctx context.Context, url string, do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	return do(conn)
}
