package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Job is an attempt with its input, as its handler sees it.
type Job[In any] struct {
	// Attempt is the attempt, whatever the type of its input.
	*Attempt
	// Input is the step's input.
	Input In
}

// Attempt is one attempt of a step, as interceptors see it, and handlers in their Job. Its
// methods may be called from several goroutines; what they return must not be changed.
type Attempt struct {
	lease   *lease
	leases  *leaseTable
	servers *servers

	mu      sync.Mutex
	parents map[string]*leaseholdv1.Payload // nil until they are read
}

// ExecutionID is the id of the execution that the step belongs to, a UUID.
func (a *Attempt) ExecutionID() string { return a.lease.pb.GetExecutionId() }

// ExecutionName is the name that the producer gave the execution.
func (a *Attempt) ExecutionName() string { return a.lease.pb.GetExecutionName() }

// StepID is the step's id, a UUID, the same for all its attempts: an idempotency key for
// outside services that know such.
func (a *Attempt) StepID() string { return a.lease.pb.GetStepId() }

// StepName is the step's name, unique within its execution.
func (a *Attempt) StepName() string { return a.lease.pb.GetStepName() }

// Capability is the capability that the step needs.
func (a *Attempt) Capability() string { return a.lease.pb.GetCapability() }

// AttemptID is this attempt's id, a UUID.
func (a *Attempt) AttemptID() string { return a.lease.pb.GetAttemptId() }

// AttemptNumber is 1 for the step's first attempt and one more for each further one, those
// that were handed back included.
func (a *Attempt) AttemptNumber() int { return int(a.lease.pb.GetAttemptNumber()) }

// LeaseVersion is the fencing token: it grows with every grant and is never used twice, also
// between steps. Send it along with changes of outside resources and let them refuse smaller
// ones than they have seen; then a worker that lost its lease without noticing does no harm.
func (a *Attempt) LeaseVersion() int64 { return a.lease.pb.GetLeaseVersion() }

// TraceContext is the W3C trace context of the producer, "traceparent" and the like.
func (a *Attempt) TraceContext() map[string]string { return a.lease.pb.GetTraceContext() }

// Labels are the execution's.
func (a *Attempt) Labels() map[string]string { return a.lease.pb.GetLabels() }

// PreviousFailure says how the last failed attempt of the step failed; nil if none did.
func (a *Attempt) PreviousFailure() *leaseholdv1.Failure { return a.lease.pb.GetPreviousFailure() }

// Checkpoint is the last one that any earlier attempt of the step left; nil if none did.
func (a *Attempt) Checkpoint() *leaseholdv1.Payload { return a.lease.pb.GetCheckpoint() }

// DecodeCheckpoint decodes the JSON of Checkpoint into v, and reports false if there is none.
func (a *Attempt) DecodeCheckpoint(v any) (bool, error) {
	checkpoint := a.Checkpoint()
	if checkpoint.GetBody() == nil {
		return false, nil
	}
	if err := DecodePayload(checkpoint, v); err != nil {
		return false, fmt.Errorf("decode checkpoint: %w", err)
	}
	return true, nil
}

// ParentOutput decodes the JSON output of the parent of that name into v. Errors: those of
// ParentOutputs and of decoding, and ErrNoSuchParent.
func (a *Attempt) ParentOutput(ctx context.Context, name string, v any) error {
	outputs, err := a.ParentOutputs(ctx)
	if err != nil {
		return err
	}
	output := outputs[name]
	if output.GetBody() == nil {
		return fmt.Errorf("%w: %q", ErrNoSuchParent, name)
	}
	if err := DecodePayload(output, v); err != nil {
		return fmt.Errorf("decode output of %q: %w", name, err)
	}
	return nil
}

// Lease is the lease as it was granted, for what has no method of its own.
func (a *Attempt) Lease() *leaseholdv1.Lease { return a.lease.pb }

// ParentOutputs are the outputs of the step's parents by their names. They came with the
// lease, or, being too large together, are read from the server now, once, until ctx ends.
// Errors: the cause of ctx's end, and ErrLeaseLost.
func (a *Attempt) ParentOutputs(ctx context.Context) (map[string]*leaseholdv1.Payload, error) {
	if !a.lease.pb.GetParentOutputsOmitted() {
		return a.lease.pb.GetParentOutputs(), nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parents != nil {
		return a.parents, nil
	}
	// What little came with the lease counts, too.
	parents := maps.Clone(a.lease.pb.GetParentOutputs())
	if parents == nil {
		parents = make(map[string]*leaseholdv1.Payload)
	}
	req := &leaseholdv1.GetStepInputsRequest{AttemptId: a.AttemptID(), LeaseVersion: a.LeaseVersion()}
	for {
		resp, err := a.stepInputs(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("read parents' outputs: %w", err)
		}
		maps.Copy(parents, resp.GetParentOutputs())
		if resp.GetNextPageToken() == "" {
			a.parents = parents
			return parents, nil
		}
		req.PageToken = resp.GetNextPageToken()
	}
}

// stepInputs reads a page, and tries again while no server is there.
func (a *Attempt) stepInputs(ctx context.Context, req *leaseholdv1.GetStepInputsRequest) (*leaseholdv1.GetStepInputsResponse, error) {
	for try := 0; ; try++ {
		var resp *leaseholdv1.GetStepInputsResponse
		err := a.servers.call(ctx, bounds{limit: callTimeout, patience: callPatience}, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) (err error) {
			resp, err = c.GetStepInputs(ctx, req, a.lease.session.opts...)
			return err
		})
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errClosed) || !isAway(err):
			return nil, err
		case !a.servers.pause(ctx, retryWait(try, retryCap), err):
			return nil, context.Cause(ctx)
		}
	}
}
