// Package builtin is the small worker that `leasehold dev` runs beside its server, so that a
// newcomer's first executions get done. It is a client like any other: it knows the server
// by its connection only, and imports nothing of it but the worker SDK.
//
//	example.echo    returns its input as it is
//	example.sleep   {"seconds": 1.5}: takes that long; 0 to a day
//	example.flaky   {"fail_times": 1}: fails in its first so many attempts, then returns its input
package builtin

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

const (
	slots = 8
	// grace is short: nobody waits long for Ctrl-C to end `leasehold dev`.
	grace = 2 * time.Second
	// maxSleep is a day, in seconds; more is taken for a mistake.
	maxSleep = 86_400
)

// Run offers the example capabilities to the server at an address until ctx ends, then
// returns nil. Other errors are those of worker.Run.
func Run(ctx context.Context, address string, logger *slog.Logger, opts ...grpc.DialOption) error {
	w := worker.New(worker.Config{
		Address: address, DialOptions: opts, Slots: slots, Version: "builtin", Grace: grace, Logger: logger,
	})
	worker.HandleRaw(w, "example.echo", func(_ context.Context, job *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error) {
		return job.Input, nil
	})
	worker.Handle(w, "example.sleep", func(ctx context.Context, job *worker.Job[sleepInput]) (sleepOutput, error) {
		return sleep(ctx, job.Input)
	})
	worker.HandleRaw(w, "example.flaky", func(_ context.Context, job *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error) {
		return job.Input, flaky(job.Input, job.AttemptNumber())
	})
	return w.Run(ctx)
}

type sleepInput struct {
	Seconds float64 `json:"seconds"`
}

type sleepOutput struct {
	Slept float64 `json:"slept_seconds"`
}

// sleep waits as long as it is told to, or until ctx ends.
func sleep(ctx context.Context, in sleepInput) (sleepOutput, error) {
	if !(in.Seconds >= 0 && in.Seconds <= maxSleep) {
		return sleepOutput{}, worker.Permanent(fmt.Errorf("seconds is %v, must be 0 to %d", in.Seconds, maxSleep))
	}
	timer := time.NewTimer(time.Duration(in.Seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return sleepOutput{Slept: in.Seconds}, nil
	case <-ctx.Done():
		return sleepOutput{}, context.Cause(ctx)
	}
}

// flaky fails as long as the attempt's number is within the input's fail_times.
func flaky(input *leaseholdv1.Payload, attempt int) error {
	var in struct {
		FailTimes int `json:"fail_times"`
	}
	if err := worker.DecodePayload(input, &in); err != nil {
		return worker.Permanent(worker.WithType(fmt.Errorf("decode input: %w", err), worker.TypeInvalidInput))
	}
	if attempt <= in.FailTimes {
		return fmt.Errorf("attempt %d fails as it was told to (fail_times %d)", attempt, in.FailTimes)
	}
	return nil
}
