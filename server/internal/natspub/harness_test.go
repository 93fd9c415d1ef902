package natspub

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const source = "https://scheduler.example/leasehold"

// broker is a real NATS server with JetStream in this process.
type broker struct {
	t       *testing.T
	options *server.Options
	running *server.Server
}

// newBroker starts one on a free port, with its store in a temporary folder.
func newBroker(t *testing.T, change func(*server.Options)) *broker {
	t.Helper()
	b := &broker{t: t, options: &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir(),
	}}
	if change != nil {
		change(b.options)
	}
	t.Cleanup(b.stop)
	b.start()
	return b
}

// start runs it, after a stop on the same port and store.
func (b *broker) start() {
	b.t.Helper()
	options := b.options.Clone()
	running, err := server.NewServer(options)
	if err != nil {
		b.t.Fatalf("NATS server: %v", err)
	}
	b.running = running
	running.Start()
	if !running.ReadyForConnections(20 * time.Second) {
		b.t.Fatal("the NATS server is not ready")
	}
	address, ok := running.Addr().(*net.TCPAddr)
	if !ok {
		b.t.Fatalf("address %v", running.Addr())
	}
	b.options.Port = address.Port
}

func (b *broker) stop() {
	b.running.Shutdown()
	b.running.WaitForShutdown()
}

func (b *broker) url() string { return b.running.ClientURL() }

// client is another's connection.
func (b *broker) client() jetstream.JetStream {
	b.t.Helper()
	conn, err := nats.Connect(b.url())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		b.t.Fatal(err)
	}
	return js
}

func (b *broker) stream(cfg jetstream.StreamConfig) {
	b.t.Helper()
	if cfg.Name == "" {
		cfg.Name = "EVENTS"
	}
	if cfg.Subjects == nil {
		cfg.Subjects = []string{"leasehold.>"}
	}
	if _, err := b.client().CreateStream(within(b.t, 20*time.Second), cfg); err != nil {
		b.t.Fatal(err)
	}
}

// stored is all messages of the stream EVENTS, oldest first.
func (b *broker) stored() []*jetstream.RawStreamMsg {
	b.t.Helper()
	ctx := within(b.t, 20*time.Second)
	stream, err := b.client().Stream(ctx, "EVENTS")
	if err != nil {
		b.t.Fatal(err)
	}
	var all []*jetstream.RawStreamMsg
	for seq := max(1, stream.CachedInfo().State.FirstSeq); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, msg)
	}
	return all
}

func publisher(t *testing.T, cfg Config) *Publisher {
	t.Helper()
	if cfg.Source == "" {
		cfg.Source = source
	}
	p, err := New(within(t, 30*time.Second), cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

func newEvent() *outbox.Event {
	return &outbox.Event{
		ID:          uuid.New(),
		Namespace:   "default",
		AggregateID: uuid.New(),
		Type:        "leasehold.execution.v1.succeeded",
		Sequence:    7,
		Data:        []byte(`{"state":"SUCCEEDED"}`),
		CreatedAt:   time.Now().UTC(),
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func isRefused(err error) bool {
	var refused *outbox.RefusedError
	return errors.As(err, &refused)
}

// publishUntil tries until the event is acknowledged, as the relay does.
func publishUntil(t *testing.T, p *Publisher, e *outbox.Event) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = p.Publish(t.Context(), e); err == nil {
			return
		}
		if isRefused(err) {
			t.Fatalf("refused for good: %v", err)
		}
	}
	t.Fatalf("never acknowledged: %v", err)
}
