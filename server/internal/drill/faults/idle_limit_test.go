package faults

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/leasehold/leasehold/api/worker"
)

// impatientGateway is an ingress as many run one: it speaks HTTP/2 on both sides, cuts requests
// that last longer than its limit, and closes connections without requests after it.
type impatientGateway struct {
	addr    string
	passed  atomic.Int64 // requests that ended in time
	tooLong atomic.Int64 // that were cut
}

func newImpatientGateway(t *testing.T, target string, limit time.Duration) *impatientGateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &impatientGateway{addr: listener.Addr().String()}
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	onward := &http.Transport{Protocols: &plain}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: target}) },
		Transport:     onward,
		FlushInterval: -1, // a stream's messages go on at once
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			if errors.Is(context.Cause(r.Context()), context.DeadlineExceeded) {
				g.tooLong.Add(1)
			}
			w.WriteHeader(http.StatusGatewayTimeout)
		},
	}
	server := &http.Server{Protocols: &plain, IdleTimeout: limit, ReadHeaderTimeout: limit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		proxy.ServeHTTP(w, r.WithContext(ctx))
		if ctx.Err() == nil {
			g.passed.Add(1)
		}
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }() // ends with Close
	t.Cleanup(func() {
		_ = server.Close() // the test is over
		onward.CloseIdleConnections()
		<-ended
	})
	return g
}

// TestB105_IdleBehindAnImpatientGateway: a worker with nothing to do waits behind a gateway with
// a limit on requests. Its polls end before that, with an empty answer, and a step that comes
// after a long silence is taken at once. Caught: a wait of 55 s, which the gateway cuts.
func TestB105_IdleBehindAnImpatientGateway(t *testing.T) {
	alongside(t)
	limit, silence := sized(6*time.Second, 30*time.Second), sized(8*time.Second, 10*time.Minute)
	c := newCluster(t, clusterConfig{replicas: 1})
	gateway := newImpatientGateway(t, c.replicas[0].addr, limit)
	began := make(chan time.Time, 1)
	w := runSDK(t, sdk.Config{Addresses: []string{gateway.addr}, WaitTimeout: sized(2*time.Second, 0)}, "b105",
		func(context.Context, *sdk.Job[any]) (string, error) { began <- time.Now(); return "done", nil })
	eventually(t, time.Minute, "the worker is well", func() bool { return w.Health() == nil })

	time.Sleep(silence)
	if err := w.Health(); err != nil {
		t.Errorf("idle, the worker says: %v", err)
	}
	p := dial(t, c.replicas[0].addr)
	asked := time.Now()
	enqueue(t, p, 1, "b105")
	select {
	case at := <-began:
		t.Logf("leased after %s; %d requests passed the gateway, %d were cut", at.Sub(asked), gateway.passed.Load(), gateway.tooLong.Load())
		if at.Sub(asked) > time.Second+slack() {
			t.Errorf("leased after %s, want less than a second", at.Sub(asked))
		}
	case <-time.After(time.Minute):
		t.Fatal("the step was not taken")
	}
	if cut := gateway.tooLong.Load(); cut > 0 {
		t.Errorf("%d requests lasted longer than the gateway's limit of %s", cut, limit)
	}
	if polls := gateway.passed.Load(); polls < 3 {
		t.Errorf("only %d requests passed: the worker did not poll through the gateway", polls)
	}
}
