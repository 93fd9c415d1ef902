package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Bounds of what is read for an explanation.
const (
	mostParentsNamed   = 100
	mostCapableWorkers = 10_000
)

// ExplainStep reads all that may hinder a step in one snapshot, and lets the domain explain it.
func (s *Store) ExplainStep(ctx context.Context, q scheduler.StepQuery) (scheduler.StepExplained, error) {
	var explained scheduler.StepExplained
	err := s.snapshot(ctx, "explain step", func(db *dbsqlc.Queries) error {
		l := &look{q: db, s: s}
		if err := l.read(ctx, q); err != nil {
			return err
		}
		if err := l.readFurther(ctx, l.f.Wants()); err != nil {
			return err
		}
		e := l.f.Execution
		explained = scheduler.StepExplained{
			Step: e.Step(l.f.StepID).Data(), Execution: e.Data(), Explanation: task.Explain(&l.f), At: l.f.Now,
		}
		return nil
	})
	return explained, err
}

// look is what is read of a step and around it.
type look struct {
	q   *dbsqlc.Queries
	s   *Store
	row *dbsqlc.StepsByIDRow
	f   task.Situation
}

func (l *look) read(ctx context.Context, q scheduler.StepQuery) error {
	at, err := l.q.Now(ctx)
	if err != nil {
		return err
	}
	l.f.Now = at.Time.UTC()
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return l.step(ctx, q) },
		l.request, l.lastAttempt, l.milestones, l.parents, l.pause, l.workers,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// step reads the step and its execution.
func (l *look) step(ctx context.Context, q scheduler.StepQuery) error {
	named := q.StepID.String()
	if q.StepID == uuid.Nil {
		named = q.Name
		id, err := l.q.StepOfName(ctx, dbsqlc.StepOfNameParams{ExecutionID: q.ExecutionID, Name: q.Name})
		if errors.Is(err, pgx.ErrNoRows) {
			return l.noStep(ctx, q)
		}
		if err != nil {
			return fmt.Errorf("find step: %w", err)
		}
		q.StepID = id
	}
	rows, err := l.q.StepsByID(ctx, []uuid.UUID{q.StepID})
	if err != nil {
		return fmt.Errorf("read step: %w", err)
	}
	if len(rows) == 0 {
		return own(&scheduler.NotFoundError{Kind: scheduler.KindStep, ID: named})
	}
	l.row = &rows[0]
	step, err := restoreStep(l.row)
	if err != nil {
		return err
	}
	execution, err := findExecution(ctx, l.q, scheduler.ExecutionQuery{ID: l.row.ExecutionID})
	if err != nil {
		return err
	}
	d, err := executionData(execution)
	if err != nil {
		return err
	}
	l.f.Execution, l.f.StepID = task.RestoreExecution(d), l.row.ID
	l.f.Execution.AddStep(step)
	return nil
}

// noStep tells an execution that is not there from a step that it does not have.
func (l *look) noStep(ctx context.Context, q scheduler.StepQuery) error {
	if _, err := findExecution(ctx, l.q, scheduler.ExecutionQuery{ID: q.ExecutionID}); err != nil {
		return err
	}
	return own(&scheduler.NotFoundError{Kind: scheduler.KindStep, ID: q.Name})
}

// open tells whether the step may wait for something.
func (l *look) open() bool {
	state := l.f.Execution.Step(l.f.StepID).Data().State
	return state == task.StepBlocked || state == task.StepReady
}

func (l *look) request(ctx context.Context) error {
	due, err := l.q.RequestOfStep(ctx, dbsqlc.RequestOfStepParams{StepID: l.f.StepID, AttemptNumber: l.row.AttemptsEnded + 1})
	if len(due) > 0 {
		l.f.Due = due[0].Time.UTC()
	}
	return wrap("read request", err)
}

func (l *look) lastAttempt(ctx context.Context) error {
	rows, err := l.q.ListAttempts(ctx, dbsqlc.ListAttemptsParams{StepIds: []uuid.UUID{l.f.StepID}, PerStep: 1})
	if err != nil || len(rows) == 0 {
		return wrap("read attempt", err)
	}
	r := &rows[0]
	l.f.Last = &task.AttemptData{
		ID: r.ID, StepID: r.StepID, Number: int(r.Number), Round: int(r.Round), State: task.AttemptState(r.State), Reason: r.Reason,
		LeasedAt: r.LeasedAt.Time.UTC(), EndedAt: fromInstant(r.EndedAt),
	}
	l.f.ExpiresAt = fromInstant(r.ExpiresAt)
	if l.f.Last.State == task.AttemptSucceeded {
		l.f.EndedAt = l.f.Last.EndedAt
	}
	return nil
}

// milestones looks when the execution was asked to stop, and when the step ended.
func (l *look) milestones(ctx context.Context) error {
	stop, end := l.f.Execution.Milestones(l.f.StepID)
	if len(stop)+len(end) == 0 {
		return nil
	}
	rows, err := l.q.MilestonesAt(ctx, dbsqlc.MilestonesAtParams{ExecutionID: l.row.ExecutionID, Milestones: append(append([]string{}, stop...), end...)})
	if err != nil {
		return fmt.Errorf("read milestones: %w", err)
	}
	at := make(map[string]*time.Time, len(rows))
	for _, r := range rows {
		at[r.Milestone] = fromInstant(r.At)
	}
	l.f.StoppedAt = first(at, stop)
	if ended := first(at, end); ended != nil {
		l.f.EndedAt = ended
	}
	return nil
}

func first(at map[string]*time.Time, milestones []string) *time.Time {
	for _, m := range milestones {
		if at[m] != nil {
			return at[m]
		}
	}
	return nil
}

func (l *look) parents(ctx context.Context) error {
	if l.f.Execution.Step(l.f.StepID).Data().State != task.StepBlocked {
		return nil
	}
	rows, err := l.q.UnfinishedParents(ctx, dbsqlc.UnfinishedParentsParams{StepID: l.f.StepID, Most: mostParentsNamed})
	for _, r := range rows {
		state := task.StepState(r.State)
		if r.Running && state == task.StepReady { // as it is stored
			state = task.StepRunning
		}
		l.f.Parents = append(l.f.Parents, task.Parent{ID: r.ID, Name: r.Name, State: state})
	}
	return wrap("read parents", err)
}

func (l *look) pause(ctx context.Context) error {
	if !l.open() {
		return nil
	}
	row, err := l.q.PauseOfCapability(ctx, l.row.CapabilityID)
	l.f.Pause = pauseOf(row)
	return wrap("read capability", err)
}

func (l *look) workers(ctx context.Context) error {
	if !l.open() {
		return nil
	}
	rows, err := l.q.CapableWorkers(ctx, dbsqlc.CapableWorkersParams{
		Namespace: l.f.Execution.Data().Namespace, Capability: l.row.Capability, Most: mostCapableWorkers,
	})
	for _, r := range rows {
		l.f.Workers = append(l.f.Workers, task.Candidate{
			ID: r.ID, Node: r.Node, LastSeen: r.LastSeenAt.Time.UTC(),
			Standing: task.Standing{Present: l.s.seen(l.f.Now, r.LastSeenAt.Time), Drained: r.Drained, Slots: int(r.Slots), Live: int(r.Live)},
		})
	}
	return wrap("read workers", err)
}

// readFurther reads what only this situation needs.
func (l *look) readFurther(ctx context.Context, w task.Wants) error {
	if len(w.DrainsOf) > 0 {
		rows, err := l.q.DrainsOfWorkers(ctx, w.DrainsOf)
		if err != nil {
			return fmt.Errorf("read drains: %w", err)
		}
		l.f.Drains = map[uuid.UUID]task.Notice{}
		for _, r := range rows {
			if _, known := l.f.Drains[r.WorkerID]; !known { // the oldest comes first
				l.f.Drains[r.WorkerID] = task.Notice{At: r.CreatedAt.Time.UTC(), Reason: r.Reason}
			}
		}
	}
	if len(w.AheadOf) == 0 {
		return nil
	}
	due := l.f.Due
	if due.IsZero() {
		due = l.f.Now
	}
	n, err := l.q.CountAhead(ctx, dbsqlc.CountAheadParams{
		WorkerIds: w.AheadOf, Priority: l.row.Priority, Due: instant(due), StepID: l.f.StepID, Most: int32(w.AheadLimit),
	})
	l.f.Ahead, l.f.AheadLimit = int(n), w.AheadLimit
	return wrap("count what comes first", err)
}
