package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Retry opens the next round of an execution, under its lock, or finds the round that the
// request opened before.
func (s *Store) Retry(ctx context.Context, r scheduler.Retry) (scheduler.Retried, error) {
	var done scheduler.Retried
	err := s.tx(ctx, "retry", func(ctx context.Context, t *txn) error {
		done = scheduler.Retried{}
		g, err := t.lock(ctx, []uuid.UUID{r.Execution}, true)
		if err != nil {
			return err
		}
		e := g.execs[r.Execution]
		if e == nil {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: r.Execution.String()})
		}
		if done.Round, err = t.reopenedBy(ctx, r); err != nil {
			return err
		}
		if done.Round > 0 {
			t.vouch()
			done.Replayed = !t.again
			return nil
		}
		if err := g.reopen(ctx, e, r); err != nil {
			return err
		}
		done.Round = e.Data().Round
		return g.save(ctx)
	})
	if err != nil {
		return done, err
	}
	view := s.viewOf(ctx, r.Execution)
	done.Execution = view.Value
	return done, view.Err
}

// reopenedBy is the round that the request opened, or 0.
func (t *txn) reopenedBy(ctx context.Context, r scheduler.Retry) (round int, err error) {
	milestones, err := t.q.ReopenedBy(ctx, dbsqlc.ReopenedByParams{ExecutionID: r.Execution, RequestID: r.RequestID})
	if err != nil || len(milestones) == 0 {
		return 0, wrap("look for the request's round", err)
	}
	if _, err := fmt.Sscanf(milestones[0], "r%d/", &round); err != nil {
		return 0, fmt.Errorf("read milestone %q: %w", milestones[0], err)
	}
	return round, nil
}

// reopen reads the whole graph, and lets the domain open what the request names.
func (g *gate) reopen(ctx context.Context, e *task.Execution, r scheduler.Retry) error {
	id := e.Data().ID
	rows, err := g.t.q.AllSteps(ctx, id)
	if err != nil {
		return fmt.Errorf("read steps: %w", err)
	}
	ids := make(map[string]uuid.UUID, len(rows))
	all := make([]uuid.UUID, len(rows))
	for i, row := range rows {
		ids[row.Name], all[i] = row.ID, row.ID
	}
	var named []uuid.UUID
	for _, name := range r.Steps {
		step, known := ids[name]
		if !known {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindStep, ID: name})
		}
		if !slices.Contains(named, step) {
			named = append(named, step)
		}
	}
	if err := g.readSteps(ctx, all); err != nil {
		return err
	}
	edges, err := g.readChildren(ctx, all)
	if err != nil {
		return err
	}
	now, err := g.t.q.Now(ctx)
	if err != nil {
		return err
	}
	retry := task.Retry{RequestID: r.RequestID, Reason: r.Reason}
	return notRetryable(id, e.ReopenSteps(now.Time.UTC(), retry, named, edges[id]))
}

// notRetryable makes a refusal of the domain one that the caller understands.
func notRetryable(execution uuid.UUID, err error) error {
	var refused *task.TransitionError
	if !errors.As(err, &refused) {
		return err
	}
	return own(scheduler.NotRetryableError(execution, refused))
}
