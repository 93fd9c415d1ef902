package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
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
	s, err := assemble(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer s.close()
	return s.live(ctx, listener, web, ready)
}

// replica is the parts of a server, put together.
type replica struct {
	cfg     settings
	log     *slog.Logger
	seen    *telemetry.Telemetry
	tracing *telemetry.Tracing
	store   *postgres.Store
	relay   *outbox.Relay
	service *scheduler.Scheduler
	api     *grpcapi.Server
	closers []func() // the last one first
}

// assemble puts the parts together. Nothing runs yet.
func assemble(ctx context.Context, cfg settings, log *slog.Logger) (made *replica, err error) {
	s := &replica{cfg: cfg, log: log, seen: telemetry.New(telemetry.Config{Version: version, Logger: log})}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.tracing, err = telemetry.NewTracing(ctx, version, log); err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() { warn(log, s.tracing.Close()) })
	s.store, err = postgres.Open(ctx, postgres.Config{
		URL: cfg.DatabaseURL, MaxConns: cfg.MaxConns, Epoch: cfg.LeaseEpoch, Events: cfg.outboxEvents(),
		SessionTimeout: cfg.SessionTimeout, Logger: log, Observer: s.seen.Transactions, Tracer: s.tracing,
		AroundCommit: crashAroundCommits,
	})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() { closeStore(s.store, log) })
	relay, closeSink, err := newRelay(ctx, cfg, s.store, s.seen, s.tracing, log)
	if err != nil {
		return nil, err
	}
	s.relay, s.closers = relay, append(s.closers, closeSink)
	hints, err := postgres.NewHints(s.store, cmp.Or(cfg.DirectURL, cfg.DatabaseURL))
	if err != nil {
		return nil, err
	}
	s.service = scheduler.New(scheduler.Config{
		Store: s.store, Hints: hints, SweepInterval: cfg.SweepInterval,
		MaxParkedPolls: cfg.MaxParkedPolls, MaxStreams: cfg.MaxStreams, MaxMessageBytes: cfg.MaxMessageBytes,
		Logger: log, Changed: relay.Wake, Observer: s.seen.Scheduler, Dispatches: s.seen.Dispatcher, Tracer: s.tracing,
		Retention: cfg.Keep.retention(), Purges: s.seen.Scheduler,
	})
	s.api, err = grpcapi.New(grpcapi.Config{
		MaxMessageBytes: cfg.MaxMessageBytes, MaxPayloadBytes: cfg.MaxPayloadBytes,
		StopTimeout: cfg.ShutdownTimeout, SessionTimeout: cfg.SessionTimeout, Logger: log,
		Options: slices.Concat(s.tracing.ServerOptions(), s.seen.ServerOptions(), crashAroundAnswers()),
	}, grpcapi.Deps{
		Executions: s.service, Queries: s.store, Sessions: s.service, Leases: s.service, Watches: s.service,
		Operators: s.service, Fleet: s.store, Events: outbox.NewOperator(s.store.Outbox(), relay.Wake),
	})
	if err != nil {
		return nil, err
	}
	s.seen.Watch(sources(s.store, s.service, relay))
	return s, nil
}

// close gives back what the parts hold.
func (s *replica) close() {
	for _, f := range slices.Backward(s.closers) {
		f()
	}
}

// live runs the parts until ctx ends or one of them does, and ends them in order.
func (s *replica) live(ctx context.Context, listener net.Listener, web webPort, ready func(readyLine) error) error {
	// The parts outlive ctx: calls that are under way when it ends still need them.
	lasting, endParts := context.WithCancel(context.WithoutCancel(ctx))
	defer endParts()
	publishing, stopPublishing := context.WithCancel(ctx)
	defer stopPublishing()
	published := make(chan struct{})
	parts, working := errgroup.WithContext(lasting)
	parts.Go(func() error { return tendCollector(working) })
	parts.Go(func() error { return s.service.Run(working) })
	parts.Go(func() error { return s.api.Serve(listener) })
	parts.Go(func() error { return web.serve(working, s.seen) })
	parts.Go(func() error { defer close(published); return s.relay.Run(publishing) })
	s.seen.Serving()

	line := readyLine{
		Ready: true, Listen: listener.Addr().String(), HTTP: web.address(), DatabaseURL: s.cfg.DatabaseURL, PID: os.Getpid(), Version: version,
	}
	failure := ready(line)
	if failure == nil {
		s.log.Info("ready", "listen", line.Listen, "http", line.HTTP, "version", version)
		select {
		case <-ctx.Done():
		case <-working.Done(): // One of the parts failed; Wait tells which.
		}
	}
	s.seen.Stopping()
	s.log.Info("stopping")
	stop := func() error { // Both at once: what the relay has in flight needs its time too.
		stopPublishing()
		s.api.Shutdown(s.service.StopPolls)
		<-published
		return nil
	}
	warn(s.log, bounded(s.cfg.ShutdownTimeout+stopMargin, "the gRPC server and the relay", stop))
	endParts()
	return errors.Join(failure, failureOf(ctx, bounded(partsLimit, "the scheduler", parts.Wait), s.log))
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
		return postgres.Migrate(ctx, cmp.Or(cfg.DirectURL, cfg.DatabaseURL), log)
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
