// Package river runs the scenarios on River (github.com/riverqueue/river), the scheduler on
// PostgreSQL that a Go program would take otherwise.
//
// It is set up as River's own benchmark command does for speed, and not by its defaults, which
// are slower: FetchCooldown 2 ms (default 100 ms), FetchPollInterval 20 ms (default 1 s), and
// 1,000 workers, which its authors found to be the best. The completer is the default one, which
// batches. LISTEN/NOTIFY is on, so that a job starts soon after its insert. The pool has a
// connection for each producer and some for River itself, so that nobody waits for one: 40.
// Nothing is switched off that an installation would have, and PostgreSQL commits as durably as
// it does for Leasehold.
//
// A job's work is to be counted. A job that was accepted and never worked is lost, one that was
// worked twice is doubled. A run is over when River has committed that the jobs are completed.
//
// It imports result and figures.
package river

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/leasehold/leasehold/server/bench/internal/figures"
	"github.com/leasehold/leasehold/server/bench/internal/result"
)

const (
	connections   = 40
	maxWorkers    = 1000
	fetchCooldown = 2 * time.Millisecond
	fetchPoll     = 20 * time.Millisecond

	preloadBatch = 5000
	poll         = 2 * time.Millisecond
	patience     = 60 * time.Second // without any progress, before what is missing counts as lost
	stopLimit    = 30 * time.Second
	mostPerS     = 30_000 // jobs that producers are expected to insert, at most
)

// Config says what to run. The counts are those of PERFORMANCE's scenarios unless given.
type Config struct {
	URL       string // an empty database
	Scenario  string // P1, P2, P3, P4 or P6
	Count     int    // P2, P3: jobs; P6: jobs of a drain
	Duration  time.Duration
	Producers int     // P1, P3: goroutines that insert
	Batch     int     // P3: jobs of an InsertMany
	Rate      float64 // P4: jobs a second
	Snapshot  bool    // P6: another transaction's snapshot is open meanwhile
	Logger    *slog.Logger
}

// peer is a run in progress.
type peer struct {
	cfg    Config
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	book   *book
	starts *starts // P4: when jobs began; nil elsewhere
	out    result.Run

	// What is measured began here.
	since  time.Time // monotonic
	before figures.Counters
	cpu    time.Duration
}

// Run runs a scenario on an empty database.
func Run(ctx context.Context, cfg Config) (*result.Run, error) {
	scenarios := map[string]func(*peer, context.Context) error{
		"P1": (*peer).oneByOne, "P2": (*peer).drain, "P3": (*peer).batches, "P4": (*peer).latency, "P6": (*peer).drains,
	}
	do, known := scenarios[cfg.Scenario]
	if !known {
		return nil, fmt.Errorf("there is no scenario %q on River", cfg.Scenario)
	}
	p := &peer{cfg: cfg, out: result.Run{Scenario: cfg.Scenario, Side: "river", Unit: "jobs/s"}}
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	defer p.pool.Close()
	if err := do(p, ctx); err != nil {
		return nil, fmt.Errorf("run %s on River: %w", cfg.Scenario, err)
	}
	p.pool.Close()
	after, err := figures.Read(ctx, cfg.URL)
	if err != nil {
		return nil, err
	}
	p.out.Postgres = after.Since(p.before, p.out.Count)
	return &p.out, nil
}

// open connects and makes River's tables.
func (p *peer) open(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(p.cfg.URL)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	cfg.MaxConns = connections
	if p.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(p.pool), &rivermigrate.Config{Logger: p.cfg.Logger})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		p.client, err = p.newClient()
	}
	if err != nil {
		p.pool.Close()
		return fmt.Errorf("set River up: %w", err)
	}
	return nil
}

func (p *peer) newClient() (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, river.WorkFunc(p.work)); err != nil {
		return nil, fmt.Errorf("add worker: %w", err)
	}
	client, err := river.NewClient(riverpgxv5.New(p.pool), &river.Config{
		FetchCooldown:     fetchCooldown,
		FetchPollInterval: fetchPoll,
		Logger:            p.cfg.Logger,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: maxWorkers}},
		Workers:           workers,
	})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

// job is what a job carries: its number in the book.
type job struct {
	Number int `json:"number"`
}

// Kind is River's name for jobs of this type.
func (job) Kind() string { return "bench" }

func (p *peer) work(_ context.Context, j *river.Job[job]) error {
	p.starts.mark(j.Args.Number)
	p.book.work(j.Args.Number)
	return nil
}

// begin has PostgreSQL know what is there, and starts the measuring.
func (p *peer) begin(ctx context.Context) error {
	err := figures.Analyze(ctx, p.cfg.URL)
	if err == nil {
		p.before, err = figures.Read(ctx, p.cfg.URL)
	}
	p.since, p.cpu = time.Now(), cpuTime()
	return err
}

// end ends the measuring, after so many jobs.
func (p *peer) end(count int64) {
	p.out.Took(count, time.Since(p.since))
	if count > 0 {
		p.out.CPU.Server = (cpuTime() - p.cpu).Seconds() * 1000 / float64(count)
	}
}

// settled waits until River has committed that no job is open any more.
func (p *peer) settled(ctx context.Context) error {
	p.book.await(ctx)
	const q = `SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))`
	for since := time.Now(); ; { // monotonic
		var open bool
		if err := p.pool.QueryRow(ctx, q).Scan(&open); err != nil {
			return fmt.Errorf("look for open jobs: %w", err)
		}
		if !open {
			return nil
		}
		if time.Since(since) > patience {
			return errors.New("jobs stay open")
		}
		time.Sleep(poll)
	}
}

// stop ends the client, and counts what became of the jobs.
func (p *peer) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	if err := p.client.Stop(ctx); err != nil {
		return fmt.Errorf("stop River: %w", err)
	}
	lost, doubled := p.book.count()
	p.out.Lost += lost
	p.out.Doubled += doubled
	return nil
}

// preload inserts jobs that are not measured, by COPY.
func (p *peer) preload(ctx context.Context, count int) error {
	numbers := make([]int, count)
	for i := range numbers {
		numbers[i] = i
	}
	for part := range slices.Chunk(numbers, preloadBatch) {
		if _, err := p.client.InsertManyFast(ctx, jobsOf(part)); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
		for _, n := range part {
			p.book.accept(n)
		}
	}
	return nil
}

func jobsOf(numbers []int) []river.InsertManyParams {
	jobs := make([]river.InsertManyParams, len(numbers))
	for i, n := range numbers {
		jobs[i].Args = job{Number: n}
	}
	return jobs
}

// capacity is how many jobs a run by time has numbers for.
func (p *peer) capacity() int {
	return int(math.Ceil(p.cfg.Duration.Seconds())) * mostPerS
}

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Quiet is a logger that tells only what went wrong.
func Quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
