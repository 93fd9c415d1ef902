package grpcapi

import (
	"context"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Operators changes where work may go, and takes work away.
type Operators interface {
	// SetDrain drains workers, or ends a drain.
	SetDrain(ctx context.Context, d scheduler.Drain) (scheduler.Drained, error)
	// Pause stops grants of a capability.
	Pause(ctx context.Context, c scheduler.CapabilityKey, reason string) (scheduler.CapabilityView, error)
	// Resume ends a pause.
	Resume(ctx context.Context, c scheduler.CapabilityKey, reason string) (scheduler.CapabilityView, error)
	// RevokeLease ends a live attempt LOST.
	RevokeLease(ctx context.Context, r scheduler.Revocation) (scheduler.Revoked, error)
	// Terminate ends an execution CANCELED, with its live attempts.
	Terminate(ctx context.Context, execution uuid.UUID, reason string) (*scheduler.ExecutionView, error)
}

// Fleet reads what operators look at.
type Fleet interface {
	// ListWorkers reads at most q.Limit workers in order of name.
	ListWorkers(ctx context.Context, q scheduler.WorkerQuery) ([]scheduler.WorkerView, error)
	// GetWorker reads one with its live attempts.
	GetWorker(ctx context.Context, id uuid.UUID) (scheduler.WorkerView, error)
	// ListCapabilities reads at most q.Limit capabilities in order of name.
	ListCapabilities(ctx context.Context, q scheduler.CapabilityQuery) ([]scheduler.CapabilityView, error)
	// ExplainStep tells all that holds for a step.
	ExplainStep(ctx context.Context, q scheduler.StepQuery) (scheduler.StepExplained, error)
}

// operatorService is for operators.
type operatorService struct {
	leaseholdv1.UnimplementedOperatorServiceServer
	operators  Operators
	fleet      Fleet
	events     Events
	maxMessage int
}

// ListWorkers reads a page of workers.
func (s *operatorService) ListWorkers(ctx context.Context, r *leaseholdv1.ListWorkersRequest) (*leaseholdv1.ListWorkersResponse, error) {
	q, err := decodeWorkers(r)
	if err != nil {
		return nil, err
	}
	views, err := s.fleet.ListWorkers(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.ListWorkersResponse{}
	room := newRoom(s.maxMessage)
	for i := range views {
		w := encodeWorker(&views[i])
		if !room.take(w) {
			break
		}
		answer.Workers = append(answer.Workers, w)
	}
	if n := len(answer.Workers); n > 0 && (n < len(views) || n >= q.Limit) {
		answer.NextPageToken = workersBinding(q).nameToken(views[n-1].Name)
	}
	return answer, nil
}

// GetWorker reads a worker with its live attempts.
func (s *operatorService) GetWorker(ctx context.Context, r *leaseholdv1.GetWorkerRequest) (*leaseholdv1.GetWorkerResponse, error) {
	view, err := s.fleet.GetWorker(ctx, id(r.GetWorkerId()))
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.GetWorkerResponse{Worker: encodeWorker(&view)}, nil
}

// SetWorkerDrain drains workers, or ends a drain.
func (s *operatorService) SetWorkerDrain(ctx context.Context, r *leaseholdv1.SetWorkerDrainRequest) (*leaseholdv1.SetWorkerDrainResponse, error) {
	done, err := s.operators.SetDrain(ctx, decodeDrain(r))
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.SetWorkerDrainResponse{
		Workers: int32(done.Workers), WorkersCapped: done.More, LiveLeases: int32(done.Leases),
	}, nil
}

// ListCapabilities reads a page of capabilities.
func (s *operatorService) ListCapabilities(ctx context.Context, r *leaseholdv1.ListCapabilitiesRequest) (*leaseholdv1.ListCapabilitiesResponse, error) {
	q, err := decodeCapabilities(r)
	if err != nil {
		return nil, err
	}
	views, err := s.fleet.ListCapabilities(ctx, q)
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.ListCapabilitiesResponse{}
	room := newRoom(s.maxMessage)
	for i := range views {
		c := encodeCapability(&views[i])
		if !room.take(c) {
			break
		}
		answer.Capabilities = append(answer.Capabilities, c)
	}
	if n := len(answer.Capabilities); n > 0 && (n < len(views) || n >= q.Limit) {
		answer.NextPageToken = capabilitiesBinding(q).nameToken(views[n-1].Name)
	}
	return answer, nil
}

// PauseCapability stops grants of a capability.
func (s *operatorService) PauseCapability(ctx context.Context, r *leaseholdv1.PauseCapabilityRequest) (*leaseholdv1.PauseCapabilityResponse, error) {
	view, err := s.operators.Pause(ctx, capabilityKey(r.GetNamespace(), r.GetCapability()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.PauseCapabilityResponse{Capability: encodeCapability(&view)}, nil
}

// ResumeCapability ends a pause.
func (s *operatorService) ResumeCapability(ctx context.Context, r *leaseholdv1.ResumeCapabilityRequest) (*leaseholdv1.ResumeCapabilityResponse, error) {
	view, err := s.operators.Resume(ctx, capabilityKey(r.GetNamespace(), r.GetCapability()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.ResumeCapabilityResponse{Capability: encodeCapability(&view)}, nil
}

// ExplainStep tells why a step does not run, or that it does.
func (s *operatorService) ExplainStep(ctx context.Context, r *leaseholdv1.ExplainStepRequest) (*leaseholdv1.ExplainStepResponse, error) {
	explained, err := s.fleet.ExplainStep(ctx, scheduler.StepQuery{
		StepID: id(r.GetStepId()), ExecutionID: id(r.GetExecutionId()), Name: r.GetStepName(),
	})
	if err != nil {
		return nil, err
	}
	return encodeExplained(&explained), nil
}

// RevokeLease ends a live attempt.
func (s *operatorService) RevokeLease(ctx context.Context, r *leaseholdv1.RevokeLeaseRequest) (*leaseholdv1.RevokeLeaseResponse, error) {
	done, err := s.operators.RevokeLease(ctx, scheduler.Revocation{
		AttemptID: id(r.GetAttemptId()), LeaseVersion: r.GetLeaseVersion(), Reason: r.GetReason(),
	})
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.RevokeLeaseResponse{
		Replayed: done.Replayed, StepState: encodeStepState(done.StepState),
		ExecutionState: encodeExecutionState(done.ExecutionState), NextAttemptTime: instant(done.NextDue),
	}, nil
}

// TerminateExecution ends an execution at once.
func (s *operatorService) TerminateExecution(ctx context.Context, r *leaseholdv1.TerminateExecutionRequest) (*leaseholdv1.TerminateExecutionResponse, error) {
	view, err := s.operators.Terminate(ctx, id(r.GetExecutionId()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.TerminateExecutionResponse{Execution: encodeExecution(view)}, nil
}
