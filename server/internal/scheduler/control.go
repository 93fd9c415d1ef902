package scheduler

import (
	"context"

	"github.com/google/uuid"
)

// Cancel stops an execution: no attempt starts after its answer.
func (s *Scheduler) Cancel(ctx context.Context, execution uuid.UUID, reason string) (*ExecutionView, error) {
	view, err := s.store.Cancel(ctx, execution, reason)
	if err == nil && s.changed != nil {
		s.changed()
	}
	return view, err
}
