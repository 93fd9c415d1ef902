package worker_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// pipe is a network in memory to one server, so that it also works where time is simulated.
// The server can be stopped and started, and frozen.
type pipe struct {
	opts []grpc.ServerOption
	fake *fakeServer

	mu       sync.Mutex
	listener *bufconn.Listener // nil while the server is down
	server   *grpc.Server
	serving  sync.WaitGroup
	thawed   chan struct{} // not nil while it is frozen; closed when it goes on
	silent   []net.Conn    // the other ends of connections that it did not take while frozen
	calls    int           // that reached it
}

var errDown = errors.New("server is down")

// newPipe starts a server for f, and ends it with the test.
func newPipe(t testing.TB, f *fakeServer, opts ...grpc.ServerOption) *pipe {
	t.Helper()
	p := &pipe{fake: f}
	p.opts = append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(p.holdWhileFrozen),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}), // as the server
	}, opts...)
	p.up()
	t.Cleanup(p.down)
	return p
}

// connect starts a server for f and returns a connection to it.
func connect(t testing.TB, f *fakeServer, opts ...grpc.ServerOption) (*pipe, *grpc.ClientConn) {
	t.Helper()
	p := newPipe(t, f, opts...)
	conn, err := grpc.NewClient("passthrough:///fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return p, conn
}

// over makes a worker connect to servers by addresses: the names of the pipes.
func over(pipes map[string]*pipe) worker.Config {
	cfg := worker.Config{Slots: 4, Logger: quiet()}
	for name := range pipes {
		cfg.Addresses = append(cfg.Addresses, "passthrough:///"+name)
	}
	cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return pipes[strings.TrimPrefix(address, "passthrough:///")].dial(ctx)
	})}
	return cfg
}

func (p *pipe) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	listener := p.listener
	if p.thawed != nil {
		near, far := net.Pipe() // connected, and never a word
		p.silent = append(p.silent, far)
		p.mu.Unlock()
		return near, nil
	}
	p.mu.Unlock()
	if listener == nil {
		return nil, errDown
	}
	return listener.DialContext(ctx)
}

func (p *pipe) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	listener, server := bufconn.Listen(1<<20), grpc.NewServer(p.opts...)
	p.listener, p.server = listener, server
	leaseholdv1.RegisterWorkerServiceServer(server, p.fake)
	p.serving.Go(func() { _ = server.Serve(listener) })
}

// down stops the server at once, with whatever calls it has.
func (p *pipe) down() {
	p.thaw()
	p.mu.Lock()
	server := p.server
	p.listener, p.server = nil, nil
	p.mu.Unlock()
	if server != nil {
		server.Stop()
	}
	p.serving.Wait()
}

// freeze makes the server answer nothing, with all its connections open, and take no new ones
// without refusing them.
func (p *pipe) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed = make(chan struct{})
}

func (p *pipe) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thawed == nil {
		return
	}
	close(p.thawed)
	p.thawed = nil
	for _, conn := range p.silent {
		_ = conn.Close()
	}
	p.silent = nil
}

// holdWhileFrozen holds what arrives, and what is answered.
func (p *pipe) holdWhileFrozen(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := p.hold(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.calls++
	p.mu.Unlock()
	resp, err := handler(ctx, req)
	if held := p.hold(ctx); held != nil {
		return nil, held
	}
	return resp, err
}

func (p *pipe) hold(ctx context.Context) error {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	if thawed == nil {
		return nil
	}
	select {
	case <-thawed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reached is how many calls have reached the server.
func (p *pipe) reached() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}
