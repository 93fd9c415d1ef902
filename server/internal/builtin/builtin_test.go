package builtin

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		out, err := sleep(t.Context(), sleepInput{1.5})
		if took := time.Since(begun); err != nil || out.Slept != 1.5 || took != 1500*time.Millisecond {
			t.Errorf("sleep(1.5) = %v, %v after %v", out, err, took)
		}
		for _, seconds := range []float64{-1, 1e9, math.Inf(1), math.NaN()} {
			if _, err := sleep(t.Context(), sleepInput{seconds}); err == nil {
				t.Errorf("sleep(%v) is no error", seconds)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(worker.ErrCanceled) })
		begun = time.Now()
		if _, err := sleep(ctx, sleepInput{60}); !errors.Is(err, worker.ErrCanceled) || time.Since(begun) != time.Second {
			t.Errorf("sleep with an ended context = %v after %v, want ErrCanceled after 1 s", err, time.Since(begun))
		}
	})
}

func TestFlaky(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		input   *leaseholdv1.Payload
		attempt int
		fails   bool
	}{
		{jsonPayload(`{"fail_times": 2}`), 1, true},
		{jsonPayload(`{"fail_times": 2}`), 2, true},
		{jsonPayload(`{"fail_times": 2}`), 3, false},
		{jsonPayload(`{}`), 1, false},
		{nil, 1, false},
		{jsonPayload(`{"fail_times": "x"}`), 9, true},
		{&leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: []byte(`{"fail_times": 1}`)}}, 1, true},
	} {
		if err := flaky(tc.input, tc.attempt); (err != nil) != tc.fails {
			t.Errorf("flaky(%v, attempt %d) = %v, want a failure: %v", tc.input, tc.attempt, err, tc.fails)
		}
	}
}

// The worker over a real connection: what each capability makes of its input, as reported.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &oneShot{reports: make(map[string]*leaseholdv1.ReportAttemptRequest), leases: []*leaseholdv1.Lease{
			granted("echo", "example.echo", `{"any": [1, 2.50, "\u0000"]}`, 1),
			granted("nap", "example.sleep", `{"seconds": 3}`, 1),
			granted("bad nap", "example.sleep", `{"seconds": -3}`, 1),
			granted("flaky 1", "example.flaky", `{"fail_times": 1}`, 1),
			granted("flaky 2", "example.flaky", `{"fail_times": 1}`, 2),
		}}
		dialer := f.serve(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, "passthrough:///one-shot", slog.New(slog.NewTextHandler(io.Discard, nil)), dialer)
		}()
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		for id, ok := range map[string]bool{
			"echo":    f.reports["echo"].GetSucceeded().GetOutput().GetJson() == `{"any": [1, 2.50, "\u0000"]}`,
			"nap":     f.reports["nap"].GetSucceeded().GetOutput().GetJson() == `{"slept_seconds":3}`,
			"bad nap": f.reports["bad nap"].GetFailed().GetFailure().GetNonRetryable(),
			"flaky 1": f.reports["flaky 1"].GetFailed() != nil && !f.reports["flaky 1"].GetFailed().GetFailure().GetNonRetryable(),
			"flaky 2": f.reports["flaky 2"].GetSucceeded().GetOutput().GetJson() == `{"fail_times": 1}`,
		} {
			if !ok {
				t.Errorf("%s was reported as %v", id, f.reports[id])
			}
		}
	})
}

func jsonPayload(s string) *leaseholdv1.Payload {
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: s}}
}

func granted(id, capability, input string, attempt int32) *leaseholdv1.Lease {
	return &leaseholdv1.Lease{
		AttemptId: id, Capability: capability, Input: jsonPayload(input), AttemptNumber: attempt, LeaseVersion: 1,
		LeaseDuration: durationpb.New(30 * time.Second), RenewAfter: durationpb.New(10 * time.Second),
	}
}

// oneShot is a WorkerService that grants its leases to the first poll.
type oneShot struct {
	leaseholdv1.UnimplementedWorkerServiceServer
	mu      sync.Mutex
	leases  []*leaseholdv1.Lease
	reports map[string]*leaseholdv1.ReportAttemptRequest
}

func (f *oneShot) serve(t *testing.T) grpc.DialOption {
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	leaseholdv1.RegisterWorkerServiceServer(server, f)
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-serving
	})
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
}

func (f *oneShot) RegisterWorker(context.Context, *leaseholdv1.RegisterWorkerRequest) (*leaseholdv1.RegisterWorkerResponse, error) {
	return &leaseholdv1.RegisterWorkerResponse{WorkerId: "w", SessionId: "s", Name: "n"}, nil
}

func (f *oneShot) LeaseAttempt(ctx context.Context, _ *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error) {
	f.mu.Lock()
	leases := f.leases
	f.leases = nil
	f.mu.Unlock()
	if leases == nil {
		<-ctx.Done()
	}
	return &leaseholdv1.LeaseAttemptResponse{Leases: leases}, ctx.Err()
}

func (f *oneShot) ReportAttempt(_ context.Context, req *leaseholdv1.ReportAttemptRequest) (*leaseholdv1.ReportAttemptResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports[req.GetAttemptId()] = req
	return &leaseholdv1.ReportAttemptResponse{}, nil
}
