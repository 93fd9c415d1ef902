package client_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/api/client"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer accepts what it is asked, loses answers if it is told to, and has every execution
// done when it is watched for the second time.
type fakeServer struct {
	leaseholdv1.UnimplementedExecutionServiceServer
	address string
	server  *grpc.Server

	mu      sync.Mutex
	lose    int // so many answers, of enqueues and of retries
	keys    []string
	retries []string
	watches []int64 // after_revision
}

func startExampleServer() *fakeServer {
	s, err := startServer()
	if err != nil {
		panic(err)
	}
	return s
}

func startServer() (*fakeServer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &fakeServer{address: listener.Addr().String(), server: grpc.NewServer()}
	leaseholdv1.RegisterExecutionServiceServer(s.server, s)
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

func (s *fakeServer) stop() { s.server.Stop() }

// answer is an error as long as answers are lost. mu is held.
func (s *fakeServer) answer() error {
	if s.lose > 0 {
		s.lose--
		return status.Error(codes.Unavailable, "the answer was lost")
	}
	return nil
}

func (s *fakeServer) EnqueueExecution(_ context.Context, req *leaseholdv1.EnqueueExecutionRequest) (*leaseholdv1.EnqueueExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, req.GetIdempotencyKey())
	if req.GetName() == "" {
		st, err := status.New(codes.InvalidArgument, "no name").WithDetails(&errdetails.ErrorInfo{Domain: "leasehold", Reason: "INVALID_FIELD"})
		return nil, errors.Join(err, st.Err())
	}
	return &leaseholdv1.EnqueueExecutionResponse{Execution: &leaseholdv1.Execution{Id: "e"}, Created: true}, s.answer()
}

func (s *fakeServer) BatchEnqueueExecutions(_ context.Context, req *leaseholdv1.BatchEnqueueExecutionsRequest) (*leaseholdv1.BatchEnqueueExecutionsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range req.GetRequests() {
		s.keys = append(s.keys, one.GetIdempotencyKey())
	}
	return &leaseholdv1.BatchEnqueueExecutionsResponse{}, s.answer()
}

func (s *fakeServer) RetryExecution(_ context.Context, req *leaseholdv1.RetryExecutionRequest) (*leaseholdv1.RetryExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retries = append(s.retries, req.GetRequestId())
	return &leaseholdv1.RetryExecutionResponse{}, s.answer()
}

func (s *fakeServer) WatchExecution(req *leaseholdv1.WatchExecutionRequest, stream grpc.ServerStreamingServer[leaseholdv1.WatchExecutionResponse]) error {
	s.mu.Lock()
	s.watches = append(s.watches, req.GetAfterRevision())
	n := len(s.watches)
	s.mu.Unlock()
	switch {
	case req.GetExecutionId() == "nobody":
		return status.Error(codes.NotFound, "no such execution")
	case req.GetExecutionId() == "endless":
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	err := errors.Join(stream.Send(&leaseholdv1.WatchExecutionResponse{Revision: 0}), stream.Send(&leaseholdv1.WatchExecutionResponse{Revision: int64(10 * n)}))
	if err == nil && n == 1 {
		return status.Error(codes.Unavailable, "the server stops")
	}
	return err
}

func (s *fakeServer) GetExecution(_ context.Context, req *leaseholdv1.GetExecutionRequest) (*leaseholdv1.GetExecutionResponse, error) {
	step := &leaseholdv1.Step{Name: "greet", Output: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: `"Hello, Ada"`}}}
	resp := &leaseholdv1.GetExecutionResponse{NextPageToken: "2"}
	if req.GetPageToken() == "2" {
		resp.NextPageToken = ""
		step = &leaseholdv1.Step{Name: "raw", Output: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: []byte("[1]")}}}
	}
	resp.Execution = &leaseholdv1.Execution{Id: req.GetExecutionId(), State: leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED, Steps: []*leaseholdv1.Step{step}}
	return resp, nil
}

// connect starts servers and a client of them.
func connect(t *testing.T, n int) (*client.Client, []*fakeServer) {
	t.Helper()
	var servers []*fakeServer
	var addresses []string
	for range n {
		s, err := startServer()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.stop)
		servers, addresses = append(servers, s), append(addresses, s.address)
	}
	c, err := client.Dial(addresses)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, servers
}

// What is repeated bears the same key, which was filled in if there was none.
func TestClient_RepeatsUnderOneKey(t *testing.T) {
	t.Parallel()
	c, servers := connect(t, 1)
	s := servers[0]
	s.lose = 3
	req := &leaseholdv1.EnqueueExecutionRequest{Name: "n"}
	if _, err := c.EnqueueExecution(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if _, err := c.EnqueueExecution(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if len(s.keys) != 5 || s.keys[0] == "" || s.keys[0] != s.keys[3] || s.keys[0] != s.keys[4] || req.GetIdempotencyKey() != s.keys[0] {
		t.Errorf("keys = %q, want the same five times", s.keys)
	}
	s.keys, s.lose = nil, 1
	batch := &leaseholdv1.BatchEnqueueExecutionsRequest{Requests: []*leaseholdv1.EnqueueExecutionRequest{{}, {IdempotencyKey: "mine"}}}
	if _, err := c.BatchEnqueueExecutions(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if len(s.keys) != 4 || s.keys[0] == "" || s.keys[0] != s.keys[2] || s.keys[1] != "mine" || s.keys[3] != "mine" {
		t.Errorf("keys of the batch = %q", s.keys)
	}
	s.lose = 1
	if _, err := c.RetryExecution(t.Context(), &leaseholdv1.RetryExecutionRequest{}); err != nil {
		t.Fatal(err)
	}
	if len(s.retries) != 2 || s.retries[0] == "" || s.retries[0] != s.retries[1] {
		t.Errorf("request ids = %q, want the same twice", s.retries)
	}
}

func TestClient_GoesPastAServerThatIsGone(t *testing.T) {
	t.Parallel()
	c, servers := connect(t, 3)
	servers[1].stop()
	for range 12 {
		if _, err := c.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{Name: "n"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(servers[0].keys) == 0 || len(servers[2].keys) == 0 {
		t.Errorf("%d and %d calls to the servers that are left", len(servers[0].keys), len(servers[2].keys))
	}
}

func TestClient_Wait(t *testing.T) {
	t.Parallel()
	c, servers := connect(t, 1)
	e, err := c.Wait(t.Context(), "e")
	if err != nil || len(e.GetSteps()) != 2 {
		t.Fatalf("Wait = %v, %v; want both steps", e, err)
	}
	if w := servers[0].watches; len(w) != 2 || w[0] != 0 || w[1] != 10 {
		t.Errorf("watched after the revisions %v, want 0 and 10", w)
	}
	if v, err := client.Output[[]int](e, "raw"); err != nil || len(v) != 1 || v[0] != 1 {
		t.Errorf("output = %v, %v", v, err)
	}
	if _, err := client.Output[int](e, "greet"); err == nil {
		t.Error("a string was decoded as a number")
	}
	if _, err := client.Output[int](e, "nobody"); err == nil {
		t.Error("a step that is not there has an output")
	}
	if _, err := c.Wait(t.Context(), "nobody"); status.Code(err) != codes.NotFound {
		t.Errorf("Wait for what is not there = %v", err)
	}
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Wait(limited, "endless"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait until ctx ends = %v", err)
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	c, _ := connect(t, 1)
	_, err := c.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{})
	if got := client.Reason(err); got != "INVALID_FIELD" {
		t.Errorf("Reason(%v) = %q", err, got)
	}
	for _, err := range []error{nil, errors.New("x"), status.Error(codes.Unavailable, "x")} {
		if got := client.Reason(err); got != "" {
			t.Errorf("Reason(%v) = %q", err, got)
		}
	}
}
