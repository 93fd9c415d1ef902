package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/subprocess"
)

// site is a database of its own, with servers on it, clients of these, and what the clients know.
type site struct {
	*stage
	database string // its name
	url      string
	db       *pgxpool.Pool // our own look at the tables
	count    int           // of servers
	flags    []string      // of the servers
	replicas []*replica
	started  int // servers, for the names of their logs

	pattern uuid.UUID // the execution of which a backlog is made of copies; none: there is none yet
	piled   int64     // copies

	ledger   *ledger
	errors   atomic.Int64 // calls that were not answered OK
	progress *progress
	mu       sync.Mutex
	conns    []*grpc.ClientConn // to be closed with the servers
}

// replica is a server process.
type replica struct {
	process *subprocess.Process
	addr    string
}

// newSite makes a database and starts servers on it. close ends both.
func (s *stage) newSite(ctx context.Context, count int, flags ...string) (*site, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("the servers are not ready after %s", setUpLimit))
	defer cancel()
	made := &site{
		stage: s, database: "leasehold_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "_"), count: count, flags: flags,
		ledger: newLedger(), progress: newProgress(),
	}
	for _, step := range []func(context.Context) error{made.createDatabase, made.start} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, made.close())
		}
	}
	return made, nil
}

func (s *site) createDatabase(ctx context.Context) (err error) {
	// This is not stopped in the middle: it might come to be after close has dropped it.
	made, cancel := context.WithTimeout(context.WithoutCancel(ctx), setUpLimit)
	defer cancel()
	if err := s.admin(made, "CREATE DATABASE "+pgx.Identifier{s.database}.Sanitize()); err != nil {
		return fmt.Errorf("make a database for the scenario beside the given one: %w", err)
	}
	if s.url, err = withDatabase(s.stage.url, s.database); err != nil {
		return err
	}
	if s.db, err = pgxpool.New(ctx, s.url); err != nil {
		return fmt.Errorf("open the scenario's database: %w", err)
	}
	if err := postgres.Migrate(ctx, s.url, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	// It may not be there, or not be ours to make: then statements are not counted.
	_, _ = s.db.Exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`)
	return nil
}

// start starts the servers, and waits until all are ready.
func (s *site) start(ctx context.Context) error {
	for range s.count {
		s.started++
		// Secrets go by the environment: arguments can be read by everybody on the machine.
		p, err := subprocess.Start(subprocess.Config{
			Program: s.cfg.Program, Folder: s.folder, Name: fmt.Sprintf("%s-server-%d", s.database, s.started),
			Env:  []string{"LEASEHOLD_DATABASE_URL=" + s.url},
			Args: slices.Concat([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=off", "--log-level=warn"}, s.flags, s.cfg.ServeFlags),
		})
		if err != nil {
			return err
		}
		s.replicas = append(s.replicas, &replica{process: p})
	}
	for _, r := range s.replicas {
		text, err := r.process.Line(ctx)
		if err != nil {
			return err
		}
		var ready struct{ Listen string }
		if err := json.Unmarshal([]byte(text), &ready); err != nil {
			return fmt.Errorf("%s says %q: %w", r.process.Name, text, err)
		}
		r.addr = ready.Listen
	}
	return nil
}

// stop ends the servers and waits until PostgreSQL has counted all that they did: a session tells
// at its end at the latest.
func (s *site) stop(ctx context.Context) error {
	s.mu.Lock()
	for _, conn := range s.conns {
		_ = conn.Close() // It cannot fail but for a second time.
	}
	s.conns = nil
	s.mu.Unlock()
	var stopping sync.WaitGroup
	for _, r := range s.replicas {
		stopping.Go(r.process.Stop)
	}
	stopping.Wait()
	s.replicas = nil
	if s.db == nil {
		return nil
	}
	for {
		var n int
		err := s.db.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'leasehold'`, s.database).Scan(&n)
		if err != nil || n == 0 {
			return err
		}
		if !pause(ctx, lookAgain) {
			return context.Cause(ctx)
		}
	}
}

const lookAgain = 10 * time.Millisecond // between two looks

// examine tells of a server that ended by itself.
func (s *site) examine() error {
	for _, r := range s.replicas {
		select {
		case <-r.process.Exited():
			if err := r.process.ByItself(); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// dial prepares a connection to one of the servers, which ends with them.
func (s *site) dial(i int) (*grpc.ClientConn, error) {
	r := s.replicas[i%len(s.replicas)]
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", r.process.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, conn)
	return conn, nil
}

// close ends the servers and drops the database.
func (s *site) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), setUpLimit)
	defer cancel()
	err := s.stop(ctx)
	if s.db != nil {
		s.db.Close()
	}
	return errors.Join(err, s.admin(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{s.database}.Sanitize()+" WITH (FORCE)"))
}
