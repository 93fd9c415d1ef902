package natspub

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestPublish_ServerStoppedAndStarted on the same port and store: it fails meanwhile, nothing is
// buffered, and goes on by itself (B79).
func TestPublish_ServerStoppedAndStarted(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	b.stream(jetstream.StreamConfig{})
	p := publisher(t, Config{URL: b.url(), Timeout: 3 * time.Second})
	first, lost, last := newEvent(), newEvent(), newEvent()
	if err := p.Publish(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	b.stop()
	for range 3 {
		started := time.Now()
		err := p.Publish(t.Context(), lost)
		if err == nil || isRefused(err) {
			t.Fatalf("stopped: got %v, want an error worth a later try", err)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("stopped: took %s", took)
		}
	}
	if err := p.Publish(t.Context(), lost); !errors.Is(err, ErrNotConnected) {
		t.Errorf("stopped: got %v, want ErrNotConnected", err)
	}
	b.start()
	publishUntil(t, p, last)
	publishUntil(t, p, first) // a repeat, also for the server's new life
	var ids []string
	for _, msg := range b.stored() {
		ids = append(ids, msg.Header.Get("Nats-Msg-Id"))
	}
	want := []string{first.ID.String(), last.ID.String()}
	if strings.Join(ids, " ") != strings.Join(want, " ") {
		t.Errorf("stored %v, want %v: what failed must not come by itself", ids, want)
	}
}

// TestNew_WithoutAServer: it waits for one, and makes the stream then.
func TestNew_WithoutAServer(t *testing.T) {
	t.Parallel()
	b := newBroker(t, nil)
	url := b.url()
	b.stop()
	var log safeBuffer
	p := publisher(t, Config{URL: url, CreateStream: "EVENTS", Logger: logTo(&log)})
	if err := p.Publish(t.Context(), newEvent()); !errors.Is(err, ErrNotConnected) {
		t.Errorf("got %v, want ErrNotConnected", err)
	}
	for deadline := time.Now().Add(20 * time.Second); strings.Count(log.String(), "cannot reach NATS") < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no tries:\n%s", log.String())
		}
	}
	if n := strings.Count(log.String(), `level=WARN msg="cannot reach NATS`); n != 1 {
		t.Errorf("warned %d times that there is no server, want once:\n%s", n, log.String())
	}
	b.start()
	publishUntil(t, p, newEvent())
	if n := len(b.stored()); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// TestClose_WithoutAServer ends the search (and its goroutines, which TestMain checks).
func TestClose_WithoutAServer(t *testing.T) {
	t.Parallel()
	p := publisher(t, Config{URL: "nats://127.0.0.1:1"})
	for range 2 {
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Publish(t.Context(), newEvent()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

// TestReconnect_OutlivesRefusedCredentials: a password that is wrong for a while (many tries)
// ends nothing for good.
func TestReconnect_OutlivesRefusedCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.Username, o.Password = "relay", "new" })
	address := address(b)
	var log safeBuffer
	p := publisher(t, Config{URL: "nats://relay:old@" + address, CreateStream: "EVENTS", Timeout: time.Second, Logger: logTo(&log)})
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if err := p.Publish(t.Context(), newEvent()); err == nil || isRefused(err) || errors.Is(err, ErrClosed) {
			t.Fatalf("got %v, want an error worth a later try", err)
		}
	}
	b.stop()
	b.options.Password = "old"
	b.start()
	publishUntil(t, p, newEvent())
	if n := strings.Count(strings.ToLower(log.String()), "authorization"); n > 2 {
		t.Errorf("told %d times of the refusal:\n%s", n, log.String())
	}
}

// TestPublish_SeveralServers: the second is found when the first is away.
func TestPublish_SeveralServers(t *testing.T) {
	t.Parallel()
	b := newBroker(t, func(o *server.Options) { o.Username, o.Password = "u", "p" })
	p := publisher(t, Config{URL: "nats://u:p@127.0.0.1:1, " + address(b), CreateStream: "EVENTS"})
	publishUntil(t, p, newEvent())
}

// TestPublish_StalledServer: a server that reads nothing holds no call longer than its context,
// though the client writes under its lock.
func TestPublish_StalledServer(t *testing.T) {
	t.Parallel()
	p := publisher(t, Config{URL: stalled(t)})
	large, small := nats.NewMsg("a"), nats.NewMsg("a")
	large.Data = make([]byte, 32<<20) // more than the sockets hold
	started := time.Now()
	for _, msg := range []*nats.Msg{large, small} {
		if err := p.send(within(t, 500*time.Millisecond), msg); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of its context", err)
		}
	}
	if took := time.Since(started); took > writeTimeout-time.Second {
		t.Errorf("took %s, want about 1s", took)
	}
}

// stalled is a server that greets, and then reads nothing more.
func stalled(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(func() { end(); _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, _ = fmt.Fprint(conn, `INFO {"server_id":"x","version":"2.15.2","headers":true,"max_payload":67108864,"proto":1}`+"\r\n")
			lines := bufio.NewReaderSize(conn, 512)
			for range 2 { // CONNECT, PING
				if _, err := lines.ReadString('\n'); err != nil {
					break
				}
			}
			_, _ = fmt.Fprint(conn, "PONG\r\n")
		}
	}()
	return "nats://" + listener.Addr().String()
}
