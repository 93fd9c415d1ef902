package grpcapi

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Executions changes executions.
type Executions interface {
	// Enqueue accepts an execution whose specification is checked.
	Enqueue(ctx context.Context, spec *task.ExecutionSpec) (scheduler.Enqueued, error)
	// EnqueueAll accepts all or none; there is one result for each, in order.
	EnqueueAll(ctx context.Context, specs []*task.ExecutionSpec) ([]scheduler.Enqueued, error)
	// Cancel stops an execution.
	Cancel(ctx context.Context, execution uuid.UUID, reason string) (*scheduler.ExecutionView, error)
	// Retry opens the next round of an execution.
	Retry(ctx context.Context, r scheduler.Retry) (scheduler.Retried, error)
}

// Queries reads.
type Queries interface {
	// GetExecution reads an execution with some of its steps; more tells of further ones.
	GetExecution(ctx context.Context, q scheduler.ExecutionQuery) (view *scheduler.ExecutionView, more bool, err error)
	// ListExecutions reads at most q.Limit executions, newest first; the page may be short while
	// there are more.
	ListExecutions(ctx context.Context, q scheduler.ListQuery) (scheduler.ExecutionPage, error)
	// ListTimeline reads at most limit entries whose sequence is greater than after.
	ListTimeline(ctx context.Context, execution uuid.UUID, after int64, limit int) ([]scheduler.EntryView, error)
	// StepInputs reads parents' outputs, at least one and at most q.MaxBytes in all.
	StepInputs(ctx context.Context, q scheduler.InputsQuery) (scheduler.Inputs, error)
}

// executionService is for producers.
type executionService struct {
	leaseholdv1.UnimplementedExecutionServiceServer
	executions Executions
	queries    Queries
	watches    Watches
	maxMessage int
	maxAge     time.Duration // of connections
}

// EnqueueExecution accepts an execution.
func (s *executionService) EnqueueExecution(ctx context.Context, r *leaseholdv1.EnqueueExecutionRequest) (*leaseholdv1.EnqueueExecutionResponse, error) {
	spec := decodeSpec(ctx, r)
	if r.GetValidateOnly() {
		return encodeChecked(spec), nil
	}
	enqueued, err := s.executions.Enqueue(ctx, spec)
	if err != nil {
		return nil, err
	}
	return encodeEnqueued(enqueued), nil
}

// BatchEnqueueExecutions accepts all of its executions or none; those with validate_only are
// checked only.
func (s *executionService) BatchEnqueueExecutions(ctx context.Context, r *leaseholdv1.BatchEnqueueExecutionsRequest) (*leaseholdv1.BatchEnqueueExecutionsResponse, error) {
	answers := make([]*leaseholdv1.EnqueueExecutionResponse, len(r.GetRequests()))
	var specs []*task.ExecutionSpec
	var places []int
	for i, one := range r.GetRequests() {
		spec := decodeSpec(ctx, one)
		if one.GetValidateOnly() {
			answers[i] = encodeChecked(spec)
			continue
		}
		specs, places = append(specs, spec), append(places, i)
	}
	enqueued, err := s.enqueueAll(ctx, specs)
	if err != nil {
		return nil, err
	}
	for i, e := range enqueued {
		answers[places[i]] = &leaseholdv1.EnqueueExecutionResponse{Execution: encodeExecution(e.Execution), Created: e.Created}
	}
	return encodeBatch(answers, s.maxMessage), nil
}

func (s *executionService) enqueueAll(ctx context.Context, specs []*task.ExecutionSpec) ([]scheduler.Enqueued, error) {
	if len(specs) == 0 {
		return nil, nil
	}
	enqueued, err := s.executions.EnqueueAll(ctx, specs)
	if err == nil && len(enqueued) != len(specs) {
		err = fmt.Errorf("%d executions were answered with %d results", len(specs), len(enqueued))
	}
	return enqueued, err
}

// GetExecution reads an execution with a page of its steps.
func (s *executionService) GetExecution(ctx context.Context, r *leaseholdv1.GetExecutionRequest) (*leaseholdv1.GetExecutionResponse, error) {
	q, err := decodeGet(r)
	if err != nil {
		return nil, err
	}
	page, err := s.readSteps(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.GetExecutionResponse{Execution: page.execution}
	if page.more {
		answer.NextPageToken = getBinding(r).numberToken(int64(page.last))
	}
	return answer, nil
}

// ListExecutions reads a page of executions, newest first.
func (s *executionService) ListExecutions(ctx context.Context, r *leaseholdv1.ListExecutionsRequest) (*leaseholdv1.ListExecutionsResponse, error) {
	q, err := decodeList(r)
	if err != nil {
		return nil, err
	}
	page, err := s.queries.ListExecutions(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.ListExecutionsResponse{}
	room := newRoom(s.maxMessage)
	for i := range page.Executions {
		e := encodeExecution(&page.Executions[i])
		if !room.take(e) {
			last := &page.Executions[i-1]
			page.Next = &scheduler.ListPosition{CreatedAt: last.CreatedAt, ID: last.ID}
			break
		}
		answer.Executions = append(answer.Executions, e)
	}
	if page.Next != nil {
		answer.NextPageToken = listBinding(q).keyToken(page.Next.CreatedAt, page.Next.ID)
	}
	return answer, nil
}

// CancelExecution stops an execution.
func (s *executionService) CancelExecution(ctx context.Context, r *leaseholdv1.CancelExecutionRequest) (*leaseholdv1.CancelExecutionResponse, error) {
	view, err := s.executions.Cancel(ctx, id(r.GetExecutionId()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.CancelExecutionResponse{Execution: encodeExecution(view)}, nil
}

// RetryExecution opens the next round of an execution.
func (s *executionService) RetryExecution(ctx context.Context, r *leaseholdv1.RetryExecutionRequest) (*leaseholdv1.RetryExecutionResponse, error) {
	done, err := s.executions.Retry(ctx, scheduler.Retry{
		Execution: id(r.GetExecutionId()), Steps: r.GetStepNames(), RequestID: r.GetRequestId(), Reason: r.GetReason(),
	})
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.RetryExecutionResponse{
		Execution: encodeExecution(done.Execution), Round: int32(done.Round), Replayed: done.Replayed,
	}, nil
}

// ListTimeline reads a page of what happened to an execution.
func (s *executionService) ListTimeline(ctx context.Context, r *leaseholdv1.ListTimelineRequest) (*leaseholdv1.ListTimelineResponse, error) {
	execution, limit := id(r.GetExecutionId()), pageSize(r.GetPageSize())
	after, err := timelineBinding(execution).number(r.GetPageToken(), 0)
	if err != nil {
		return nil, err
	}
	views, err := s.queries.ListTimeline(ctx, execution, after, limit)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.ListTimelineResponse{}
	room := newRoom(s.maxMessage)
	for i := range views {
		e := encodeEntry(&views[i])
		if !room.take(e) {
			break
		}
		answer.Entries = append(answer.Entries, e)
	}
	if n := len(answer.Entries); n > 0 && (n < len(views) || n >= limit) {
		answer.NextPageToken = timelineBinding(execution).numberToken(views[n-1].Sequence)
	}
	return answer, nil
}
