package workertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/api/worker/workertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	succeeded = leaseholdv1.AttemptState_ATTEMPT_STATE_SUCCEEDED
	failed    = leaseholdv1.AttemptState_ATTEMPT_STATE_FAILED
	released  = leaseholdv1.AttemptState_ATTEMPT_STATE_RELEASED
	canceled  = leaseholdv1.AttemptState_ATTEMPT_STATE_CANCELED
	timedOut  = leaseholdv1.AttemptState_ATTEMPT_STATE_TIMED_OUT
	lost      = leaseholdv1.AttemptState_ATTEMPT_STATE_LOST
)

// count is a handler that counts to its input, a step a second, from where an earlier attempt
// was, and starts with what its parent counted.
func count(ctx context.Context, job *worker.Job[int]) (int, error) {
	var from, base int
	if _, err := job.DecodeCheckpoint(&from); err != nil {
		return 0, err
	}
	if err := job.ParentOutput(ctx, "before", &base); err != nil && !errors.Is(err, worker.ErrNoSuchParent) {
		return 0, err
	}
	for n := from; n < job.Input; n++ {
		if err := job.SetCheckpoint(n); err != nil {
			return 0, err
		}
		job.Progress(float64(n)/float64(job.Input), "counting")
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return base + job.Input, nil
}

func TestRun_WhatHappens(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		attempt    workertest.Attempt
		state      leaseholdv1.AttemptState
		cause      error
		checkpoint string
		output     int
		took       time.Duration // about
	}{
		"nothing":             {workertest.Attempt{}, succeeded, nil, "9", 10, 10 * time.Second},
		"a second try":        {workertest.Attempt{Number: 2, Checkpoint: 7}, succeeded, nil, "9", 10, 3 * time.Second},
		"a parent":            {workertest.Attempt{ParentOutputs: map[string]any{"before": 5}}, succeeded, nil, "9", 15, 10 * time.Second},
		"a cancel":            {workertest.Attempt{CancelAfter: 3500 * time.Millisecond}, canceled, worker.ErrCanceled, "3", 0, 3500 * time.Millisecond},
		"a lost lease":        {workertest.Attempt{LoseLeaseAfter: 3500 * time.Millisecond}, lost, worker.ErrLeaseLost, "3", 0, 3500 * time.Millisecond},
		"a timeout":           {workertest.Attempt{Timeout: 4 * time.Second}, timedOut, worker.ErrDeadline, "3", 0, 3800 * time.Millisecond},
		"a stop":              {workertest.Attempt{StopAfter: 3500 * time.Millisecond}, released, worker.ErrStopping, "3", 0, 3500 * time.Millisecond},
		"a stop, too late":    {workertest.Attempt{StopAfter: time.Minute}, succeeded, nil, "9", 10, 10 * time.Second},
		"a checkpoint's size": {workertest.Attempt{MaxPayloadBytes: 1, Checkpoint: 9}, failed, nil, "9", 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				got := workertest.Run(t, count, 10, tc.attempt)
				took := time.Since(begun)
				if got.State != tc.state || !errors.Is(got.Cause, tc.cause) || got.Output != tc.output || got.Checkpoint.GetJson() != tc.checkpoint {
					t.Errorf("got %+v", got)
				}
				if took < tc.took || took > tc.took+400*time.Millisecond {
					t.Errorf("took %v, want about %v", took, tc.took)
				}
				if got.Progress == 0 || got.ProgressMessage != "counting" {
					t.Errorf("progress = %v, %q", got.Progress, got.ProgressMessage)
				}
			})
		})
	}
}

func TestRun_Ends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type none struct{}
		handler := func(_ context.Context, job *worker.Job[string]) (none, error) {
			switch job.Input {
			case "panic":
				panic("boom")
			case "release":
				return none{}, worker.Release("later", time.Minute)
			case "permanent":
				return none{}, worker.Permanent(worker.WithType(errors.New("no"), "NO"))
			}
			return none{}, nil
		}
		if got := workertest.Run(t, handler, "panic", workertest.Attempt{}); got.State != failed || got.Failure.GetType() != worker.TypePanic {
			t.Errorf("a panic ended as %+v", got)
		}
		if got := workertest.Run(t, handler, "release", workertest.Attempt{}); got.State != released || got.Reason != "later" || got.NotBefore != time.Minute {
			t.Errorf("a release ended as %+v", got)
		}
		if got := workertest.Run(t, handler, "permanent", workertest.Attempt{}); !got.Failure.GetNonRetryable() || got.Failure.GetType() != "NO" {
			t.Errorf("a permanent error ended as %+v", got)
		}
	})
}

func TestRun_RawAndIntercepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		raw := func(_ context.Context, job *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error) {
			return job.Input, nil
		}
		var seen []string
		spy := func(ctx context.Context, a *worker.Attempt, next worker.Handler) (*leaseholdv1.Payload, error) {
			seen = append(seen, a.StepName()+" of "+a.Labels()["tenant"])
			return next(ctx, a)
		}
		in := &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: []byte{0, 0xff}}}
		got := workertest.Run(t, raw, in, workertest.Attempt{
			Lease:        &leaseholdv1.Lease{StepName: "copy", Labels: map[string]string{"tenant": "a"}},
			Interceptors: []worker.Interceptor{spy},
		})
		if got.State != succeeded || string(got.Output.GetData()) != "\x00\xff" || strings.Join(seen, ",") != "copy of a" {
			t.Errorf("got %+v, the interceptor saw %v", got, seen)
		}
	})
}
