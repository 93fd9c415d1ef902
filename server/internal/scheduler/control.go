package scheduler

import (
	"context"

	"github.com/google/uuid"
)

// Cancel stops an execution: no attempt starts after its answer. Many that cancel the same one
// at once wait for one transaction, not for each other.
func (s *Scheduler) Cancel(ctx context.Context, execution uuid.UUID, reason string) (*ExecutionView, error) {
	r := s.cancels.do(ctx, Cancellation{Execution: execution, Reason: reason})[0]
	return r.Value, r.Err
}

func (s *Scheduler) flushCancels(ctx context.Context, batch []Cancellation, wait bool) ([]Result[*ExecutionView], error) {
	results, err := s.store.Cancel(ctx, batch, wait)
	if err == nil {
		s.hint(HintChange)
	}
	return results, err
}
