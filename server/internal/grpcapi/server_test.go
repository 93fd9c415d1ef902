package grpcapi

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

func TestHealth_PerServiceAndOverall(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{})
	health := healthpb.NewHealthClient(r.conn)
	for _, service := range []string{"", "leasehold.v1.ExecutionService", "leasehold.v1.WorkerService", "leasehold.v1.OperatorService"} {
		answer, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, answer, err)
		}
	}
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "nothing"}); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

// TestReflection_ListsServicesAndErrorDetails: bare grpcurl needs both, in both versions.
func TestReflection_ListsServicesAndErrorDetails(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(request *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
		t.Helper()
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var names []string
	for _, s := range ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}).GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"leasehold.v1.ExecutionService", "leasehold.v1.WorkerService", "leasehold.v1.OperatorService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	for _, symbol := range []string{"google.rpc.ErrorInfo", "google.rpc.BadRequest", "leasehold.v1.EnqueueExecutionRequest"} {
		answer := ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol}})
		if len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
			t.Errorf("%s: %v", symbol, answer.GetErrorResponse())
		}
	}
	alpha, err := reflectionalphapb.NewServerReflectionClient(r.conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // deprecated, and still asked
	if err := alpha.Send(&reflectionalphapb.ServerReflectionRequest{MessageRequest: &reflectionalphapb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := alpha.Recv(); err != nil {
		t.Errorf("v1alpha: %v", err)
	}
}

// journal keeps the order of what happened.
type journal struct {
	mu     sync.Mutex
	events []string
}

func (j *journal) add(event string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, event)
}

// listening is a server on loopback, for tests that stop it.
func listening(t *testing.T, app *fakeApp, config Config) (*Server, *grpc.ClientConn, chan error) {
	t.Helper()
	config.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	server, err := New(config, Deps{Executions: app, Queries: app, Sessions: app, Leases: app, Events: app, Watches: app})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return server, conn, served
}

// TestShutdown_Order: a parked poll is answered empty, after health has told that it ends, and
// watchers of health do not hold it up.
func TestShutdown_Order(t *testing.T) {
	t.Parallel()
	parked, answerAll := make(chan struct{}), make(chan struct{})
	server, conn, served := listening(t, &fakeApp{poll: func(ctx context.Context, _ scheduler.Poll) (scheduler.PollAnswer, error) {
		close(parked)
		select {
		case <-answerAll:
			return scheduler.PollAnswer{}, nil
		case <-ctx.Done():
			return scheduler.PollAnswer{}, ctx.Err()
		}
	}}, Config{})
	book := &journal{}
	answered := make(chan error, 1)
	go func() {
		_, err := leaseholdv1.NewWorkerServiceClient(conn).LeaseAttempt(t.Context(), poll())
		book.add("answered")
		answered <- err
	}()
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(first, err)
	}
	<-parked
	start := time.Now()
	server.Shutdown(func() {
		if last, err := watch.Recv(); err != nil || last.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health when polls are answered: %v, %v", last, err)
		}
		book.add("polls")
		close(answerAll)
	})
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if err := <-answered; err != nil {
		t.Errorf("the parked poll: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if !slices.Equal(book.events, []string{"polls", "answered"}) {
		t.Errorf("order %v", book.events)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("the watch goes on")
	}
	server.Shutdown(nil) // again: nothing happens
}

// TestShutdown_IsBounded: a call that does not end is cut.
func TestShutdown_IsBounded(t *testing.T) {
	t.Parallel()
	parked := make(chan struct{})
	server, conn, served := listening(t, &fakeApp{poll: func(ctx context.Context, _ scheduler.Poll) (scheduler.PollAnswer, error) {
		close(parked)
		<-ctx.Done()
		return scheduler.PollAnswer{}, ctx.Err()
	}}, Config{StopTimeout: 200 * time.Millisecond})
	answered := make(chan error, 1)
	go func() {
		_, err := leaseholdv1.NewWorkerServiceClient(conn).LeaseAttempt(t.Context(), poll())
		answered <- err
	}()
	<-parked
	start := time.Now()
	server.Shutdown(nil)
	if took := time.Since(start); took < 200*time.Millisecond || took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestConnectionAge_LeavesPollsAlone: an old connection is replaced, and the poll that is
// parked on it ends as it should.
func TestConnectionAge_LeavesPollsAlone(t *testing.T) {
	t.Parallel()
	server, conn, served := listening(t, &fakeApp{poll: func(ctx context.Context, p scheduler.Poll) (scheduler.PollAnswer, error) {
		select {
		case <-time.After(p.Wait):
			return scheduler.PollAnswer{}, nil
		case <-ctx.Done():
			return scheduler.PollAnswer{}, ctx.Err()
		}
	}}, Config{MaxConnectionAge: 100 * time.Millisecond})
	workers := leaseholdv1.NewWorkerServiceClient(conn)
	for range 3 {
		if _, err := workers.LeaseAttempt(t.Context(), waiting(400*time.Millisecond)); err != nil {
			t.Error(err)
		}
	}
	server.Shutdown(nil)
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestPoll_EndsBeforeTheCallsDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{poll: func(ctx context.Context, p scheduler.Poll) (scheduler.PollAnswer, error) {
		time.Sleep(p.Wait)
		return scheduler.PollAnswer{Held: p.Wait}, ctx.Err()
	}}, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 1300*time.Millisecond)
	defer cancel()
	answer, err := r.workers.LeaseAttempt(ctx, waiting(20*time.Second))
	if err != nil || answer.GetHeldDuration().AsDuration() > 300*time.Millisecond {
		t.Errorf("got %v, %v", answer, err)
	}
}

func TestRegister_TellsTheLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{SessionTimeout: time.Minute, MaxPayloadBytes: 7})
	answer, err := r.workers.RegisterWorker(t.Context(), &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	if answer.GetMaxWaitTimeout().AsDuration() != 55*time.Second || answer.GetMinLeaseDuration().AsDuration() != time.Second ||
		answer.GetMaxLeaseDuration().AsDuration() != time.Hour || answer.GetMaxPayloadBytes() != 7 ||
		answer.GetMaxMessageBytes() != 4<<20 || answer.GetSessionTimeout().AsDuration() != time.Minute {
		t.Errorf("got %v", answer)
	}
}
