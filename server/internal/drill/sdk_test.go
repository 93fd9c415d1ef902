package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/api/client"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

type payloadJob = worker.Job[*leaseholdv1.Payload]

// sdkWorker is a worker of the SDK, connected to all replicas.
type sdkWorker struct {
	*worker.Worker
	w    *world
	stop context.CancelFunc
	done chan error
}

// sdk starts a worker of the SDK for the capability "work", and stops it with the test.
func (w *world) sdk(h worker.Handler, change ...func(*worker.Config)) *sdkWorker {
	w.t.Helper()
	cfg := worker.Config{Slots: 4, Logger: slog.New(slog.DiscardHandler)}
	for i := range w.replicas {
		cfg.Addresses = append(cfg.Addresses, w.Replica(i).Addr())
	}
	for _, f := range change {
		f(&cfg)
	}
	// The handler of a test is about attempts, whatever their inputs.
	cfg.Interceptors = append(cfg.Interceptors, func(ctx context.Context, a *worker.Attempt, _ worker.Handler) (*leaseholdv1.Payload, error) {
		return h(ctx, a)
	})
	s := &sdkWorker{Worker: worker.New(cfg), w: w, done: make(chan error, 1)}
	worker.HandleRaw(s.Worker, "work", func(context.Context, *payloadJob) (*leaseholdv1.Payload, error) { return nil, nil })
	ctx, cancel := context.WithCancel(w.ctx)
	s.stop = cancel
	go func() { s.done <- s.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		_ = s.ended() // some are meant to fail
	})
	return s
}

// ended waits until Run has returned, and returns what it said.
func (s *sdkWorker) ended() error {
	s.w.t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
		return err
	case <-time.After(patient):
		s.w.t.Fatal("the worker does not end")
		return nil
	}
}

// TestSDK_CheckpointsReachTheNextAttempt, whether they were saved, travelled with a renewal, or
// with the report of a failure or a release.
func TestSDK_CheckpointsReachTheNextAttempt(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	seen := make(chan string, 4)
	w.sdk(func(ctx context.Context, a *worker.Attempt) (*leaseholdv1.Payload, error) {
		seen <- a.Checkpoint().GetJson()
		switch a.AttemptNumber() {
		case 1:
			a.Progress(0.25, "a quarter")
			return nil, errors.Join(a.SaveCheckpoint(ctx, "saved"), errors.New("fails"))
		case 2:
			return nil, errors.Join(a.SaveCheckpoint(ctx, "older"), a.SetCheckpoint("with the failure"), errors.New("fails"))
		case 3:
			return nil, errors.Join(a.SetCheckpoint("with the release"), worker.Release("later", 0))
		default:
			return nil, nil
		}
	})
	id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(3, 10*time.Millisecond)}))
	w.awaitState(id, succeeded)
	for _, next := range []string{"", `"saved"`, `"with the failure"`, `"with the release"`} {
		want(t, "checkpoint", <-seen, next)
	}
	first := w.stepOf(id, "a").GetAttempts()[0]
	want(t, "progress", first.GetProgress(), 0.25)
	want(t, "progress message", first.GetProgressMessage(), "a quarter")
}

// TestB101_TheSDKEndsResultsOverTheLimit: of outputs around and far over the limits those that
// are too large fail for good, after one try. A checkpoint over the limit costs nothing.
func TestB101_TheSDKEndsResultsOverTheLimit(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	const limit = 1 << 20
	sizes := map[string]int{"below": limit - 1, "limit": limit, "above": limit + 1, "5 MB": 5 << 20, "20 MB": 20 << 20}
	w.sdk(func(ctx context.Context, a *worker.Attempt) (*leaseholdv1.Payload, error) {
		if err := a.SaveCheckpoint(ctx, Data(make([]byte, limit+1))); !errors.Is(err, worker.ErrPayloadTooLarge) {
			return nil, fmt.Errorf("save checkpoint: got %w, want ErrPayloadTooLarge", err)
		}
		return Data(make([]byte, sizes[a.ExecutionName()])), a.SaveCheckpoint(ctx, Data(make([]byte, limit)))
	})
	for name, size := range sizes {
		r := graph(step("a"))
		r.Name = name
		id := w.enqueue(r)
		if size <= limit {
			w.awaitState(id, succeeded)
			want(t, "bytes of the output", len(w.stepOf(id, "a").GetOutput().GetData()), size)
			continue
		}
		s := find(t, w.awaitState(id, failed), "a")
		want(t, "type of the failure", s.GetFailure().GetType(), worker.TypeResultTooLarge)
		want(t, "attempts", len(s.GetAttempts()), 1)
	}
}

// TestB40_TheSDKHearsOfACancel that came in through another replica; nobody else does.
func TestB40_TheSDKHearsOfACancel(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	causes := make(chan error, 1)
	finish := make(chan struct{})
	w.sdk(func(ctx context.Context, _ *worker.Attempt) (*leaseholdv1.Payload, error) {
		select {
		case <-ctx.Done():
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		case <-finish:
			return nil, nil
		}
	}, func(c *worker.Config) { c.Addresses, c.LeaseDuration = c.Addresses[:1], 3*time.Second })
	canceledOne, other := w.enqueue(graph(step("a"))), w.enqueue(graph(step("a")))
	w.awaitState(canceledOne, running)
	w.awaitState(other, running)
	w.cancel(1, canceledOne)
	if cause := <-causes; !errors.Is(cause, worker.ErrCanceled) {
		t.Errorf("cause = %v, want ErrCanceled", cause)
	}
	s := find(t, w.awaitState(canceledOne, canceled), "a")
	want(t, "attempt", s.GetAttempts()[0].GetState(), leaseholdv1.AttemptState_ATTEMPT_STATE_CANCELED)
	close(finish)
	w.awaitState(other, succeeded)
}

// TestB19_TheSDKIsToldThatItsNameWasTaken, and ends; work goes on with who took it.
func TestB19_TheSDKIsToldThatItsNameWasTaken(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	named := func(c *worker.Config) { c.Name, c.Grace = "w1", time.Second }
	handle := func(context.Context, *worker.Attempt) (*leaseholdv1.Payload, error) { return nil, nil }
	first := w.sdk(handle, named)
	w.awaitState(w.enqueue(graph(step("a"))), succeeded)
	second := w.sdk(handle, named)
	if err := first.ended(); !errors.Is(err, worker.ErrSuperseded) || !strings.Contains(err.Error(), `"w1"`) {
		t.Errorf("the first Run = %v, want ErrSuperseded and the name", err)
	}
	w.awaitState(w.enqueue(graph(step("a"))), succeeded)
	want(t, "worker", first.Stats().WorkerID, second.Stats().WorkerID)
	if err := second.Health(); err != nil {
		t.Errorf("health of the second: %v", err)
	}
}

// TestSDK_ErrorsSurviveTheWire: whatever call a handler makes when its lease was taken away,
// errors.Is tells that.
func TestSDK_ErrorsSurviveTheWire(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	large := Data(make([]byte, 700<<10))
	taken, errs := make(chan struct{}), make(chan error, 3)
	s := w.sdk(func(ctx context.Context, a *worker.Attempt) (*leaseholdv1.Payload, error) {
		switch {
		case a.StepName() != "child":
			return large, nil
		case a.AttemptNumber() == 1:
			<-taken
			_, err := a.ParentOutputs(context.WithoutCancel(ctx))
			errs <- err
			errs <- a.SaveCheckpoint(context.WithoutCancel(ctx), 1)
			<-ctx.Done()
			errs <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		outputs, err := a.ParentOutputs(ctx)
		if err != nil {
			return nil, err
		}
		if len(outputs) != 2 || len(outputs["a"].GetData()) != 700<<10 || len(outputs["b"].GetData()) != 700<<10 {
			return nil, worker.Permanent(fmt.Errorf("got %d outputs", len(outputs)))
		}
		return nil, nil
	}, func(c *worker.Config) { c.Grace = -1 })
	id := w.enqueue(graph(step("a"), step("b"), step("child", "a", "b")))
	w.await(id, "child runs", func(e *leaseholdv1.Execution) bool {
		return find(t, e, "child").GetState() == leaseholdv1.StepState_STEP_STATE_RUNNING
	})
	_, err := w.Client(0).Workers.DeregisterWorker(w.ctx, &leaseholdv1.DeregisterWorkerRequest{
		WorkerId: s.Stats().WorkerID, SessionId: s.Stats().SessionID, Force: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	close(taken)
	for _, what := range []string{"ParentOutputs", "SaveCheckpoint", "cause of the context"} {
		if err := <-errs; !errors.Is(err, worker.ErrLeaseLost) {
			t.Errorf("%s: %v, want ErrLeaseLost", what, err)
		}
	}
	w.awaitState(id, succeeded) // it registers again by itself, and reads what did not fit
}

// TestSDK_ReportsAreGathered: many short attempts cost far fewer calls than attempts.
func TestSDK_ReportsAreGathered(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	const n = 600
	var calls atomic.Int64
	count := func(ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if strings.Contains(method, "Report") {
			calls.Add(1)
		}
		return next(ctx, method, req, resp, conn, opts...)
	}
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	s := w.sdk(func(context.Context, *worker.Attempt) (*leaseholdv1.Payload, error) { return nil, nil },
		func(c *worker.Config) {
			c.Slots, c.DialOptions = 200, []grpc.DialOption{grpc.WithUnaryInterceptor(count)}
		})
	if err := Await(w.ctx, patient, "all reports", func(context.Context) (bool, error) { return s.Stats().Succeeded == n, nil }); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d reports in %d calls", n, calls.Load())
	if calls.Load() > n/2 {
		t.Errorf("%d calls for %d reports", calls.Load(), n)
	}
}

// TestSDK_DeadlineOfTheAttempt: the context ends before the server ends the attempt.
func TestSDK_DeadlineOfTheAttempt(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	causes := make(chan error, 1)
	w.sdk(func(ctx context.Context, _ *worker.Attempt) (*leaseholdv1.Payload, error) {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil, ctx.Err()
	})
	id := w.enqueue(graph(&leaseholdv1.StepSpec{
		Name: "a", Capability: "work", StartToCloseTimeout: durationpb.New(2 * time.Second), RetryPolicy: retries(1, time.Second),
	}))
	if cause := <-causes; !errors.Is(cause, worker.ErrDeadline) {
		t.Errorf("cause = %v, want ErrDeadline", cause)
	}
	s := find(t, w.awaitState(id, failed), "a")
	want(t, "attempt", s.GetAttempts()[0].GetState(), leaseholdv1.AttemptState_ATTEMPT_STATE_TIMED_OUT)
}

// TestClient_WaitsOverStoppedReplicas: a producer waits for an execution, and hears of its end,
// with its output, though replica after replica stops.
func TestClient_WaitsOverStoppedReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	finish := make(chan struct{})
	w.sdk(func(context.Context, *worker.Attempt) (*leaseholdv1.Payload, error) {
		<-finish
		return JSON(`"done"`), nil
	})
	c, err := client.Dial([]string{w.Replica(0).Addr(), w.Replica(1).Addr(), w.Replica(2).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answer, err := c.EnqueueExecution(w.ctx, graph(step("a")))
	if err != nil {
		t.Fatal(err)
	}
	id := answer.GetExecution().GetId()
	ended := make(chan error, 1)
	go func() {
		e, err := c.Wait(w.ctx, id)
		if err == nil {
			var output string
			if output, err = client.Output[string](e, "a"); err == nil && output != "done" {
				err = fmt.Errorf("output %q", output)
			}
		}
		ended <- err
	}()
	w.awaitState(id, running)
	w.Replica(0).Stop()
	w.Replica(1).Stop()
	close(finish)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("Wait: %v", err)
		}
	case <-time.After(patient):
		t.Error("Wait does not end")
	}
}
