package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// RevokeLease ends a live attempt LOST, under its execution's lock: the lease row goes first,
// by its version.
func (s *Store) RevokeLease(ctx context.Context, r scheduler.Revocation) (scheduler.Revoked, error) {
	var done scheduler.Revoked
	err := s.tx(ctx, "revoke lease", func(ctx context.Context, t *txn) error {
		g, where, err := t.lockAttempts(ctx, []uuid.UUID{r.AttemptID})
		if err != nil {
			return err
		}
		step, known := where[r.AttemptID]
		if !known {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindAttempt, ID: r.AttemptID.String()})
		}
		if _, err := t.lockLeases(ctx, []uuid.UUID{r.AttemptID}, true); err != nil {
			return err
		}
		deleted, err := t.deleteLeases(ctx, dbsqlc.DeleteLeasesParams{AttemptIds: []uuid.UUID{r.AttemptID}, LeaseVersions: []int64{r.LeaseVersion}})
		if err != nil {
			return err
		}
		if !deleted[r.AttemptID] {
			done, err = t.revokedBefore(ctx, r)
			return err
		}
		done, err = g.revoke(ctx, step, r.Reason)
		return err
	})
	return done, err
}

func (g *gate) revoke(ctx context.Context, step uuid.UUID, reason string) (scheduler.Revoked, error) {
	at, err := g.t.q.Now(ctx)
	if err != nil {
		return scheduler.Revoked{}, err
	}
	now, e := at.Time.UTC(), g.of(step)
	if err := e.RevokeLease(now, step, reason, rand.Float64()); err != nil {
		return scheduler.Revoked{}, fmt.Errorf("revoke lease of step %s: %w", step, err)
	}
	if err := g.finish(ctx, now); err != nil {
		return scheduler.Revoked{}, err
	}
	return scheduler.Revoked{StepState: e.Step(step).Data().State, ExecutionState: e.Data().State, NextDue: e.NextDue(step)}, nil
}

// revokedBefore answers a revocation of a lease that is not there: OK again if this very lease
// was revoked, else why it is not held any more, as to its worker.
func (t *txn) revokedBefore(ctx context.Context, r scheduler.Revocation) (scheduler.Revoked, error) {
	late, err := t.late(ctx, []uuid.UUID{r.AttemptID})
	if err != nil {
		return scheduler.Revoked{}, err
	}
	l := late[r.AttemptID]
	l.HeldVersion = r.LeaseVersion
	if l.HeldVersion != l.Attempt.LeaseVersion || l.Attempt.Reason != task.EndRevoked {
		return scheduler.Revoked{}, own(l.refusal())
	}
	t.vouch()
	return scheduler.Revoked{Replayed: !t.again, StepState: l.stepState, ExecutionState: l.executionState, NextDue: l.nextDue}, nil
}

// Terminate ends an execution CANCELED, under its lock: the leases of its live attempts go
// first. One that was CANCELED before stays as it is.
func (s *Store) Terminate(ctx context.Context, execution uuid.UUID, reason string) (*scheduler.ExecutionView, error) {
	err := s.tx(ctx, "terminate", func(ctx context.Context, t *txn) error {
		g, err := t.lock(ctx, []uuid.UUID{execution}, true)
		if err != nil {
			return err
		}
		e := g.execs[execution]
		if e == nil {
			return own(&scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: execution.String()})
		}
		if e.Data().State == task.ExecutionCanceled {
			t.vouch()
			return nil
		}
		return g.terminate(ctx, e, reason)
	})
	if err != nil {
		return nil, err
	}
	view := s.viewOf(ctx, execution)
	return view.Value, view.Err
}

func (g *gate) terminate(ctx context.Context, e *task.Execution, reason string) error {
	id := e.Data().ID
	if err := g.readOpen(ctx, []uuid.UUID{id}); err != nil {
		return err
	}
	if err := g.t.deleteLiveLeases(ctx, e); err != nil {
		return err
	}
	now, err := g.t.q.Now(ctx)
	if err != nil {
		return err
	}
	err = e.Terminate(now.Time.UTC(), reason)
	var refused *task.TransitionError
	if errors.As(err, &refused) {
		return own(scheduler.EndedError(id, refused))
	}
	if err != nil {
		return fmt.Errorf("terminate execution %s: %w", id, err)
	}
	return g.save(ctx)
}
