package bench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/api/consumer"
	"github.com/leasehold/leasehold/server/internal/broker"
)

const (
	streamName   = "BENCH"
	publishLimit = 2 * time.Minute // from the last report until every event has arrived
)

// runP11 works off what was enqueued before without a sink, and with NATS as the sink.
func runP11(ctx context.Context, t *trial) error {
	return t.compare(ctx, []part{
		{"sink none", func(ctx context.Context) (Point, error) {
			return t.on(ctx, 1, true, func(ctx context.Context, s *site) (Point, error) { return t.drain(ctx, s, t.executions(), oneStep) })
		}},
		{"sink NATS", t.withNATS},
	}, byRate, smaller)
}

// listener is who hears the events.
type listener struct {
	mu     sync.Mutex
	heard  map[string]bool // ids
	repeat int64
}

func (l *listener) hear(m jetstream.Msg) {
	event, err := consumer.ParseEvent(m.Data())
	if err != nil {
		return // It is missed.
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard[event.ID.String()] {
		l.repeat++
	}
	l.heard[event.ID.String()] = true
}

func (l *listener) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.heard))
}

func (t *trial) withNATS(ctx context.Context) (p Point, err error) {
	folder, err := os.MkdirTemp(t.folder, "nats-")
	if err != nil {
		return p, fmt.Errorf("make a folder: %w", err)
	}
	nats, err := broker.Start(folder)
	if err != nil {
		return p, err
	}
	defer nats.Stop()
	if _, err := nats.JetStream.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{"leasehold.>"}}); err != nil {
		return p, fmt.Errorf("make a stream: %w", err)
	}
	reader, err := nats.JetStream.OrderedConsumer(ctx, streamName, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return p, fmt.Errorf("follow the stream: %w", err)
	}
	l := &listener{heard: map[string]bool{}}
	reading, err := reader.Consume(l.hear)
	if err != nil {
		return p, fmt.Errorf("follow the stream: %w", err)
	}
	defer reading.Stop()
	work := func(ctx context.Context, s *site) (p Point, err error) { return t.publishing(ctx, s, l) }
	return t.on(ctx, 1, true, work, "--sink="+nats.URL())
}

// publishing drains while events are published, waits until all have arrived, and looks how late
// they were.
func (t *trial) publishing(ctx context.Context, s *site, l *listener) (p Point, err error) {
	n := t.executions()
	if err := s.fill(ctx, n, oneStep); err != nil {
		return p, err
	}
	var written int64
	p, err = t.workOff(ctx, s, n, func(ctx context.Context) (err error) {
		written, err = s.awaitPublished(ctx, l)
		return err
	})
	if err != nil {
		return p, err
	}
	t.result.Lost += max(written-l.count(), 0)
	lag, err := s.lag(ctx)
	if err != nil {
		return p, err
	}
	p.Figures = map[string]float64{"events": float64(written), "events_repeated": float64(l.repeat)}
	if lag != nil {
		p.Figures["lag_p50_ms"], p.Figures["lag_p99_ms"], p.Figures["lag_max_ms"] = lag.P50, lag.P99, lag.Max
	}
	return p, nil
}

// awaitPublished waits until as many events have arrived as were written. What is missing after
// the limit is lost.
func (s *site) awaitPublished(ctx context.Context, l *listener) (written int64, err error) {
	limited, cancel := context.WithTimeout(ctx, publishLimit)
	defer cancel()
	for {
		var waiting int64
		err := s.db.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE status <> 'PUBLISHED') FROM outbox_events`).Scan(&written, &waiting)
		if err != nil {
			return 0, fmt.Errorf("look at the outbox: %w", err)
		}
		if waiting == 0 && l.count() >= written || !pause(limited, 10*lookAgain) {
			return written, ctx.Err()
		}
	}
}

// lag is how long after its commit each event was published, by PostgreSQL's clock.
func (s *site) lag(ctx context.Context) (*Latency, error) {
	rows, err := s.db.Query(ctx, `SELECT published_at - created_at FROM outbox_events WHERE published_at IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("look at the outbox: %w", err)
	}
	times := newStopwatch()
	var late time.Duration
	if _, err := pgx.ForEachRow(rows, []any{&late}, func() error { times.record(late); return nil }); err != nil {
		return nil, fmt.Errorf("look at the outbox: %w", err)
	}
	return times.latency(), nil
}
