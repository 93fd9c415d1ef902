package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/server/internal/builtin"
	"github.com/leasehold/leasehold/server/internal/devpg"
)

type devCommand struct {
	Settings  settings `embed:""`
	DataDir   string   `type:"path" placeholder:"FOLDER" help:"Folder that keeps the database; by default leasehold/dev below $$XDG_STATE_HOME (else ~/.local/state), as root /var/lib/leasehold/dev."`
	Ephemeral bool     `help:"Keep nothing: the database is removed at the end."`
}

// The bounds of a shutdown: the three follow each other, and make up less than 10 s.
const (
	workerLimit      = 3 * time.Second
	devShutdownLimit = 3 * time.Second
	postgresLimit    = time.Second
)

// Validate is called when the command was parsed.
func (c *devCommand) Validate() error {
	var both error
	if c.Ephemeral && c.DataDir != "" {
		both = errors.New("--ephemeral keeps nothing, and so takes no --data-dir")
	}
	return join(c.Settings.check(), both)
}

// Run starts PostgreSQL, the server and the worker, and ends them in the reverse order.
func (c *devCommand) Run(ctx context.Context, to console) error {
	log := c.Settings.Log.logger(to.err)
	pg, err := c.startPostgres(ctx, to.err, log)
	if err != nil {
		return unlessAsked(ctx, err)
	}
	err = c.serve(ctx, pg, log, to)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgresLimit)
	defer cancel()
	return errors.Join(err, pg.Stop(limited))
}

func (c *devCommand) startPostgres(ctx context.Context, stderr io.Writer, log *slog.Logger) (*devpg.Server, error) {
	binaries, err := devpg.FindOrInstall(ctx, stderr)
	if err != nil {
		return nil, err
	}
	pg, err := devpg.Start(ctx, devpg.Config{
		DataDir: c.DataDir, Ephemeral: c.Ephemeral, Binaries: binaries, Supervise: true,
		Log: slog.NewLogLogger(log.Handler(), slog.LevelInfo).Writer(),
	})
	if err != nil {
		return nil, err
	}
	log.Info("PostgreSQL runs", "version", pg.Binaries().Version, "data_dir", pg.DataDir(), "log", pg.LogFile())
	return pg, nil
}

// serve returns when ctx ends, or when one of the server, the worker and PostgreSQL ends by
// itself, which is an error.
func (c *devCommand) serve(ctx context.Context, pg *devpg.Server, log *slog.Logger, to console) error {
	cfg := c.Settings
	cfg.DatabaseURL, cfg.Migrate, cfg.FreeHTTP, cfg.Sink = pg.URL(), true, true, cmp.Or(cfg.Sink, sinkLog)
	cfg.ShutdownTimeout = min(cfg.ShutdownTimeout, devShutdownLimit)

	all, ending := errgroup.WithContext(ctx)
	// The server outlives the worker, which hands back what it has.
	serving, endServer := context.WithCancel(context.WithoutCancel(ctx))
	defer endServer()
	ready := make(chan readyLine, 1)
	all.Go(func() error {
		return run(serving, cfg, log, func(line readyLine) error {
			if err := line.print(to.out); err != nil {
				return err
			}
			ready <- line
			return nil
		})
	})
	all.Go(func() error {
		defer endServer()
		select {
		case line := <-ready:
			printHints(to.err, line)
			return work(ending, dialable(line.Listen), log)
		case <-ending.Done():
			return nil
		}
	})
	all.Go(func() error {
		select {
		case <-pg.Done():
			return pg.Wait()
		case <-ending.Done():
			return nil
		}
	})
	return all.Wait()
}

// work runs the built-in worker until ctx ends.
func work(ctx context.Context, address string, log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() { ended <- builtin.Run(ctx, "passthrough:///"+address, log, grpc.WithNoProxy()) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = bounded(workerLimit, "the built-in worker", func() error { return <-ended })
	}
	if ctx.Err() != nil {
		warn(log, err)
		return nil
	}
	if err == nil {
		err = errors.New("it gives no reason")
	}
	return fmt.Errorf("the built-in worker ended by itself: %w", err)
}

// printHints says what to type next. Each command can be copied as it is, more than once.
func printHints(w io.Writer, line readyLine) {
	const text = `
Leasehold serves on ADDRESS, and a built-in worker does steps that need
example.echo, example.sleep ({"seconds": 1.5}) or example.flaky ({"fail_times": 1}).
Try it from another terminal:

  # enqueue an execution
  grpcurl -plaintext -d '{"name": "hello", "idempotency_key": "hello-1", "steps": [{"name": "greet", "capability": "example.echo", "input": {"json": "{\"hello\": \"world\"}"}}]}' ADDRESS leasehold.v1.ExecutionService/EnqueueExecution

  # look at it
  grpcurl -plaintext -d '{"idempotency_key": "hello-1", "include_payloads": true}' ADDRESS leasehold.v1.ExecutionService/GetExecution

  # what happened to it
  ID=$(grpcurl -plaintext -d '{"idempotency_key": "hello-1"}' ADDRESS leasehold.v1.ExecutionService/GetExecution | grep -m 1 '"id"' | cut -d '"' -f 4)
  grpcurl -plaintext -d "{\"execution_id\": \"$ID\"}" ADDRESS leasehold.v1.ExecutionService/ListTimeline

  # its tables
  psql 'DATABASE'
`
	const metrics = `
  # its metrics
  curl -s http://HTTP/metrics
`
	const end = `
Ctrl-C ends all of it.

`
	all := text + end
	if line.HTTP != "" {
		all = text + metrics + end
	}
	fmt.Fprint(w, strings.NewReplacer(
		"ADDRESS", dialable(line.Listen), "DATABASE", line.DatabaseURL, "HTTP", dialable(line.HTTP)).Replace(all))
}
