package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// cloudEvent is what a consumer reads of an event.
type cloudEvent struct {
	ID       string `json:"id"`
	Source   string `json:"source"`
	Type     string `json:"type"`
	Subject  string `json:"subject"`
	Sequence string `json:"sequence"`
	Data     struct {
		ExecutionID string `json:"execution_id"`
		StepName    string `json:"step_name"`
	} `json:"data"`
}

// received gathers events as they come.
type received struct {
	mu     sync.Mutex
	events []cloudEvent
}

func (r *received) add(t *testing.T, body []byte) {
	t.Helper()
	var e cloudEvent
	if err := json.Unmarshal(body, &e); err != nil {
		t.Errorf("event %s: %v", body, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *received) list() []cloudEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]cloudEvent(nil), r.events...)
}

// publishes runs a server with a sink, has work done, and looks what arrives, in which order.
func publishes(t *testing.T, got *received, args ...string) {
	t.Helper()
	p := start(t, append([]string{"dev", "--ephemeral", "--listen", "127.0.0.1:0", "--outbox-source", "/test"}, args...)...)
	id := p.enqueue("", "example.echo", `1`).GetExecution().GetId()
	p.awaitState(id, succeeded)
	eventually(t, "both events", func() bool { return len(got.list()) >= 2 })
	for i, want := range []string{"leasehold.step.v1.succeeded", "leasehold.execution.v1.succeeded"} {
		e := got.list()[i]
		if e.Type != want || e.Subject != id || e.Data.ExecutionID != id || e.Source != "/test" || e.ID == "" || e.Sequence != string(rune('1'+i)) {
			t.Errorf("event %d is %+v, want %s of %s", i+1, e, want, id)
		}
	}
	p.stop(syscall.SIGTERM)
}

func TestSink_NATS(t *testing.T) {
	t.Parallel()
	running, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	running.Start()
	t.Cleanup(func() { running.Shutdown(); running.WaitForShutdown() })
	if !running.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server is not ready")
	}
	conn, err := nats.Connect(running.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	got := &received{}
	if _, err := conn.Subscribe("leasehold.default.>", func(m *nats.Msg) {
		if len(m.Data) > 0 && m.Header.Get("Nats-Msg-Id") != "" {
			got.add(t, m.Data)
		}
	}); err != nil {
		t.Fatal(err)
	}
	publishes(t, got, "--sink", running.ClientURL(), "--nats-create-stream", "EVENTS")
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := js.StreamInfo("EVENTS"); err != nil || info.State.Msgs != 2 {
		t.Errorf("the stream has %+v (%v), want 2 messages", info, err)
	}
}

func TestSink_Webhook(t *testing.T) {
	t.Parallel()
	got := &received{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Webhook-Signature") == "" {
			t.Errorf("request %v (%v)", r.Header, err)
		}
		got.add(t, body)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	publishes(t, got, "--sink", receiver.URL, "--webhook-secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
}
