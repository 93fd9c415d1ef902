package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/leasehold/leasehold/server/internal/natspub"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/telemetry"
	"github.com/leasehold/leasehold/server/internal/webhook"
)

// sinkSettings say how events reach their sink.
type sinkSettings struct {
	Source         string   `name:"outbox-source" default:"/leasehold" help:"The source of the events (CloudEvents): a URI reference that names this installation."`
	MaxAttempts    int      `name:"outbox-max-attempts" default:"50" help:"Tries of an event that its sink does not take; then it is DEAD. A sink that is away does not count; 1 or more."`
	NATSSubject    string   `name:"nats-subject" default:"leasehold.{namespace}.{type}" help:"Subject of an event in NATS; {namespace}, {type} and {execution} are filled in."`
	NATSStream     string   `name:"nats-create-stream" default:"" help:"Name of a stream to create for the subjects, if it is not there; empty creates none."`
	WebhookSecrets []string `name:"webhook-secret" default:"" help:"Secret that signs webhooks (Standard Webhooks, whsec_...); several, with commas, while one is replaced by another."`
}

// relayStopLimit is how long events in flight are waited for at the end; what is not
// acknowledged by then is given back, for which the rest of the shutdown leaves time.
const relayStopLimit = 4 * time.Second

// newRelay makes the relay of the sink, and what closes it; without a sink there is none.
func newRelay(ctx context.Context, cfg settings, store *postgres.Store, seen *telemetry.Telemetry, tracing *telemetry.Tracing, log *slog.Logger) (*outbox.Relay, func(), error) {
	if cfg.Sink == sinkNone {
		return nil, func() {}, nil
	}
	publisher, err := newPublisher(ctx, cfg, log)
	if err != nil {
		return nil, nil, fmt.Errorf("--sink: %w", err)
	}
	relay := outbox.NewRelay(outbox.Config{
		Source: store.Outbox(), Publisher: crashAround(publisher), MaximumAttempts: cfg.Out.MaxAttempts, Logger: log, Observer: seen.Relay, Tracer: tracing,
		StopTimeout: min(relayStopLimit, cfg.ShutdownTimeout),
	})
	// Closing may wait for a connection that is being tried.
	return relay, func() { warn(log, bounded(storeLimit, "the sink", publisher.Close)) }, nil
}

func newPublisher(ctx context.Context, cfg settings, log *slog.Logger) (outbox.Publisher, error) {
	if cfg.Sink == sinkLog {
		return outbox.NewLogPublisher(log), nil
	}
	u, err := url.Parse(cfg.Sink)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" || u.Scheme == "https" {
		return webhook.New(webhook.Config{URL: cfg.Sink, Secrets: cfg.Out.WebhookSecrets, Source: cfg.Out.Source, Logger: log})
	}
	return natspub.New(ctx, natspub.Config{
		URL: cfg.Sink, SubjectPattern: cfg.Out.NATSSubject, CreateStream: cfg.Out.NATSStream, Source: cfg.Out.Source, Logger: log,
	})
}
