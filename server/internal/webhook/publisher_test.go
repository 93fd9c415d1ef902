package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func TestPublish_PostsAStructuredCloudEvent(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusNoContent))
	p := publisher(t, Config{URL: r.URL + "/hooks/a"})
	e := newEvent()
	if err := p.Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	calls := r.seen()
	if len(calls) != 1 || calls[0].method != http.MethodPost || calls[0].path != "/hooks/a" {
		t.Fatalf("calls %+v", calls)
	}
	if got := calls[0].header.Get("Content-Type"); got != "application/cloudevents+json" {
		t.Errorf("content type %q", got)
	}
	var got map[string]any
	if err := json.Unmarshal(calls[0].body, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{
		"specversion": "1.0", "id": e.ID.String(), "source": source, "type": e.Type, "subject": e.AggregateID.String(),
		"partitionkey": e.AggregateID.String(), "sequence": "7", "namespace": "default",
		"traceparent": e.TraceContext["traceparent"], "datacontenttype": "application/json",
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if data, _ := got["data"].(map[string]any); data["state"] != "SUCCEEDED" {
		t.Errorf("data %v", got["data"])
	}
	if got := calls[0].header.Get("webhook-signature"); got != "" {
		t.Errorf("signed %q without a secret", got)
	}
}

// TestPublish_Signature computes by hand what a receiver computes.
func TestPublish_Signature(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusOK))
	p := publisher(t, Config{URL: r.URL, Secrets: []string{secretA, secretB}})
	e := newEvent()
	before := time.Now().Unix()
	for range 2 {
		if err := p.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range r.seen() {
		id, stamp := c.header.Get("webhook-id"), c.header.Get("webhook-timestamp")
		if id != e.ID.String() {
			t.Errorf("webhook-id %q, want the event's id at each try", id)
		}
		if seconds, err := strconv.ParseInt(stamp, 10, 64); err != nil || seconds < before || seconds > time.Now().Unix() {
			t.Errorf("webhook-timestamp %q", stamp)
		}
		var want []string
		for _, secret := range []string{secretA, secretB} {
			key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
			if err != nil {
				t.Fatal(err)
			}
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%s.%s", id, stamp, c.body)
			want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		if got := c.header.Get("webhook-signature"); got != strings.Join(want, " ") {
			t.Errorf("webhook-signature %q, want %q", got, want)
		}
		for _, secret := range []string{secretA, secretB} { // as a receiver that knows one of them
			verifier, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := verifier.Verify(c.body, c.header); err != nil {
				t.Errorf("the official library: %v", err)
			}
		}
	}
}

// TestSign_PublishedVector is the example of the Standard Webhooks libraries.
func TestSign_PublishedVector(t *testing.T) {
	t.Parallel()
	p := publisher(t, Config{URL: "http://127.0.0.1:1", Secrets: []string{secretA}})
	header := http.Header{}
	err := p.sign(header, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := header.Get("webhook-signature"), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestPublish_ConnectionClosedIsNotDelivered: the receiver read all and went away (B79).
func TestPublish_ConnectionClosedIsNotDelivered(t *testing.T) {
	t.Parallel()
	var closing atomic.Bool
	r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
		if closing.Load() {
			panic(http.ErrAbortHandler)
		}
	})
	p := publisher(t, Config{URL: r.URL})
	e := newEvent()
	for _, connection := range []string{"kept", "new"} {
		closing.Store(false)
		if connection == "kept" {
			if err := p.Publish(t.Context(), newEvent()); err != nil {
				t.Fatal(err)
			}
		}
		closing.Store(true)
		before := len(r.seen())
		if err := p.Publish(t.Context(), e); kindOf(err) != again {
			t.Errorf("%s connection: got %v, want an error worth a later try", connection, err)
		}
		if n := len(r.seen()) - before; n != 1 {
			t.Errorf("%s connection: %d calls, want 1", connection, n)
		}
	}
	closing.Store(false)
	if err := p.Publish(t.Context(), e); err != nil {
		t.Errorf("after recovery: %v", err)
	}
}

// TestPublish_BrokenAnswerIsNotDelivered: 200, then the body breaks off.
func TestPublish_BrokenAnswerIsNotDelivered(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("half of"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	p := publisher(t, Config{URL: r.URL})
	if err := p.Publish(t.Context(), newEvent()); kindOf(err) != again {
		t.Errorf("got %v, want an error worth a later try", err)
	}
}

func TestPublish_TimeoutBoundsEverything(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
		"header only": func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, func(w http.ResponseWriter, req *http.Request) {
				begin(w)
				<-req.Context().Done()
			})
			p := publisher(t, Config{URL: r.URL, Timeout: 300 * time.Millisecond})
			started := time.Now()
			err := p.Publish(t.Context(), newEvent())
			if kindOf(err) != again || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "within 300ms") {
				t.Errorf("got %v, want the timeout", err)
			}
			if took := time.Since(started); took < 300*time.Millisecond || took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

func TestPublish_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	p := publisher(t, Config{URL: r.URL, Timeout: time.Minute})
	if err := p.Publish(within(t, 200*time.Millisecond), newEvent()); kindOf(err) != again || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
}

func TestClose_EndsWaitingCalls(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) {
		close(arrived)
		<-req.Context().Done()
	})
	p := publisher(t, Config{URL: r.URL, Timeout: time.Minute})
	result := make(chan error, 1)
	go func() { result <- p.Publish(t.Context(), newEvent()) }()
	<-arrived
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("the waiting call: got %v, want ErrClosed", err)
	}
	if err := p.Publish(t.Context(), newEvent()); !errors.Is(err, ErrClosed) {
		t.Errorf("a later call: got %v, want ErrClosed", err)
	}
	if n := len(r.seen()); n != 1 {
		t.Errorf("%d calls arrived, want 1", n)
	}
}

// TestPublish_NoConnectionIsAway: what never had a connection is no event's fault. Caught: all
// errors of a call taken alike.
func TestPublish_NoConnectionIsAway(t *testing.T) {
	t.Parallel()
	full := fullListener(t)
	for name, url := range map[string]string{
		"refused": "http://127.0.0.1:1", "no such host": "http://receiver.invalid", "no answer to the dial": "http://" + full,
	} {
		p := publisher(t, Config{URL: url, Timeout: time.Second})
		if err := p.Publish(t.Context(), newEvent()); kindOf(err) != away {
			t.Errorf("%s: got %v, want away", name, err)
		}
	}
	r := newReceiver(t, status(http.StatusOK))
	p := publisher(t, Config{URL: r.URL})
	if err := p.Publish(t.Context(), newEvent()); err != nil {
		t.Fatal(err)
	}
	r.Close()
	_ = p.Publish(t.Context(), newEvent()) // may still go out on the kept connection
	if err := p.Publish(t.Context(), newEvent()); kindOf(err) != away {
		t.Errorf("gone: got %v, want away", err)
	}
}

// fullListener is an address whose queue is full: a dial gets no answer.
func fullListener(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	inet, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("address %v", name)
	}
	address := fmt.Sprintf("127.0.0.1:%d", inet.Port)
	for {
		conn, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

func TestPublish_NoCloudEventIsRefused(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusOK))
	p := publisher(t, Config{URL: r.URL})
	for name, data := range map[string]string{"type": `{}`, "data": `{"cut":`} {
		e := newEvent()
		e.Data = []byte(data)
		if name == "type" {
			e.Type = ""
		}
		if err := p.Publish(t.Context(), e); kindOf(err) != refused {
			t.Errorf("bad %s: got %v, want a refusal", name, err)
		}
	}
	if n := len(r.seen()); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// TestPublish_NoProxy cannot be parallel: it sets the environment.
func TestPublish_NoProxy(t *testing.T) {
	proxy := newReceiver(t, status(http.StatusOK))
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, proxy.URL)
	}
	p := publisher(t, Config{URL: "http://receiver.invalid/", Timeout: 2 * time.Second})
	if err := p.Publish(t.Context(), newEvent()); kindOf(err) != away {
		t.Errorf("got %v, want an unknown host", err)
	}
	if n := len(proxy.seen()); n != 0 {
		t.Errorf("%d calls went to the proxy", n)
	}
}

func TestPublish_TLS(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(status(http.StatusOK))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	if err := publisher(t, Config{URL: server.URL, RootCAs: roots}).Publish(t.Context(), newEvent()); err != nil {
		t.Errorf("trusted: %v", err)
	}
	if err := publisher(t, Config{URL: server.URL}).Publish(t.Context(), newEvent()); kindOf(err) != away {
		t.Errorf("not trusted: got %v, want away", err)
	}
}

// TestPublish_KeepsConnections: calls in a row share one, many at once have a bound.
func TestPublish_KeepsConnections(t *testing.T) {
	t.Parallel()
	var opened, open, most atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		now := open.Add(1)
		defer open.Add(-1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		if opened.Load() > 1 {
			time.Sleep(50 * time.Millisecond)
		}
	}))
	server.Config.ConnState = countNew(&opened)
	server.Start()
	t.Cleanup(server.Close)
	p := publisher(t, Config{URL: server.URL, Timeout: 30 * time.Second})
	for range 20 {
		if err := p.Publish(t.Context(), newEvent()); err != nil {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections for 20 calls in a row, want 1", n)
	}
	var all sync.WaitGroup
	for range 3 * maxConns {
		all.Go(func() {
			if err := p.Publish(t.Context(), newEvent()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > maxConns {
		t.Errorf("%d calls at once, at most %d are wanted", n, maxConns)
	}
}

// TestNoSecretsAnywhere: credentials, the path and the query stay out of errors and logs.
func TestNoSecretsAnywhere(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, status(http.StatusTeapot))
	address := strings.TrimPrefix(r.URL, "http://")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var said []string
	note := func(err error) {
		if err == nil {
			t.Error("no error")
			return
		}
		said = append(said, err.Error(), fmt.Sprintf("%+v", err))
	}
	p := publisher(t, Config{URL: "http://alice:hunter2@" + address + "/hunter3?token=hunter4", Logger: logger})
	note(p.Publish(t.Context(), newEvent()))
	if user, password, _ := (&http.Request{Header: r.seen()[0].header}).BasicAuth(); user != "alice" || password != "hunter2" {
		t.Errorf("basic authentication as %q %q", user, password)
	}
	r.Close()
	note(p.Publish(t.Context(), newEvent()))
	for _, cfg := range []Config{
		{URL: "http://alice:hunter2@host:port/", Source: source},
		{URL: "ftp://alice:hunter2@host/", Source: source},
		{URL: "http://host/", Source: source, Secrets: []string{"whsec_hunter2!"}},
		{URL: "http://host/", Source: source, Secrets: []string{"hunter22"}},
	} {
		_, err := New(cfg)
		note(err)
	}
	for _, text := range append(said, log.String()) {
		if strings.Contains(text, "hunter") || strings.Contains(text, "alice") {
			t.Errorf("tells a secret: %s", text)
		}
	}
	if !strings.Contains(log.String(), "not signed") {
		t.Errorf("no warning of the missing secret: %s", log.String())
	}
}
