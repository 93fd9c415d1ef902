package scheduler

import (
	"context"

	"github.com/google/uuid"
)

// SteeringStore says where work may go. What it changes is in force when it returns: no later
// commit of any replica grants against it.
type SteeringStore interface {
	// SetDrain drains workers, or ends a drain.
	SetDrain(ctx context.Context, d Drain) (Drained, error)
	// Pause stops grants of a capability; one that is paused stays as it is.
	Pause(ctx context.Context, c CapabilityKey, reason string) (CapabilityView, error)
	// Resume ends a pause.
	Resume(ctx context.Context, c CapabilityKey) (CapabilityView, error)
}

// InterventionStore takes work away.
type InterventionStore interface {
	// RevokeLease ends a live attempt LOST.
	RevokeLease(ctx context.Context, r Revocation) (Revoked, error)
	// Terminate ends an execution CANCELED, with its live attempts.
	Terminate(ctx context.Context, execution uuid.UUID, reason string) (*ExecutionView, error)
}

// FleetStore reads what operators look at.
type FleetStore interface {
	// ListWorkers reads a page in order of name.
	ListWorkers(ctx context.Context, q WorkerQuery) ([]WorkerView, error)
	// GetWorker reads one with its live attempts.
	GetWorker(ctx context.Context, id uuid.UUID) (WorkerView, error)
	// ListCapabilities reads a page in order of name.
	ListCapabilities(ctx context.Context, q CapabilityQuery) ([]CapabilityView, error)
	// ExplainStep tells all that holds for a step.
	ExplainStep(ctx context.Context, q StepQuery) (StepExplained, error)
}

// SetDrain drains a worker, a node or a version, or ends that drain.
func (s *Scheduler) SetDrain(ctx context.Context, d Drain) (Drained, error) {
	done, err := s.store.SetDrain(ctx, d)
	if err == nil {
		s.log.Info("drain", "namespace", d.Namespace, "kind", d.Kind, "value", d.Value, "draining", d.Draining, "reason", d.Reason)
		s.hint(HintSession, HintSlots)
	}
	return done, err
}

// Pause stops grants of a capability, retries and delays included.
func (s *Scheduler) Pause(ctx context.Context, c CapabilityKey, reason string) (CapabilityView, error) {
	view, err := s.store.Pause(ctx, c, reason)
	if err == nil {
		s.log.Info("capability paused", "namespace", c.Namespace, "capability", c.Name, "reason", reason)
	}
	return view, err
}

// Resume ends a pause; what waited goes on.
func (s *Scheduler) Resume(ctx context.Context, c CapabilityKey, reason string) (CapabilityView, error) {
	view, err := s.store.Resume(ctx, c)
	if err == nil {
		s.log.Info("capability resumed", "namespace", c.Namespace, "capability", c.Name, "reason", reason)
		s.hint(HintWork)
	}
	return view, err
}

// RevokeLease ends a live attempt LOST now; its step goes on.
func (s *Scheduler) RevokeLease(ctx context.Context, r Revocation) (Revoked, error) {
	done, err := s.store.RevokeLease(ctx, r)
	if err == nil {
		s.hint(HintSlots, HintWork, HintChange)
	}
	return done, err
}

// Terminate ends an execution CANCELED now.
func (s *Scheduler) Terminate(ctx context.Context, execution uuid.UUID, reason string) (*ExecutionView, error) {
	view, err := s.store.Terminate(ctx, execution, reason)
	if err == nil {
		s.hint(HintSlots, HintChange)
	}
	return view, err
}
