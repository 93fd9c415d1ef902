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

// Retry opens the next round of an execution that FAILED or was CANCELED.
func (s *Scheduler) Retry(ctx context.Context, r Retry) (Retried, error) {
	if r.RequestID == "" {
		r.RequestID = "server/" + newID().String() // so that a commit whose answer was lost is found
	}
	done, err := s.store.Retry(ctx, r)
	if err == nil {
		s.hint(HintWork, HintChange)
	}
	return done, err
}

func (s *Scheduler) flushCancels(ctx context.Context, batch []Cancellation, wait bool) ([]Result[*ExecutionView], error) {
	results, err := s.store.Cancel(ctx, batch, wait)
	if err == nil {
		s.hint(HintChange)
	}
	return results, err
}
