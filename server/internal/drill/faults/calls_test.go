package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// The kinds of calls that are recorded. A grant is one lease of a poll's answer.
const (
	kindEnqueue  = "enqueue"
	kindCancel   = "cancel"
	kindRegister = "register"
	kindPoll     = "poll"
	kindGrant    = "grant"
	kindRenew    = "renew"
	kindReport   = "report"
	kindGet      = "get"
)

// call is one call to one replica, and what was answered.
type call struct {
	kind      string
	addr      string
	key       string // of an enqueue
	execution string
	step      string
	attempt   string
	number    int32
	version   int64
	outcome   string // state of the attempt that a report asks for
	late      bool   // the attempt was known to be over when it was sent
	repeat    bool   // what came of an earlier try is not known

	sent, got time.Time // monotonic
	code      codes.Code
	reason    string // of its ErrorInfo
	message   string
	replayed  bool
}

// recorder keeps all calls of all clients.
type recorder struct {
	mu       sync.Mutex
	calls    []call
	reports  atomic.Int64 // answered OK, repeats aside
	enqueues atomic.Int64 // answered OK
}

func (r *recorder) add(c *call) {
	r.mu.Lock()
	r.calls = append(r.calls, *c)
	r.mu.Unlock()
	if c.code != codes.OK {
		return
	}
	switch {
	case c.kind == kindReport && !c.replayed:
		r.reports.Add(1)
	case c.kind == kindEnqueue:
		r.enqueues.Add(1)
	}
}

// all are the calls so far; what is added later does not show.
func (r *recorder) all() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[:len(r.calls):len(r.calls)]
}

// peer is a connection to one replica.
type peer struct {
	addr       string
	conn       *grpc.ClientConn
	executions leaseholdv1.ExecutionServiceClient
	workers    leaseholdv1.WorkerServiceClient
	operators  leaseholdv1.OperatorServiceClient
}

// dial connects to an address, and again soon whenever that is lost. Nothing is retried by it.
func dial(t *testing.T, addr string, further ...grpc.DialOption) *peer {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(further,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
	)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // it may be closed by the test
	return &peer{
		addr: addr, conn: conn,
		executions: leaseholdv1.NewExecutionServiceClient(conn),
		workers:    leaseholdv1.NewWorkerServiceClient(conn),
		operators:  leaseholdv1.NewOperatorServiceClient(conn),
	}
}

// client calls a replica by chance, and leaves out for a while those that did not answer. It
// may be used by several goroutines at once.
type client struct {
	rec   *recorder
	peers []*peer
	// avoid is until when each peer is left out, in nanoseconds since began.
	avoid []atomic.Int64
	began time.Time
}

const avoidFor = 3 * time.Second

func newClient(t *testing.T, rec *recorder, addrs []string) *client {
	t.Helper()
	c := &client{rec: rec, avoid: make([]atomic.Int64, len(addrs)), began: time.Now()}
	for _, addr := range addrs {
		c.peers = append(c.peers, dial(t, addr))
	}
	return c
}

// choose takes a peer by chance; where all are to be left out, any.
func (c *client) choose() int {
	first := rand.IntN(len(c.peers))
	for i := range c.peers {
		at := (first + i) % len(c.peers)
		if c.avoid[at].Load() <= int64(time.Since(c.began)) {
			return at
		}
	}
	return first
}

// once makes one call and records it; f may note what the answer says.
func once(ctx context.Context, c *client, limit time.Duration, note *call, f func(context.Context, *peer, *call) error) {
	at := c.choose()
	p := c.peers[at]
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	note.addr, note.sent = p.addr, time.Now()
	err := f(ctx, p, note)
	note.got = time.Now()
	note.code, note.reason, note.message = status.Code(err), reasonOf(err), status.Convert(err).Message()
	c.rec.add(note)
	if unknown(note.code) {
		c.avoid[at].Store(int64(time.Since(c.began) + avoidFor))
	}
}

// insist makes a call until its outcome is known, at another replica after each try, or until
// the context ends. note is the last try.
func insist(ctx context.Context, c *client, limit time.Duration, note call, f func(context.Context, *peer, *call) error) call {
	for try := 0; ; try++ {
		once(ctx, c, limit, &note, f)
		if !unknown(note.code) || ctx.Err() != nil {
			return note
		}
		note.repeat = true
		pause(ctx, 10*time.Millisecond<<min(try, 5))
	}
}

// unknown tells whether a code leaves open what came of the call, or asks for another try.
func unknown(code codes.Code) bool {
	return code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}

// pause waits about d.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// reasonOf is the reason in an error's ErrorInfo.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
