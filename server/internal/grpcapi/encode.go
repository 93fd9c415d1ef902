package grpcapi

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// The wire's names of states are the domain's with a prefix.
const (
	executionStatePrefix = "EXECUTION_STATE_"
	stepStatePrefix      = "STEP_STATE_"
	attemptStatePrefix   = "ATTEMPT_STATE_"
	stagePrefix          = "TIMELINE_STAGE_"
)

// maxEnqueuedSteps is up to how many steps an answer to an enqueue lists them.
const maxEnqueuedSteps = 100

func encodeEnqueued(e scheduler.Enqueued) *leaseholdv1.EnqueueExecutionResponse {
	answer := &leaseholdv1.EnqueueExecutionResponse{Execution: encodeExecution(e.Execution), Created: e.Created}
	if e.Execution != nil && len(e.Execution.Steps) <= maxEnqueuedSteps {
		answer.Execution.Steps = encodeSteps(e.Execution)
	}
	return answer
}

// encodeChecked is the answer to validate_only: what would have been accepted, without ids.
func encodeChecked(spec *task.ExecutionSpec) *leaseholdv1.EnqueueExecutionResponse {
	return &leaseholdv1.EnqueueExecutionResponse{Execution: &leaseholdv1.Execution{
		Namespace: spec.Namespace, Name: spec.Name, IdempotencyKey: spec.IdempotencyKey, Labels: spec.Labels,
		Priority: int32(spec.Priority), StepCount: int32(len(spec.Steps)), FailFast: spec.FailFast,
	}}
}

// encodeExecution leaves steps out: not every answer has them.
func encodeExecution(v *scheduler.ExecutionView) *leaseholdv1.Execution {
	if v == nil {
		return nil
	}
	e := &leaseholdv1.Execution{
		Id: v.ID.String(), Namespace: v.Namespace, Name: v.Name, IdempotencyKey: v.IdempotencyKey,
		State: encodeExecutionState(v.State), Round: int32(v.Round), Labels: v.Labels, Priority: int32(v.Priority),
		Revision: v.Revision, CreateTime: instant(&v.CreatedAt), DueTime: instant(&v.DueAt),
		StartTime: instant(v.StartedAt), EndTime: instant(v.EndedAt), Deadline: instant(v.Deadline),
		CancelReason: v.CancelReason, Failure: encodeFailure(v.Failure),
		StepCount: int32(v.StepCount), FailFast: v.FailFast,
	}
	if !v.State.Terminal() {
		e.DeadlineRemaining = remaining(v.Deadline, v.Now)
	}
	if v.State == task.ExecutionCanceling {
		e.CancelDeadline, e.CancelRemaining = instant(v.CancelDeadline), remaining(v.CancelDeadline, v.Now)
	}
	return e
}

func encodeSteps(v *scheduler.ExecutionView) []*leaseholdv1.Step {
	steps := make([]*leaseholdv1.Step, len(v.Steps))
	for i := range v.Steps {
		steps[i] = encodeStep(&v.Steps[i], v.Now)
	}
	return steps
}

func encodeStep(v *scheduler.StepView, now time.Time) *leaseholdv1.Step {
	s := &leaseholdv1.Step{
		Id: v.ID.String(), Name: v.Name, Capability: v.Capability, Node: v.Node, State: encodeStepState(v.State),
		DependsOn: v.DependsOn, CountedAttempts: int32(v.Counted), Failure: encodeFailure(v.Failure),
		RetryStoppedBecause: v.StoppedBecause, Output: encodePayload(v.Output), Input: encodePayload(v.Input),
		Priority: int32(v.Priority), AttemptCount: int32(v.AttemptCount),
	}
	if v.State == task.StepReady {
		s.NextAttemptTime = instant(v.NextDue)
	}
	for i := range v.Attempts {
		s.Attempts = append(s.Attempts, encodeAttempt(&v.Attempts[i], now))
	}
	return s
}

func encodeAttempt(v *scheduler.AttemptView, now time.Time) *leaseholdv1.Attempt {
	a := &leaseholdv1.Attempt{
		Id: v.ID.String(), Number: int32(v.Number), Round: int32(v.Round), State: encodeAttemptState(v.State),
		Reason: v.Reason, WorkerId: text(v.WorkerID), WorkerName: v.WorkerName, Node: v.Node,
		LeaseVersion: v.LeaseVersion, LeaseTime: instant(&v.LeasedAt), EndTime: instant(v.EndedAt),
		Failure: encodeFailure(v.Failure), Progress: v.Progress, ProgressMessage: v.ProgressMessage,
	}
	if v.State == task.AttemptLeased {
		a.LeaseExpireTime, a.LeaseRemaining = instant(v.ExpiresAt), remaining(v.ExpiresAt, now)
	}
	return a
}

func encodeEntry(v *scheduler.EntryView) *leaseholdv1.TimelineEntry {
	e := &leaseholdv1.TimelineEntry{
		Sequence: v.Sequence, MilestoneKey: v.Milestone, Stage: encodeStage(v.Stage), Component: v.Component,
		Title: v.Title, StepName: v.StepName, AttemptNumber: int32(v.AttemptNumber), LeaseVersion: v.LeaseVersion,
		Time: instant(&v.At), Count: int32(max(v.Count, 1)), Details: v.Details,
	}
	if v.WorkerID != nil {
		e.WorkerId = v.WorkerID.String()
	}
	return e
}

func encodePayload(p *task.Payload) *leaseholdv1.Payload {
	switch {
	case p == nil:
		return nil
	case p.JSON:
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(p.Body)}, ContentType: p.ContentType}
	default:
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: p.Body}, ContentType: p.ContentType}
	}
}

func encodePayloads(payloads map[string]*task.Payload) map[string]*leaseholdv1.Payload {
	encoded := make(map[string]*leaseholdv1.Payload, len(payloads))
	for name, p := range payloads {
		if p == nil { // a map on the wire has no missing values
			encoded[name] = &leaseholdv1.Payload{}
			continue
		}
		encoded[name] = encodePayload(p)
	}
	return encoded
}

func encodeFailure(f *task.Failure) *leaseholdv1.Failure {
	if f == nil {
		return nil
	}
	failure := &leaseholdv1.Failure{
		Type: f.Type, Message: f.Message, NonRetryable: f.NonRetryable, Details: encodePayload(f.Details),
	}
	if f.NextRetryDelay != nil {
		failure.NextRetryDelay = durationpb.New(*f.NextRetryDelay)
	}
	return failure
}

func encodeExecutionState(s task.ExecutionState) leaseholdv1.ExecutionState {
	return leaseholdv1.ExecutionState(leaseholdv1.ExecutionState_value[executionStatePrefix+string(s)])
}

func encodeStepState(s task.StepState) leaseholdv1.StepState {
	return leaseholdv1.StepState(leaseholdv1.StepState_value[stepStatePrefix+string(s)])
}

func encodeAttemptState(s task.AttemptState) leaseholdv1.AttemptState {
	return leaseholdv1.AttemptState(leaseholdv1.AttemptState_value[attemptStatePrefix+string(s)])
}

func encodeStage(s task.Stage) leaseholdv1.TimelineStage {
	return leaseholdv1.TimelineStage(leaseholdv1.TimelineStage_value[stagePrefix+string(s)])
}

// instant is missing if there is none; the zero time is none too.
func instant(t *time.Time) *timestamppb.Timestamp {
	if t == nil || t.IsZero() {
		return nil
	}
	return timestamppb.New(*t)
}

// remaining is what is left until a deadline, missing if there is none and never negative.
func remaining(deadline *time.Time, now time.Time) *durationpb.Duration {
	if deadline == nil {
		return nil
	}
	return span(deadline.Sub(now))
}

// span is a duration that is never negative.
func span(d time.Duration) *durationpb.Duration { return durationpb.New(max(d, 0)) }

// text is an id, empty if it is zero.
func text(u uuid.UUID) string {
	if u == uuid.Nil {
		return ""
	}
	return u.String()
}
