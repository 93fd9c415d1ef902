package drill

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/grpcapi"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Config says how a cluster is made. Zero values are usable, but for URL and Replicas.
type Config struct {
	URL           string        // of a migrated database
	Replicas      int           // that are started
	SweepInterval time.Duration // default 100 ms
	MaxConns      int           // of each replica's pool; default 6
	MaxStreams    int           // of each replica; 0: the server's default
	MaxPolls      int           // parked, of each replica; 0: the server's default
	ConnectionAge time.Duration // of clients' connections; 0: the server's default
	Logger        *slog.Logger  // default: none
	// SessionTimeout is after how long a silent worker is not counted on; default 90 s.
	SessionTimeout time.Duration
	Observer       postgres.Observer // of all replicas' transactions; default: nobody

	// Publisher makes the sink of a replica, whose relay then publishes all events. Without one
	// events stay in the outbox.
	Publisher func() (outbox.Publisher, error)
	Relay     outbox.Config // how relays work; Source, Publisher and Logger are filled in

	Retention scheduler.Retention // zero: everything is kept
}

// Cluster is replicas of the service on one database, all in this process.
type Cluster struct {
	Watch    *Watch // the codes that its clients got
	config   Config
	replicas []*Replica
}

// Start starts the replicas. Every event type is written to the outbox, so that Check can
// compare the events with what happened.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	if c.SweepInterval <= 0 {
		c.SweepInterval = 100 * time.Millisecond
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 6
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	cluster := &Cluster{Watch: &Watch{}, config: c}
	for range c.Replicas {
		if _, err := cluster.Add(ctx); err != nil {
			cluster.Stop()
			return nil, err
		}
	}
	return cluster, nil
}

// Add starts one more replica.
func (c *Cluster) Add(ctx context.Context) (*Replica, error) {
	r, err := startReplica(ctx, c.config, c.Watch)
	if err != nil {
		return nil, fmt.Errorf("start replica %d: %w", len(c.replicas), err)
	}
	c.replicas = append(c.replicas, r)
	return r, nil
}

// Replica is the i-th replica, counted round and round.
func (c *Cluster) Replica(i int) *Replica { return c.replicas[i%len(c.replicas)] }

// Client calls the i-th replica.
func (c *Cluster) Client(i int) *Client { return c.Replica(i).Client() }

// Stop stops all replicas, gracefully and together, and closes the connections to them. Those
// to a replica that was ended before stay open until then: its clients find out by themselves.
func (c *Cluster) Stop() {
	var wg sync.WaitGroup
	for _, r := range c.replicas {
		wg.Go(r.Stop)
	}
	wg.Wait()
	for _, r := range c.replicas {
		_ = r.conn.Close()
	}
}

// Replica is one process of the service, but for the process.
type Replica struct {
	Store    *postgres.Store
	client   *Client
	conn     *grpc.ClientConn
	service  *scheduler.Scheduler
	api      *grpcapi.Server
	relay    *outbox.Relay // nil without a sink
	sink     outbox.Publisher
	listener *cutListener
	cancel   context.CancelFunc
	parts    *errgroup.Group
	once     sync.Once
}

func startReplica(ctx context.Context, c Config, watch *Watch) (*Replica, error) {
	r := &Replica{parts: &errgroup.Group{}}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	if err := r.compose(lasting, c); err != nil {
		cancel()
		return nil, err
	}
	var err error
	r.conn, err = grpc.NewClient("passthrough:///"+r.listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(watch.unary),
		grpc.WithStreamInterceptor(watch.stream))
	if err != nil {
		cancel()
		return nil, err
	}
	r.client = &Client{
		Executions: leaseholdv1.NewExecutionServiceClient(r.conn),
		Workers:    leaseholdv1.NewWorkerServiceClient(r.conn),
		Operators:  leaseholdv1.NewOperatorServiceClient(r.conn),
	}
	r.parts.Go(func() error { return r.service.Run(lasting) })
	r.parts.Go(func() error { return r.api.Serve(r.listener) })
	r.parts.Go(func() error { return r.relay.Run(lasting) })
	return r, nil
}

// compose puts the parts together, as the server's composition root does.
func (r *Replica) compose(ctx context.Context, c Config) error {
	store, err := postgres.Open(ctx, postgres.Config{
		URL: c.URL, MaxConns: c.MaxConns, Events: task.AllEventTypes(), Observer: c.Observer, Logger: c.Logger, SessionTimeout: c.SessionTimeout,
	})
	if err != nil {
		return err
	}
	r.Store = store
	if err := r.onStore(ctx, c); err != nil {
		r.closeStore()
		return err
	}
	return nil
}

func (r *Replica) onStore(ctx context.Context, c Config) error {
	hints, err := postgres.NewHints(r.Store, c.URL)
	if err != nil {
		return err
	}
	if err := r.publish(c); err != nil {
		return err
	}
	r.service = scheduler.New(scheduler.Config{
		Store: r.Store, Hints: hints, SweepInterval: c.SweepInterval, MaxStreams: c.MaxStreams, MaxParkedPolls: c.MaxPolls, Logger: c.Logger, Changed: r.relay.Wake,
		Retention: c.Retention,
	})
	r.api, err = grpcapi.New(grpcapi.Config{MaxConnectionAge: c.ConnectionAge, Logger: c.Logger}, grpcapi.Deps{
		Executions: r.service, Queries: r.Store, Sessions: r.service, Leases: r.service, Watches: r.service,
		Operators: r.service, Fleet: r.Store,
		Events: outbox.NewOperator(r.Store.Outbox(), r.relay.Wake),
	})
	if err != nil {
		return err
	}
	var how net.ListenConfig
	listener, err := how.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.listener = &cutListener{Listener: listener, conns: map[net.Conn]struct{}{}}
	return nil
}

// publish makes the relay, if there is a sink.
func (r *Replica) publish(c Config) error {
	if c.Publisher == nil {
		return nil
	}
	var err error
	if r.sink, err = c.Publisher(); err != nil {
		return err
	}
	c.Relay.Source, c.Relay.Publisher, c.Relay.Logger = r.Store.Outbox(), r.sink, c.Logger
	r.relay = outbox.NewRelay(c.Relay)
	return nil
}

// Client calls this replica, over the one connection to it.
func (r *Replica) Client() *Client { return r.client }

// Addr is where it listens.
func (r *Replica) Addr() string { return r.listener.Addr().String() }

// Stop stops it as SIGTERM would: polls are answered, calls under way finish. It may be
// called more than once, also after Kill.
func (r *Replica) Stop() {
	r.once.Do(func() {
		r.api.Shutdown(r.service.StopPolls)
		r.end()
	})
}

// Kill cuts it off in the middle of what it does: its clients' connections break, nothing is
// answered, its loops end. What it had sent to PostgreSQL may or may not be committed.
func (r *Replica) Kill() {
	r.once.Do(func() {
		r.listener.cut()
		r.cancel()
		r.api.Shutdown(r.service.StopPolls)
		r.end()
	})
}

func (r *Replica) end() {
	r.cancel()
	_ = r.parts.Wait()
	r.closeStore()
}

func (r *Replica) closeStore() {
	if r.sink != nil {
		_ = r.sink.Close()
	}
	r.Store.Close()
}

// cutListener remembers its connections, so that they can be broken.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Accept waits for the next connection.
func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = struct{}{}
	return conn, nil
}

func (l *cutListener) cut() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, as when a process dies with data unread
		}
		_ = conn.Close()
	}
}
