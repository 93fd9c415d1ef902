package natspub

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func logTo(log *safeBuffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func address(b *broker) string {
	address := strings.TrimPrefix(b.url(), "nats://")
	return address[strings.LastIndex(address, "@")+1:]
}

func TestCreateStream_OnlyIfAskedTo(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	ctx := within(t, 20*time.Second)
	plain := publisher(t, Config{URL: b.url()})
	if err := plain.Publish(t.Context(), newEvent()); err == nil {
		t.Error("published without a stream")
	}
	for range b.client().ListStreams(ctx).Info() {
		t.Error("a stream was made")
	}
	p := publisher(t, Config{URL: b.url(), CreateStream: "EVENTS", SubjectPattern: "lh.{namespace}.x-{execution}.{type}"})
	stream, err := b.client().Stream(ctx, "EVENTS")
	if err != nil {
		t.Fatalf("not made at the start: %v", err)
	}
	cfg := stream.CachedInfo().Config
	if len(cfg.Subjects) != 1 || cfg.Subjects[0] != "lh.*.*.>" || cfg.Storage != jetstream.FileStorage ||
		cfg.MaxMsgs != -1 || cfg.MaxAge != 0 || cfg.Duplicates != 2*time.Minute {
		t.Errorf("made as %+v", cfg)
	}
	if err := p.Publish(t.Context(), newEvent()); err != nil {
		t.Error(err)
	}
	// Deleted under us, it is made again.
	if err := b.client().DeleteStream(ctx, "EVENTS"); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), newEvent()); err != nil {
		t.Errorf("after it was deleted: %v", err)
	}
}

func TestCreateStream_LeavesAnExistingOne(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"leasehold.other.>"}, MaxAge: time.Hour})
	p := publisher(t, Config{URL: b.url(), CreateStream: "EVENTS"})
	if err := p.Publish(t.Context(), newEvent()); !errors.Is(err, jetstream.ErrNoStreamResponse) || isRefused(err) {
		t.Errorf("to a stream that takes other subjects: got %v, want that no stream answers", err)
	}
	e := newEvent()
	e.Namespace = "other"
	if err := p.Publish(t.Context(), e); err != nil {
		t.Error(err)
	}
	stream, err := b.client().Stream(within(t, 20*time.Second), "EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.MaxAge != time.Hour || cfg.Subjects[0] != "leasehold.other.>" {
		t.Errorf("changed to %+v", cfg)
	}
}

// TestCreateStream_SeenAtTheStart: another stream has the subjects already.
func TestCreateStream_SeenAtTheStart(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"leasehold.>"}})
	p, err := New(within(t, 20*time.Second), Config{URL: b.url(), Source: source, CreateStream: "EVENTS"})
	if err == nil {
		_ = p.Close()
		t.Fatal("no error")
	}
	if !strings.Contains(err.Error(), "overlap") {
		t.Errorf("got %v", err)
	}
}
