package workertest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// Attempt is what a handler is given besides its input, and what happens to it meanwhile. The
// zero value is a first attempt to which nothing happens.
type Attempt struct {
	// Number is the attempt's number. Default 1.
	Number int
	// Checkpoint is what an earlier attempt left: a *leaseholdv1.Payload, or else any value,
	// which becomes JSON. Default: nothing.
	Checkpoint any
	// ParentOutputs are the outputs of the step's parents by their names, each as Checkpoint.
	ParentOutputs map[string]any
	// Lease has whatever else the attempt has: names, ids, labels, the previous failure. What
	// is missing there gets a usable value. Default: nothing.
	Lease *leaseholdv1.Lease

	// Timeout is the step's start_to_close_timeout: shortly before it the context ends with
	// worker.ErrDeadline. Default: none.
	Timeout time.Duration
	// CancelAfter is when the execution is cancelled; the handler's context ends with
	// worker.ErrCanceled at the next renewal, of which there are five a second. Default: never.
	CancelAfter time.Duration
	// LoseLeaseAfter is when the lease is taken away; the context ends with
	// worker.ErrLeaseLost as after CancelAfter. Default: never.
	LoseLeaseAfter time.Duration
	// StopAfter is when the worker is told to stop, without any grace: the context ends with
	// worker.ErrStopping. Default: never.
	StopAfter time.Duration

	// MaxPayloadBytes is the server's limit of outputs and checkpoints. Default 1 MiB.
	MaxPayloadBytes int
	// Interceptors stand around the handler, as worker.Config.Interceptors do.
	Interceptors []worker.Interceptor
}

// Outcome is what became of an attempt.
type Outcome[Out any] struct {
	// State is how the attempt ended: SUCCEEDED, FAILED, RELEASED or CANCELED as it was
	// reported; TIMED_OUT or LOST if nothing could be.
	State leaseholdv1.AttemptState
	// Output is that of a success.
	Output Out
	// Failure is that of a failure.
	Failure *leaseholdv1.Failure
	// Reason and NotBefore are those of an attempt that was handed back.
	Reason    string
	NotBefore time.Duration
	// Checkpoint is the one that the next attempt would get; nil: none.
	Checkpoint *leaseholdv1.Payload
	// Progress and ProgressMessage are the last that the server was told.
	Progress        float64
	ProgressMessage string
	// Cause is why the handler's context had ended when the handler returned; nil if it had
	// not, or if the handler did not return.
	Cause error
}

// Run runs handler, one for worker.Handle or worker.HandleRaw, on one attempt, and returns
// what became of that. It ends the test if the input or another value does not encode.
func Run[In, Out any](t testing.TB, handler func(context.Context, *worker.Job[In]) (Out, error), input In, a Attempt) Outcome[Out] {
	t.Helper()
	s, err := newServer(input, a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	observe := func(ctx context.Context, attempt *worker.Attempt, next worker.Handler) (*leaseholdv1.Payload, error) {
		defer stop() // there is no other attempt to come
		defer func() { s.handled(context.Cause(ctx)) }()
		return next(ctx, attempt)
	}
	cfg := worker.Config{
		Conn: s, LeaseDuration: leaseDuration, Interceptors: append([]worker.Interceptor{observe}, a.Interceptors...),
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if a.StopAfter > 0 {
		cfg.Grace = -1
		timer := time.AfterFunc(a.StopAfter, stop)
		defer timer.Stop()
	}
	w := worker.New(cfg)
	if raw, ok := any(handler).(func(context.Context, *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error)); ok {
		worker.HandleRaw(w, s.lease.GetCapability(), raw)
	} else {
		worker.Handle(w, s.lease.GetCapability(), handler)
	}
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := outcomeOf[Out](s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// outcomeOf puts together what the server was told.
func outcomeOf[Out any](s *server) (Outcome[Out], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := Outcome[Out]{
		State: s.state(), Failure: s.report.GetFailed().GetFailure(),
		Reason: s.report.GetReleased().GetReason(), NotBefore: s.report.GetReleased().GetNotBeforeDelay().AsDuration(),
		Checkpoint: s.checkpoint, Progress: s.progress, ProgressMessage: s.message, Cause: s.cause,
	}
	output := s.report.GetSucceeded().GetOutput()
	if raw, ok := any(&got.Output).(**leaseholdv1.Payload); ok {
		*raw = output
		return got, nil
	}
	return got, worker.DecodePayload(output, &got.Output)
}
