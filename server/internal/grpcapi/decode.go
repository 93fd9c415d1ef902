package grpcapi

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	defaultPageSize = 50
	stepPageSize    = 1000
	// precision is that of PostgreSQL's instants and intervals: what is kept is what was
	// decoded, so that a repeat with the same content is recognised.
	precision = time.Microsecond
)

// decodeSpec fills in every default. The request has been validated.
func decodeSpec(ctx context.Context, r *leaseholdv1.EnqueueExecutionRequest) *task.ExecutionSpec {
	spec := &task.ExecutionSpec{
		Namespace:      namespace(r.GetNamespace()),
		IdempotencyKey: r.GetIdempotencyKey(),
		Name:           r.GetName(),
		Labels:         r.GetLabels(),
		TraceContext:   traceContext(ctx),
		StartAt:        decodeStart(r.GetStartAt()),
		StartDelay:     duration(r.GetStartDelay(), 0),
		Timeout:        timeout(r.GetTimeout(), 0),
		CancelGrace:    duration(r.GetCancelGrace(), task.DefaultCancelGrace),
		FailFast:       r.GetFailFast(),
		Priority:       int(r.GetPriority()),
		Steps:          make([]task.StepSpec, len(r.GetSteps())),
	}
	for i, step := range r.GetSteps() {
		spec.Steps[i] = decodeStep(step, spec.Priority)
	}
	return spec
}

func decodeStep(s *leaseholdv1.StepSpec, priority int) task.StepSpec {
	if s.Priority != nil {
		priority = int(s.GetPriority())
	}
	return task.StepSpec{
		Name:            s.GetName(),
		Capability:      s.GetCapability(),
		Node:            s.GetNode(),
		DependsOn:       s.GetDependsOn(),
		Input:           decodePayload(s.GetInput()),
		Retry:           decodeRetry(s.GetRetryPolicy()),
		ScheduleToStart: timeout(s.GetScheduleToStartTimeout(), 0),
		StartToClose:    timeout(s.GetStartToCloseTimeout(), task.DefaultStartToClose),
		ScheduleToClose: timeout(s.GetScheduleToCloseTimeout(), 0),
		StartDelay:      duration(s.GetStartDelay(), 0),
		Priority:        priority,
	}
}

func decodeRetry(p *leaseholdv1.RetryPolicy) task.RetryPolicy {
	policy := task.DefaultRetryPolicy()
	if p == nil {
		return policy
	}
	policy.InitialInterval = duration(p.GetInitialInterval(), policy.InitialInterval)
	policy.MaximumInterval = duration(p.GetMaximumInterval(), maximumInterval(policy.InitialInterval))
	policy.BackoffCoefficient = orDefault(p.GetBackoffCoefficient(), policy.BackoffCoefficient)
	policy.MaximumAttempts = orDefault(int(p.GetMaximumAttempts()), policy.MaximumAttempts)
	policy.NonRetryableTypes = p.GetNonRetryableErrorTypes()
	if p.Jitter != nil {
		policy.Jitter = p.GetJitter()
	}
	return policy
}

// maximumInterval is 100 × initial, without overflow.
func maximumInterval(initial time.Duration) time.Duration {
	const factor = 100
	return min(initial, task.MaxDuration/factor) * factor
}

func decodePayload(p *leaseholdv1.Payload) *task.Payload {
	switch body := p.GetBody().(type) {
	case *leaseholdv1.Payload_Json:
		return &task.Payload{JSON: true, Body: []byte(body.Json), ContentType: p.GetContentType()}
	case *leaseholdv1.Payload_Data:
		return &task.Payload{Body: body.Data, ContentType: p.GetContentType()}
	default:
		return nil
	}
}

func decodeStart(at *timestamppb.Timestamp) *time.Time {
	if at == nil {
		return nil
	}
	t := at.AsTime().Truncate(precision)
	return &t
}

// decodeGet names an execution and which steps to read. Its id or key is validated.
func decodeGet(r *leaseholdv1.GetExecutionRequest) (scheduler.ExecutionQuery, error) {
	after, err := getBinding(r).ordinal(r.GetPageToken())
	if err != nil {
		return scheduler.ExecutionQuery{}, err
	}
	return scheduler.ExecutionQuery{
		ID:             id(r.GetExecutionId()),
		Namespace:      namespace(r.GetNamespace()),
		IdempotencyKey: r.GetIdempotencyKey(),
		StepNames:      r.GetStepNames(),
		AfterOrdinal:   after,
		StepLimit:      stepPageSize,
		Payloads:       r.GetIncludePayloads(),
	}, nil
}

func getBinding(r *leaseholdv1.GetExecutionRequest) binding {
	return bind("GetExecution").
		text(id(r.GetExecutionId()).String(), namespace(r.GetNamespace()), r.GetIdempotencyKey()).
		set(r.GetStepNames())
}

// decodeList selects a page of executions. Bounds that are finer than what is stored are
// rounded up, which selects the same rows.
func decodeList(r *leaseholdv1.ListExecutionsRequest) (scheduler.ListQuery, error) {
	q := scheduler.ListQuery{
		Namespace:     namespace(r.GetNamespace()),
		Name:          r.GetName(),
		Labels:        r.GetLabelSelector(),
		CreatedAfter:  instantUp(r.GetCreatedAfter()),
		CreatedBefore: instantUp(r.GetCreatedBefore()),
		Limit:         pageSize(r.GetPageSize()),
	}
	for _, s := range r.GetStates() {
		q.States = append(q.States, decodeExecutionState(s))
	}
	at, last, err := listBinding(q).key(r.GetPageToken())
	if err == nil && r.GetPageToken() != "" {
		q.Before = &scheduler.ListPosition{CreatedAt: at, ID: last}
	}
	return q, err
}

func listBinding(q scheduler.ListQuery) binding {
	states := make([]string, len(q.States))
	for i, s := range q.States {
		states[i] = string(s)
	}
	return bind("ListExecutions").text(q.Namespace, q.Name).set(states).pairs(q.Labels).
		text(q.CreatedAfter.Format(time.RFC3339Nano), q.CreatedBefore.Format(time.RFC3339Nano))
}

func timelineBinding(execution uuid.UUID) binding {
	return bind("ListTimeline").text(execution.String())
}

// decodeExecutionState drops the prefix of the wire's name.
func decodeExecutionState(s leaseholdv1.ExecutionState) task.ExecutionState {
	return task.ExecutionState(strings.TrimPrefix(s.String(), executionStatePrefix))
}

func namespace(s string) string { return orDefault(s, task.DefaultNamespace) }

func pageSize(n int32) int { return orDefault(int(n), defaultPageSize) }

// id parses a UUID that has been validated; an empty one is zero.
func id(s string) uuid.UUID {
	u, _ := uuid.Parse(s)
	return u
}

func duration(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.AsDuration().Truncate(precision)
}

// timeout is a duration whose zero would mean none: a shorter one than can be told is not
// none.
func timeout(d *durationpb.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return max(duration(d, 0), precision)
}

// instantUp is zero if there is none. The year 1 begins with Go's zero time, so one
// microsecond later stands for it: nothing is that old.
func instantUp(at *timestamppb.Timestamp) time.Time {
	if at == nil {
		return time.Time{}
	}
	t := at.AsTime()
	if down := t.Truncate(precision); down.Before(t) || down.IsZero() {
		return down.Add(precision)
	}
	return t
}
