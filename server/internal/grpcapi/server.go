package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Settings that are not settable.
const (
	keepaliveMinTime = 10 * time.Second // clients may ping this often, without streams too
	keepaliveTime    = 30 * time.Second // own pings on a silent connection
	keepaliveTimeout = 10 * time.Second // a connection without an answer to them is closed
	// ageGrace is what calls may take once their connection is too old: the longest wait
	// of a poll, and time to answer it.
	ageGrace = scheduler.MaxWait + 15*time.Second
)

// Config is the adapter's settings. The zero value of each is its default.
type Config struct {
	MaxMessageBytes  int           // of a message in either direction; 4 MiB
	MaxPayloadBytes  int           // of one payload; 1 MiB
	MaxConnectionAge time.Duration // after which clients are sent away to connect anew; 30 min
	StopTimeout      time.Duration // for calls to end at a shutdown; 7 s
	SessionTimeout   time.Duration // as told to workers; 90 s
	Logger           *slog.Logger  // slog.Default()
	// Options are further ones of gRPC, such as those that observe calls. Their interceptors
	// come before all others.
	Options []grpc.ServerOption
}

func (c Config) withDefaults() Config {
	c.MaxMessageBytes = orDefault(c.MaxMessageBytes, 4<<20)
	c.MaxPayloadBytes = orDefault(c.MaxPayloadBytes, 1<<20)
	c.MaxConnectionAge = orDefault(c.MaxConnectionAge, 30*time.Minute)
	c.StopTimeout = orDefault(c.StopTimeout, 7*time.Second)
	c.SessionTimeout = orDefault(c.SessionTimeout, 90*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Deps is the application as this adapter calls it.
type Deps struct {
	Executions Executions
	Queries    Queries
	Sessions   Sessions
	Leases     Leases
	Events     Events
	Watches    Watches
	Operators  Operators
	Fleet      Fleet
}

// Server serves every service of the wire contract, health and reflection on one port.
type Server struct {
	config     Config
	grpc       *grpc.Server
	health     *health.Server
	endStreams func() // ends long-lived streams
}

// New builds a server that is ready to Serve. It fails only if the rules in the protocol
// files cannot be compiled.
func New(config Config, deps Deps) (*Server, error) {
	config = config.withDefaults()
	check, err := newValidator(config.MaxPayloadBytes)
	if err != nil {
		return nil, fmt.Errorf("compile validation rules: %w", err)
	}
	stopping, endStreams := context.WithCancelCause(context.Background())
	s := &Server{config: config, health: health.NewServer(), endStreams: func() { endStreams(errServerStops) }}
	failures := errorMapper{logger: config.Logger}
	s.grpc = grpc.NewServer(append(slices.Concat(config.Options, transportOptions(config)),
		grpc.ChainUnaryInterceptor(unaryChain(config.Logger, failures, check)...),
		grpc.ChainStreamInterceptor(streamChain(stopping, config.Logger, failures, check)...),
	)...)
	leaseholdv1.RegisterExecutionServiceServer(s.grpc, &executionService{
		executions: deps.Executions, queries: deps.Queries, watches: deps.Watches,
		maxMessage: config.MaxMessageBytes, maxAge: config.MaxConnectionAge,
	})
	leaseholdv1.RegisterWorkerServiceServer(s.grpc, &workerService{
		sessions: deps.Sessions, leases: deps.Leases, queries: deps.Queries,
		config: config, check: check, failures: failures,
	})
	leaseholdv1.RegisterOperatorServiceServer(s.grpc, &operatorService{
		operators: deps.Operators, fleet: deps.Fleet, events: deps.Events, maxMessage: config.MaxMessageBytes,
	})
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

func transportOptions(c Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout,
			MaxConnectionAge: c.MaxConnectionAge, MaxConnectionAgeGrace: ageGrace,
		}),
		grpc.StatsHandler(birthNotes{}),
		grpc.ForceServerCodecV2(newPatientCodec()),
		grpc.MaxRecvMsgSize(c.MaxMessageBytes),
		grpc.MaxSendMsgSize(c.MaxMessageBytes),
	}
}

// Serve answers calls on the listener until Shutdown, then returns nil. It closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	if err := s.grpc.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", listener.Addr(), err)
	}
	return nil
}

// Shutdown ends the service in order: health says NOT_SERVING, answerPolls makes the
// application answer its parked polls (empty; it must not block, and later polls must be
// answered at once), long-lived streams end, calls under way get StopTimeout to finish, and
// what is left then is cut. It may be called once or more, from any goroutine.
func (s *Server) Shutdown(answerPolls func()) {
	s.health.Shutdown()
	if answerPolls != nil {
		answerPolls()
	}
	s.endStreams()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(s.config.StopTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.config.Logger.Warn("calls were cut at shutdown", "after", s.config.StopTimeout)
		s.grpc.Stop()
		<-done
	}
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}
