package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	source  = "https://scheduler.example/leasehold"
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "cm90YXRpb24tcm90YXRpb24tcm90YXRpb24tMQ=="
)

// call is a request as the receiver saw it.
type call struct {
	method, path string
	header       http.Header
	body         []byte
}

// receiver is a real HTTP server that remembers its calls.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(r.remember(answer))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) remember(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		r.mu.Lock()
		r.calls = append(r.calls, call{method: req.Method, path: req.URL.Path, header: req.Header.Clone(), body: body})
		r.mu.Unlock()
		answer(w, req)
	})
}

func (r *receiver) seen() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.calls...)
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func publisher(t *testing.T, cfg Config) *Publisher {
	t.Helper()
	if cfg.Source == "" {
		cfg.Source = source
	}
	p, err := New(cfg)
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
		ID:           uuid.New(),
		Namespace:    "default",
		AggregateID:  uuid.New(),
		Type:         "leasehold.execution.v1.succeeded",
		Sequence:     7,
		Data:         []byte(`{"state":"SUCCEEDED"}`),
		CreatedAt:    time.Now().UTC(),
		TraceContext: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// kind is how the relay will treat a result.
type kind string

const (
	delivered kind = "delivered"
	refused   kind = "refused"
	again     kind = "again"
	later     kind = "later"
	away      kind = "away"
)

func kindOf(err error) kind {
	var never *outbox.RefusedError
	var wait *outbox.RetryLaterError
	var gone *outbox.AwayError
	switch {
	case err == nil:
		return delivered
	case errors.As(err, &never):
		return refused
	case errors.As(err, &wait):
		return later
	case errors.As(err, &gone):
		return away
	default:
		return again
	}
}
