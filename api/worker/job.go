package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Job is one attempt of a step, as its handler sees it. Its methods may be called from
// several goroutines; what they return must not be changed.
type Job[In any] struct {
	// Input is the step's input.
	Input In

	attempt *attempt
}

// ExecutionID is the id of the execution that the step belongs to, a UUID.
func (j *Job[In]) ExecutionID() string { return j.attempt.lease.GetExecutionId() }

// ExecutionName is the name that the producer gave the execution.
func (j *Job[In]) ExecutionName() string { return j.attempt.lease.GetExecutionName() }

// StepID is the step's id, a UUID, the same for all its attempts: an idempotency key for
// outside services that know such.
func (j *Job[In]) StepID() string { return j.attempt.lease.GetStepId() }

// StepName is the step's name, unique within its execution.
func (j *Job[In]) StepName() string { return j.attempt.lease.GetStepName() }

// Capability is the capability that the step needs.
func (j *Job[In]) Capability() string { return j.attempt.lease.GetCapability() }

// AttemptID is this attempt's id, a UUID.
func (j *Job[In]) AttemptID() string { return j.attempt.lease.GetAttemptId() }

// AttemptNumber is 1 for the step's first attempt and one more for each further one, those
// that were handed back included.
func (j *Job[In]) AttemptNumber() int { return int(j.attempt.lease.GetAttemptNumber()) }

// LeaseVersion is the fencing token: it grows with every grant and is never used twice, also
// between steps. Send it along with changes of outside resources and let them refuse smaller
// ones than they have seen; then a worker that lost its lease without noticing does no harm.
func (j *Job[In]) LeaseVersion() int64 { return j.attempt.lease.GetLeaseVersion() }

// Labels are the execution's.
func (j *Job[In]) Labels() map[string]string { return j.attempt.lease.GetLabels() }

// PreviousFailure says how the last failed attempt of the step failed; nil if none did.
func (j *Job[In]) PreviousFailure() *leaseholdv1.Failure { return j.attempt.lease.GetPreviousFailure() }

// Checkpoint is the last one that any earlier attempt of the step left; nil if none did.
func (j *Job[In]) Checkpoint() *leaseholdv1.Payload { return j.attempt.lease.GetCheckpoint() }

// DecodeCheckpoint decodes the JSON of Checkpoint into v, and reports false if there is none.
func (j *Job[In]) DecodeCheckpoint(v any) (bool, error) {
	checkpoint := j.Checkpoint()
	if checkpoint.GetBody() == nil {
		return false, nil
	}
	if err := decodeJSON(checkpoint, v); err != nil {
		return false, fmt.Errorf("decode checkpoint: %w", err)
	}
	return true, nil
}

// ParentOutputs are the outputs of the step's parents by their names. They came with the
// lease, or, being too large together, are read from the server now, once, until ctx ends.
// Errors: those of ctx, and ErrLeaseLost.
func (j *Job[In]) ParentOutputs(ctx context.Context) (map[string]*leaseholdv1.Payload, error) {
	return j.attempt.parentOutputs(ctx)
}

// ParentOutput decodes the JSON output of the parent of that name into v. Errors: those of
// ParentOutputs and of decoding, and ErrNoSuchParent.
func (j *Job[In]) ParentOutput(ctx context.Context, name string, v any) error {
	outputs, err := j.ParentOutputs(ctx)
	if err != nil {
		return err
	}
	output := outputs[name]
	if output.GetBody() == nil {
		return fmt.Errorf("%w: %q", ErrNoSuchParent, name)
	}
	if err := decodeJSON(output, v); err != nil {
		return fmt.Errorf("decode output of %q: %w", name, err)
	}
	return nil
}

// Lease is the lease as it was granted, for what has no method of its own.
func (j *Job[In]) Lease() *leaseholdv1.Lease { return j.attempt.lease }

// attempt is what a Job knows, whatever the type of its input.
type attempt struct {
	lease  *leaseholdv1.Lease
	client leaseholdv1.WorkerServiceClient
	opts   []grpc.CallOption

	mu      sync.Mutex
	parents map[string]*leaseholdv1.Payload // nil until they are read
}

func (a *attempt) parentOutputs(ctx context.Context) (map[string]*leaseholdv1.Payload, error) {
	if !a.lease.GetParentOutputsOmitted() {
		return a.lease.GetParentOutputs(), nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.parents != nil {
		return a.parents, nil
	}
	// What little came with the lease counts, too.
	parents := maps.Clone(a.lease.GetParentOutputs())
	if parents == nil {
		parents = make(map[string]*leaseholdv1.Payload)
	}
	req := &leaseholdv1.GetStepInputsRequest{AttemptId: a.lease.GetAttemptId(), LeaseVersion: a.lease.GetLeaseVersion()}
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
func (a *attempt) stepInputs(ctx context.Context, req *leaseholdv1.GetStepInputsRequest) (*leaseholdv1.GetStepInputsResponse, error) {
	for try := 0; ; try++ {
		resp, err := a.client.GetStepInputs(ctx, req, a.opts...)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if status.Code(err) != codes.Unavailable {
			return nil, fromWire(err)
		}
		if !sleep(ctx, retryWait(try, retryCap)) {
			return nil, context.Cause(ctx)
		}
	}
}

// decodeJSON decodes a payload, JSON text or bytes that hold JSON; none leaves v as it is.
func decodeJSON(p *leaseholdv1.Payload, v any) error {
	switch body := p.GetBody().(type) {
	case *leaseholdv1.Payload_Json:
		return json.Unmarshal([]byte(body.Json), v)
	case *leaseholdv1.Payload_Data:
		return json.Unmarshal(body.Data, v)
	default:
		return nil
	}
}
