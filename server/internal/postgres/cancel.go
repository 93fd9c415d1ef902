package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Cancel stops an execution. A repeat is OK and changes nothing.
func (s *Store) Cancel(ctx context.Context, execution uuid.UUID, reason string) (*scheduler.ExecutionView, error) {
	var view *scheduler.ExecutionView
	err := s.tx(ctx, "cancel", func(ctx context.Context, t *txn) error {
		ids := []uuid.UUID{execution}
		g, err := t.lock(ctx, ids, true)
		if err != nil {
			return err
		}
		e := g.execs[execution]
		if e == nil {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: execution.String()})
		}
		if s := e.Data().State; s == task.ExecutionCanceling || s == task.ExecutionCanceled {
			t.vouch()
		}
		if err := g.readOpen(ctx, ids); err != nil {
			return err
		}
		now, err := t.q.Now(ctx)
		if err != nil {
			return err
		}
		if err := e.Cancel(now.Time.UTC(), reason); err != nil {
			return closedError(execution, err)
		}
		if err := g.save(ctx); err != nil {
			return err
		}
		view, _, err = getExecution(ctx, t.q, scheduler.ExecutionQuery{ID: execution})
		return err
	})
	return view, err
}

// closedError turns the domain's refusal into the caller's answer.
func closedError(execution uuid.UUID, err error) error {
	var refused *task.TransitionError
	if !errors.As(err, &refused) {
		return fmt.Errorf("cancel execution %s: %w", execution, err)
	}
	return own(&scheduler.RefusedError{
		Reason: task.ReasonExecutionClosed, Subject: execution.String(),
		Message: "the execution has ended: " + refused.From,
	})
}
