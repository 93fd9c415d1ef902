package natspub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func TestPublish_StoresAStructuredCloudEvent(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{})
	p := publisher(t, Config{URL: b.url()})
	e := newEvent()
	if err := p.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	stored := b.stored() // at once: it was acknowledged
	if len(stored) != 1 {
		t.Fatalf("%d messages, want 1", len(stored))
	}
	msg := stored[0]
	if want := "leasehold.default.leasehold.execution.v1.succeeded"; msg.Subject != want {
		t.Errorf("subject %s, want %s", msg.Subject, want)
	}
	if got := msg.Header.Get("content-type"); got != "application/cloudevents+json" {
		t.Errorf("content-type %q", got)
	}
	if got := msg.Header.Get("Nats-Msg-Id"); got != e.ID.String() {
		t.Errorf("Nats-Msg-Id %q, want %s", got, e.ID)
	}
	var got map[string]any
	if err := json.Unmarshal(msg.Data, &got); err != nil {
		t.Fatal(err)
	}
	data, _ := got["data"].(map[string]any)
	if got["specversion"] != "1.0" || got["id"] != e.ID.String() || got["source"] != source ||
		got["type"] != e.Type || got["sequence"] != "7" || data["state"] != "SUCCEEDED" {
		t.Errorf("body %s", msg.Data)
	}
}

func TestPublish_RepeatsAreDroppedByTheStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{})
	p := publisher(t, Config{URL: b.url()})
	e := newEvent()
	for range 3 {
		if err := p.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.stored()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// TestPublish_WaitsForTheAck: a stream that does not acknowledge, and a subscriber that is no
// stream, are no delivery (B79).
func TestPublish_WaitsForTheAck(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{NoAck: true})
	p := publisher(t, Config{URL: b.url(), Timeout: 400 * time.Millisecond})
	started := time.Now()
	err := p.Publish(t.Context(), newEvent())
	if !errors.Is(err, context.DeadlineExceeded) || isRefused(err) || !strings.Contains(err.Error(), "no acknowledgement within 400ms") {
		t.Errorf("no ack: got %v, want the timeout", err)
	}
	if took := time.Since(started); took < 400*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if err := p.Publish(within(t, 50*time.Millisecond), newEvent()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the end of its context", err)
	}

	conn, err := nats.Connect(b.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if _, err := conn.Subscribe("plain.>", func(m *nats.Msg) { _ = m.Respond([]byte("+OK")) }); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	plain := publisher(t, Config{URL: b.url(), SubjectPattern: "plain.{type}"})
	if err := plain.Publish(t.Context(), newEvent()); err == nil || isRefused(err) {
		t.Errorf("answered by no stream: got %v, want an error worth a later try", err)
	}
}

func TestPublish_MissingStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	p := publisher(t, Config{URL: b.url()})
	e := newEvent()
	if err := p.Publish(t.Context(), e); !errors.Is(err, jetstream.ErrNoStreamResponse) || isRefused(err) {
		t.Fatalf("got %v, want that no stream answers", err)
	}
	var away *outbox.AwayError
	if err := p.Publish(t.Context(), e); !errors.As(err, &away) {
		t.Errorf("got %v, which counts against the event: it is no fault of its", err)
	}
	b.stream(jetstream.StreamConfig{})
	if err := p.Publish(t.Context(), e); err != nil {
		t.Errorf("once the stream is there: %v", err)
	}
}

func TestPublish_TooLargeIsRefused(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.MaxPayload = 4096 })
	b.stream(jetstream.StreamConfig{MaxMsgSize: 2048})
	p := publisher(t, Config{URL: b.url()})
	for name, size := range map[string]int{"the server": 5000, "the stream": 2500} {
		e := newEvent()
		e.Data = []byte(`"` + strings.Repeat("x", size) + `"`)
		if err := p.Publish(t.Context(), e); !isRefused(err) {
			t.Errorf("too large for %s: got %v, want a refusal", name, err)
		}
		if err := p.Publish(t.Context(), newEvent()); err != nil {
			t.Errorf("the next one: %v", err)
		}
	}
}

func TestPublish_FullStreamIsWorthALaterTry(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	p := publisher(t, Config{URL: b.url()})
	if err := p.Publish(t.Context(), newEvent()); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), newEvent()); err == nil || isRefused(err) {
		t.Errorf("got %v, want an error worth a later try", err)
	}
}

func TestPublish_NoCloudEventIsRefused(t *testing.T) {
	t.Parallel()
	p := publisher(t, Config{URL: "nats://127.0.0.1:1"})
	e := newEvent()
	e.Data = []byte(`{"cut":`)
	if err := p.Publish(t.Context(), e); !isRefused(err) {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestPublish_ManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{})
	p := publisher(t, Config{URL: b.url(), Timeout: 30 * time.Second})
	const each, callers = 25, 8
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if err := p.Publish(t.Context(), newEvent()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := len(b.stored()); n != each*callers {
		t.Errorf("%d messages, want %d", n, each*callers)
	}
}

func TestClose_EndsWaitingCalls(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{NoAck: true})
	p := publisher(t, Config{URL: b.url(), Timeout: time.Minute})
	result := make(chan error, 1)
	e := newEvent()
	go func() { result <- p.Publish(t.Context(), e) }()
	for len(b.stored()) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("the waiting call: got %v, want ErrClosed", err)
	}
	if err := p.Publish(t.Context(), newEvent()); !errors.Is(err, ErrClosed) {
		t.Errorf("a later call: got %v, want ErrClosed", err)
	}
	if n := len(b.stored()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// TestNoSecretsAnywhere: the user and the password stay out of errors and logs.
func TestNoSecretsAnywhere(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.Username, o.Password = "alice", "hunter2,@:/" })
	address := address(b)
	var log safeBuffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var said []string

	good := publisher(t, Config{URL: "nats://alice:hunter2%2C%40%3A%2F@" + address, CreateStream: "E", Logger: logger})
	if err := good.Publish(t.Context(), newEvent()); err != nil {
		t.Errorf("with the right password: %v", err)
	}
	bad := publisher(t, Config{URL: "nats://alice:hunter3@" + address, CreateStream: "E", Logger: logger, Timeout: time.Second})
	err := bad.Publish(t.Context(), newEvent())
	if err == nil || isRefused(err) {
		t.Errorf("with a wrong password: got %v", err)
	}
	said = append(said, err.Error())
	b.stop()
	said = append(said, good.Publish(t.Context(), newEvent()).Error())
	for _, url := range []string{
		"nats://alice:hunter2@host:port", "http://alice:hunter2@host", "nats://alice:hunter2@", "nats://alice:hunter2@a,tls://b",
		"nats://alice:hunter2@a/?q=1", "nats://alice:hunt,er2@a",
	} {
		_, err := New(t.Context(), Config{URL: url, Source: source})
		if err == nil {
			t.Fatalf("%s: no error", url)
		}
		said = append(said, err.Error())
	}
	for _, text := range append(said, log.String()) {
		if strings.Contains(text, "hunt") || strings.Contains(text, "alice") {
			t.Errorf("tells a secret: %s", text)
		}
	}
	if !strings.Contains(log.String(), "connected to NATS") {
		t.Errorf("log: %s", log.String())
	}
}

// safeBuffer is for a log that the client's goroutines write.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
