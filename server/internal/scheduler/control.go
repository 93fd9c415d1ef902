package scheduler

import (
	"context"

	"github.com/google/uuid"
)

// Cancel stops an execution: no attempt starts after its answer.
func (s *Scheduler) Cancel(ctx context.Context, execution uuid.UUID, reason string) (*ExecutionView, error) {
	return s.store.Cancel(ctx, execution, reason)
}
