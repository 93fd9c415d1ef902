package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/server/internal/grpcapi"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/telemetry"
)

// run is the composition root: it puts the parts of a server together, calls ready when they
// serve, and ends them in order when ctx ends, which is no error. If a part ends by itself, so
// does the server, with its error. A database that goes away later is none: calls are
// answered UNAVAILABLE until it is back.
func run(ctx context.Context, cfg settings, log *slog.Logger, ready func(readyLine) error) error {
	if err := openDatabase(ctx, cfg, log); err != nil {
		return unlessAsked(ctx, err)
	}
	listener, err := listen(ctx, "listen", cfg.Listen)
	if err != nil {
		return unlessAsked(ctx, err)
	}
	defer listener.Close()
	web, err := listenHTTP(ctx, cfg, log)
	if err != nil {
		return unlessAsked(ctx, err)
	}
	defer web.Close()

	seen := telemetry.New(telemetry.Config{Version: version, Logger: log})
	store, err := postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: cfg.MaxConns, Epoch: cfg.LeaseEpoch, Events: cfg.outboxEvents(),
		SessionTimeout: cfg.SessionTimeout, Logger: log, Observer: seen.Transactions,
	})
	if err != nil {
		return err
	}
	defer closeStore(store, log)
	relay, closeSink, err := newRelay(ctx, cfg, store, seen.Relay, log)
	if err != nil {
		return err
	}
	defer closeSink()
	hints, err := postgres.NewHints(store, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	service := scheduler.New(scheduler.Config{
		Store: store, Hints: hints, SweepInterval: cfg.SweepInterval,
		MaxParkedPolls: cfg.MaxParkedPolls, MaxStreams: cfg.MaxStreams, MaxMessageBytes: cfg.MaxMessageBytes,
		Logger: log, Changed: relay.Wake, Observer: seen.Scheduler, Dispatches: seen.Dispatcher,
		Retention: cfg.Keep.retention(), Purges: seen.Scheduler,
	})
	api, err := grpcapi.New(grpcapi.Config{
		MaxMessageBytes: cfg.MaxMessageBytes, MaxPayloadBytes: cfg.MaxPayloadBytes,
		StopTimeout: cfg.ShutdownTimeout, SessionTimeout: cfg.SessionTimeout, Logger: log, Options: seen.ServerOptions(),
	}, grpcapi.Deps{
		Executions: service, Queries: store, Sessions: service, Leases: service, Watches: service,
		Operators: service, Fleet: store,
		Events: outbox.NewOperator(store.Outbox(), relay.Wake),
	})
	if err != nil {
		return err
	}
	seen.Watch(sources(store, service, relay))

	// The parts outlive ctx: calls that are under way when it ends still need them.
	lasting, endParts := context.WithCancel(context.WithoutCancel(ctx))
	defer endParts()
	parts, working := errgroup.WithContext(lasting)
	parts.Go(func() error { return service.Run(working) })
	parts.Go(func() error { return api.Serve(listener) })
	parts.Go(func() error { return web.serve(working, seen) })
	seen.Serving()
	publishing, stopPublishing := context.WithCancel(ctx)
	defer stopPublishing()
	published := make(chan struct{})
	parts.Go(func() error { defer close(published); return relay.Run(publishing) })

	line := readyLine{
		Ready: true, Listen: listener.Addr().String(), HTTP: web.address(), DatabaseURL: cfg.DatabaseURL, PID: os.Getpid(), Version: version,
	}
	failure := ready(line)
	if failure == nil {
		log.Info("ready", "listen", line.Listen, "http", line.HTTP, "version", version)
		select {
		case <-ctx.Done():
		case <-working.Done(): // One of the parts failed; Wait tells which.
		}
	}
	seen.Stopping()
	log.Info("stopping")
	stop := func() error { // Both at once: what the relay has in flight needs its time too.
		stopPublishing()
		api.Shutdown(service.StopPolls)
		<-published
		return nil
	}
	warn(log, bounded(cfg.ShutdownTimeout+stopMargin, "the gRPC server and the relay", stop))
	endParts()
	return errors.Join(failure, failureOf(ctx, bounded(partsLimit, "the scheduler", parts.Wait), log))
}

// The bounds of a shutdown beside --shutdown-timeout, with whose default they make up less
// than 10 s.
const (
	stopMargin = time.Second
	partsLimit = 1200 * time.Millisecond
	storeLimit = 500 * time.Millisecond
)

// openDatabase waits for the database, and sees to it that its schema is the one we know.
func openDatabase(ctx context.Context, cfg settings, log *slog.Logger) error {
	if err := postgres.Await(ctx, cfg.DatabaseURL, cfg.DatabaseWait, log); err != nil {
		return err
	}
	if cfg.Migrate {
		return postgres.Migrate(ctx, cfg.DatabaseURL, log)
	}
	return postgres.CheckSchema(ctx, cfg.DatabaseURL)
}

// listen listens on the address that a flag names.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	var how net.ListenConfig
	listener, err := how.Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another program listens on %s; choose another port with --%[2]s, or a free one with --%[2]s 127.0.0.1:0: %[3]w", address, flag, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// closeStore gives the connections back; one that is stuck does not keep us.
func closeStore(store *postgres.Store, log *slog.Logger) {
	warn(log, bounded(storeLimit, "the connections to the database", func() error { store.Close(); return nil }))
}

// failureOf drops what is no failure of the parts: that they ended as they were told, and that
// they took too long for it.
func failureOf(ctx context.Context, err error, log *slog.Logger) error {
	if errors.Is(err, errNotEnded) {
		warn(log, err)
		return nil
	}
	return unlessAsked(ctx, err)
}

var errNotEnded = errors.New("did not end in time")

// bounded returns what f returns, or after the limit errNotEnded, leaving f behind.
func bounded(limit time.Duration, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%s: %w (%s)", what, errNotEnded, limit)
	}
}

func warn(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("shutdown", "error", err)
	}
}

// unlessAsked drops an error that only says that ctx ended: that is how we are told to end.
func unlessAsked(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
