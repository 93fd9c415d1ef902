package testsink

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream is the name of the stream that takes events, those of subjects below Subjects.
const (
	Stream   = "EVENTS"
	Subjects = "leasehold.>"
)

const limit = 30 * time.Second // of any one step here

// NATS is a server with JetStream, which may be stopped and started again.
type NATS struct {
	t       testing.TB
	options *server.Options
	running *server.Server
}

// StartNATS starts one on a free port, which ends with the test. It has no stream yet.
func StartNATS(t testing.TB, change ...func(*server.Options)) *NATS {
	t.Helper()
	n := &NATS{t: t, options: &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
	}}
	for _, f := range change {
		f(n.options)
	}
	t.Cleanup(n.Stop)
	n.Start()
	return n
}

// Start starts it, again with the port and the streams that it had.
func (n *NATS) Start() {
	n.t.Helper()
	running, err := server.NewServer(n.options.Clone())
	if err != nil {
		n.t.Fatalf("NATS server: %v", err)
	}
	n.running = running
	running.Start()
	if !running.ReadyForConnections(limit) {
		n.t.Fatal("the NATS server is not ready")
	}
	address, ok := running.Addr().(*net.TCPAddr)
	if !ok {
		n.t.Fatalf("address %v", running.Addr())
	}
	n.options.Port = address.Port
}

// Stop stops it.
func (n *NATS) Stop() {
	n.running.Shutdown()
	n.running.WaitForShutdown()
}

// Restart stops it and starts it with other options.
func (n *NATS) Restart(change func(*server.Options)) {
	n.t.Helper()
	n.Stop()
	change(n.options)
	n.Start()
}

// Addr is its host and port; URL is for clients.
func (n *NATS) Addr() string { return n.running.Addr().String() }

// URL is for clients.
func (n *NATS) URL() string { return "nats://" + n.Addr() }

// connect is a connection that comes back by itself.
func (n *NATS) connect() *nats.Conn {
	n.t.Helper()
	conn, err := nats.Connect(n.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	return conn
}

func (n *NATS) jetStream() jetstream.JetStream {
	n.t.Helper()
	js, err := jetstream.New(n.connect())
	if err != nil {
		n.t.Fatal(err)
	}
	return js
}

// PutStream makes the stream, or changes it, to take events of these subjects.
func (n *NATS) PutStream(subjects string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if _, err := n.jetStream().CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: Stream, Subjects: []string{subjects}}); err != nil {
		n.t.Fatalf("put the stream: %v", err)
	}
}

// DeleteStream removes the stream with all that is in it.
func (n *NATS) DeleteStream() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := n.jetStream().DeleteStream(ctx, Stream); err != nil {
		n.t.Fatalf("delete the stream: %v", err)
	}
}

// Messages is how many the stream has.
func (n *NATS) Messages() int {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	stream, err := n.jetStream().Stream(ctx, Stream)
	if err != nil {
		n.t.Fatalf("look at the stream: %v", err)
	}
	return int(stream.CachedInfo().State.Msgs)
}

// Follow has a durable consumer read the stream from its first message on, into the record,
// until the test ends.
func (n *NATS) Follow(r *Record) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	consumer, err := n.jetStream().CreateOrUpdateConsumer(ctx, Stream, jetstream.ConsumerConfig{
		Durable: "check", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		n.t.Fatalf("make a consumer: %v", err)
	}
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		d, err := r.Arrived(m.Data())
		if err == nil {
			r.Taken(d)
			err = m.Ack()
		}
		if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			n.t.Errorf("consume: %v", err)
		}
	})
	if err != nil {
		n.t.Fatalf("consume: %v", err)
	}
	n.t.Cleanup(func() { reading.Stop(); <-reading.Closed() })
}

// Tap hears every publish, repeats that the stream drops too, until the test ends.
func (n *NATS) Tap(r *Record) {
	n.t.Helper()
	conn := n.connect()
	sub, err := conn.Subscribe(Subjects, func(m *nats.Msg) {
		if m.Header.Get(nats.MsgIdHdr) == "" {
			return // no event
		}
		d, err := r.Arrived(m.Data)
		if err != nil {
			n.t.Errorf("tap: %v", err)
			return
		}
		r.Taken(d)
	})
	if err == nil {
		err = errors.Join(sub.SetPendingLimits(-1, -1), conn.FlushTimeout(limit))
	}
	if err != nil {
		n.t.Fatalf("tap: %v", err)
	}
}
