package memstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Cancel stops executions, in one transaction; a repeat is OK and changes nothing.
func (s *Store) Cancel(ctx context.Context, batch []scheduler.Cancellation, _ bool) ([]scheduler.Result[*scheduler.ExecutionView], error) {
	results := make([]scheduler.Result[*scheduler.ExecutionView], len(batch))
	err := s.tx(ctx, "cancel", func(t *txn) error {
		for i, c := range batch {
			err := t.change(c.Execution, func(g *gate, e *task.Execution) error {
				g.readOpen(c.Execution)
				return ended(c.Execution, e.Cancel(t.at, c.Reason))
			})
			if err == nil {
				results[i].Value, _, err = t.getExecution(scheduler.ExecutionQuery{ID: c.Execution})
			}
			if err != nil && !isAnswer(err) {
				return err
			}
			results[i].Err = err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// isAnswer tells a refusal of one item from what fails the transaction.
func isAnswer(err error) bool {
	var refused *scheduler.RefusedError
	var unknown *scheduler.NotFoundError
	return errors.As(err, &refused) || errors.As(err, &unknown)
}

// change opens an execution, changes it, and writes what came of it.
func (t *txn) change(id uuid.UUID, f func(*gate, *task.Execution) error) error {
	g := t.open(id)
	e := g.execs[id]
	if e == nil {
		return notFound(scheduler.KindExecution, id)
	}
	if err := f(g, e); err != nil {
		return err
	}
	return g.finish()
}

// ended makes a refusal of the domain one that the caller understands.
func ended(execution uuid.UUID, err error) error {
	var refused *task.TransitionError
	if errors.As(err, &refused) {
		return scheduler.EndedError(execution, refused)
	}
	return err
}

// Retry opens the next round of an execution, or finds the round that the request opened before.
func (s *Store) Retry(ctx context.Context, r scheduler.Retry) (done scheduler.Retried, err error) {
	err = s.tx(ctx, "retry", func(t *txn) error {
		if done.Round = t.reopenedBy(r); done.Round > 0 {
			done.Replayed = true
		} else if err := t.change(r.Execution, func(g *gate, e *task.Execution) error { return g.reopen(e, r) }); err != nil {
			return err
		}
		var err error
		done.Execution, _, err = t.getExecution(scheduler.ExecutionQuery{ID: r.Execution})
		if !done.Replayed && err == nil {
			done.Round = done.Execution.Round
		}
		return err
	})
	if err != nil {
		return scheduler.Retried{}, err
	}
	return done, nil
}

// reopenedBy is the round that a request opened, or 0.
func (t *txn) reopenedBy(r scheduler.Retry) (round int) {
	for _, en := range t.entries[r.Execution] {
		if en.Details["request_id"] != r.RequestID {
			continue
		}
		if n, err := fmt.Sscanf(en.Milestone, "r%d/execution/reopened", &round); n == 1 && err == nil {
			return round
		}
	}
	return 0
}

// reopen reads the whole graph, and lets the domain open what the request names.
func (g *gate) reopen(e *task.Execution, r scheduler.Retry) error {
	row := g.t.executions[r.Execution]
	g.readSteps(row.steps...)
	var named []uuid.UUID
	for _, name := range r.Steps {
		i := slices.IndexFunc(row.steps, func(id uuid.UUID) bool { return g.t.steps[id].Name == name })
		if i < 0 {
			return &scheduler.NotFoundError{Kind: scheduler.KindStep, ID: name}
		}
		if !slices.Contains(named, row.steps[i]) {
			named = append(named, row.steps[i])
		}
	}
	err := e.ReopenSteps(g.t.at, task.Retry{RequestID: r.RequestID, Reason: r.Reason}, named, row.edges)
	var refused *task.TransitionError
	if errors.As(err, &refused) {
		return scheduler.NotRetryableError(r.Execution, refused)
	}
	return err
}

// RevokeLease ends a live attempt LOST: its lease goes first, by its version.
func (s *Store) RevokeLease(ctx context.Context, r scheduler.Revocation) (done scheduler.Revoked, err error) {
	err = s.tx(ctx, "revoke lease", func(t *txn) error {
		l, live := t.leases[r.AttemptID]
		if !live || l.version != r.LeaseVersion {
			done, err = t.revokedBefore(r)
			return err
		}
		drop(t, t.leases, r.AttemptID)
		g := t.openSteps(l.step)
		e := g.of(l.step)
		if err := e.RevokeLease(t.at, l.step, r.Reason, t.c.Chance()); err != nil {
			return fmt.Errorf("revoke lease of step %s: %w", l.step, err)
		}
		if err := g.finish(); err != nil {
			return err
		}
		done = scheduler.Revoked{StepState: e.Step(l.step).Data().State, ExecutionState: e.Data().State, NextDue: e.NextDue(l.step)}
		return nil
	})
	return done, err
}

// revokedBefore answers a revocation of a lease that is not there: OK again if this very lease
// was revoked, else why it is not held any more.
func (t *txn) revokedBefore(r scheduler.Revocation) (scheduler.Revoked, error) {
	l, known := t.late(r.AttemptID, r.LeaseVersion)
	if !known {
		return scheduler.Revoked{}, notFound(scheduler.KindAttempt, r.AttemptID)
	}
	if l.HeldVersion != l.Attempt.LeaseVersion || l.Attempt.Reason != task.EndRevoked {
		return scheduler.Revoked{}, l.refusal()
	}
	return scheduler.Revoked{Replayed: true, StepState: l.stepState, ExecutionState: l.executionState, NextDue: l.nextDue}, nil
}

// Terminate ends an execution CANCELED: the leases of its live attempts go first.
func (s *Store) Terminate(ctx context.Context, id uuid.UUID, reason string) (view *scheduler.ExecutionView, err error) {
	err = s.tx(ctx, "terminate", func(t *txn) error {
		err := t.change(id, func(g *gate, e *task.Execution) error {
			if e.Data().State == task.ExecutionCanceled {
				return nil
			}
			g.readOpen(id)
			t.dropLeases(e)
			return ended(id, e.Terminate(t.at, reason))
		})
		if err != nil {
			return err
		}
		view, _, err = t.getExecution(scheduler.ExecutionQuery{ID: id})
		return err
	})
	return view, err
}

// dropLeases deletes the leases of an execution's live attempts, before these are ended.
func (t *txn) dropLeases(e *task.Execution) {
	for _, s := range e.Steps() {
		if a := s.Live(); a != nil {
			drop(t, t.leases, a.Data().ID)
		}
	}
}
