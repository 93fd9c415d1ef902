package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Cancel stops executions, in one transaction. Every item has its own answer; a repeat is OK
// and changes nothing, and many of one execution hold it once.
func (s *Store) Cancel(ctx context.Context, batch []scheduler.Cancellation, wait bool) ([]scheduler.Result[*scheduler.ExecutionView], error) {
	var outcomes map[uuid.UUID]error
	err := s.tx(ctx, "cancel", func(ctx context.Context, t *txn) error {
		var err error
		outcomes, err = t.cancel(ctx, batch, wait)
		return err
	})
	if err != nil {
		return nil, err
	}
	results := make([]scheduler.Result[*scheduler.ExecutionView], len(batch))
	views := map[uuid.UUID]scheduler.Result[*scheduler.ExecutionView]{}
	for i, c := range batch {
		r, read := views[c.Execution]
		if !read {
			if r.Err = outcomes[c.Execution]; r.Err == nil {
				r = s.viewOf(ctx, c.Execution)
			}
			views[c.Execution] = r
		}
		results[i] = r
	}
	return results, nil
}

// cancel decides on each execution once, under its lock; the outcome is nil where the cancel
// is in force.
func (t *txn) cancel(ctx context.Context, batch []scheduler.Cancellation, wait bool) (map[uuid.UUID]error, error) {
	reasons := map[uuid.UUID]string{}
	for _, c := range batch {
		if _, twice := reasons[c.Execution]; !twice {
			reasons[c.Execution] = c.Reason
		}
	}
	ids := make([]uuid.UUID, 0, len(reasons))
	for id := range reasons {
		ids = append(ids, id)
	}
	g, err := t.lock(ctx, ids, wait)
	if err != nil {
		return nil, err
	}
	outcomes, err := t.notLocked(ctx, g, ids)
	if err != nil {
		return nil, err
	}
	var open []uuid.UUID
	for id, e := range g.execs {
		switch state := e.Data().State; {
		case state == task.ExecutionCanceling || state == task.ExecutionCanceled:
			t.vouch()
		case !state.Terminal():
			open = append(open, id)
		}
	}
	if err := g.readOpen(ctx, open); err != nil {
		return nil, err
	}
	now, err := t.q.Now(ctx)
	if err != nil {
		return nil, err
	}
	for id, e := range g.execs {
		if err := e.Cancel(now.Time.UTC(), reasons[id]); err != nil {
			var refused *task.TransitionError
			if !errors.As(err, &refused) {
				return nil, fmt.Errorf("cancel execution %s: %w", id, err)
			}
			outcomes[id] = scheduler.EndedError(id, refused)
		}
	}
	return outcomes, g.save(ctx)
}

// notLocked tells executions that are not there from those that another transaction holds.
func (t *txn) notLocked(ctx context.Context, g *gate, ids []uuid.UUID) (map[uuid.UUID]error, error) {
	outcomes := map[uuid.UUID]error{}
	if len(g.execs) == len(ids) {
		return outcomes, nil
	}
	there, err := t.q.ExistingExecutions(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("find executions: %w", err)
	}
	exists := setOf(there)
	for _, id := range ids {
		switch {
		case g.execs[id] != nil:
		case exists[id]:
			outcomes[id] = scheduler.ErrBusy
		default:
			outcomes[id] = &scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: id.String()}
		}
	}
	return outcomes, nil
}

// viewOf reads an execution, without steps, after the transaction that changed it.
func (s *Store) viewOf(ctx context.Context, id uuid.UUID) (r scheduler.Result[*scheduler.ExecutionView]) {
	r.Err = s.readOnly(ctx, "read execution", func(q *dbsqlc.Queries) error {
		var err error
		r.Value, _, err = getExecution(ctx, q, scheduler.ExecutionQuery{ID: id})
		return err
	})
	return r
}
