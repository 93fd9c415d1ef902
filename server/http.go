package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/telemetry"
)

// webPort is the port of metrics and health, which may be off.
type webPort struct{ listener net.Listener }

// listenHTTP listens where the settings say.
func listenHTTP(ctx context.Context, cfg settings, log *slog.Logger) (webPort, error) {
	if cfg.HTTPListen == httpOff {
		return webPort{}, nil
	}
	listener, err := listen(ctx, "http-listen", cfg.HTTPListen)
	if cfg.FreeHTTP && errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(cfg.HTTPListen) // checked before
		log.Info("another program listens there: HTTP takes a free port", "address", cfg.HTTPListen)
		listener, err = listen(ctx, "http-listen", net.JoinHostPort(host, "0"))
	}
	return webPort{listener}, err
}

// address is where it listens; empty: off.
func (w webPort) address() string {
	if w.listener == nil {
		return ""
	}
	return w.listener.Addr().String()
}

// serve serves until ctx ends.
func (w webPort) serve(ctx context.Context, t *telemetry.Telemetry) error {
	if w.listener == nil {
		return nil
	}
	return t.Serve(ctx, w.listener)
}

// Close stops listening.
func (w webPort) Close() {
	if w.listener != nil {
		_ = w.listener.Close() // again, when it was served
	}
}

// sources are what metrics and health ask.
func sources(store *postgres.Store, service *scheduler.Scheduler, relay *outbox.Relay) telemetry.Sources {
	return telemetry.Sources{
		Ping: store.Ping, Queues: store, Outbox: store.Outbox(), Pool: func() telemetry.Pool { return store.PoolStat() },
		ParkedPolls: service.ParkedPolls, Watches: service.Watchers, Loops: service.Loops(), Relay: relay != nil,
	}
}
