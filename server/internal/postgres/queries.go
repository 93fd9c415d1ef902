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

// GetExecution reads an execution as committed.
func (s *Store) GetExecution(ctx context.Context, q scheduler.ExecutionQuery) (view *scheduler.ExecutionView, more bool, err error) {
	err = s.snapshot(ctx, "get execution", func(db *dbsqlc.Queries) error {
		view, more, err = getExecution(ctx, db, q)
		return err
	})
	return view, more, err
}

func getExecution(ctx context.Context, q *dbsqlc.Queries, query scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
	row, err := findExecution(ctx, q, query)
	if err != nil {
		return nil, false, err
	}
	now, err := q.Now(ctx)
	if err != nil {
		return nil, false, err
	}
	view, err := executionView(row, now.Time.UTC())
	if err == nil && query.Brief {
		view.Failure = nil
	}
	if err != nil || query.StepLimit == 0 {
		return view, false, err
	}
	more, err := readStepViews(ctx, q, view, query)
	return view, more, err
}

func findExecution(ctx context.Context, q *dbsqlc.Queries, query scheduler.ExecutionQuery) (*dbsqlc.Execution, error) {
	var row dbsqlc.Execution
	var err error
	name := query.ID.String()
	if query.ID != uuid.Nil {
		row, err = q.GetExecution(ctx, query.ID)
	} else {
		name = query.IdempotencyKey
		row, err = q.GetExecutionByKey(ctx, dbsqlc.GetExecutionByKeyParams{Namespace: query.Namespace, IdempotencyKey: query.IdempotencyKey})
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, own(&scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: name})
	}
	if err != nil {
		return nil, fmt.Errorf("read execution: %w", err)
	}
	return &row, nil
}

func executionView(r *dbsqlc.Execution, now time.Time) (*scheduler.ExecutionView, error) {
	d, err := executionData(r)
	if err != nil {
		return nil, err
	}
	labels, err := fromJSONMap(r.Labels)
	if err != nil {
		return nil, err
	}
	return &scheduler.ExecutionView{
		ExecutionData: d, IdempotencyKey: r.IdempotencyKey.String, Priority: int(r.Priority), Labels: labels, Now: now,
	}, nil
}

// readStepViews reads a page of an execution's steps with all that belongs to them.
func readStepViews(ctx context.Context, q *dbsqlc.Queries, view *scheduler.ExecutionView, query scheduler.ExecutionQuery) (more bool, err error) {
	names := query.StepNames
	if names == nil {
		names = []string{}
	}
	rows, err := q.ListSteps(ctx, dbsqlc.ListStepsParams{
		ExecutionID: view.ID, After: int32(query.AfterOrdinal), Names: names, PageSize: int32(query.StepLimit + 1),
	})
	if err != nil {
		return false, fmt.Errorf("read steps: %w", err)
	}
	if more = len(rows) > query.StepLimit; more {
		rows = rows[:query.StepLimit]
	}
	at := make(map[uuid.UUID]*scheduler.StepView, len(rows))
	ids := make([]uuid.UUID, len(rows))
	view.Steps = make([]scheduler.StepView, len(rows))
	for i := range rows {
		if view.Steps[i], err = stepView(&rows[i]); err != nil {
			return false, err
		}
		ids[i], at[rows[i].ID] = rows[i].ID, &view.Steps[i]
		if query.Brief {
			view.Steps[i].Failure = nil
		}
		if query.LastAttempt {
			dropDetails(view.Steps[i].Failure)
		}
	}
	if err := readParents(ctx, q, ids, at); err != nil {
		return false, err
	}
	if err := readAttempts(ctx, q, ids, at, query); err != nil || !query.Payloads {
		return more, err
	}
	payloads, err := readPayloads(ctx, q, ids, roleInput, roleOutput)
	for id, s := range at {
		s.Input, s.Output = payloads[payloadKey{id, roleInput}], payloads[payloadKey{id, roleOutput}]
	}
	return more, err
}

func stepView(r *dbsqlc.ListStepsRow) (scheduler.StepView, error) {
	failure, err := fromJSON[task.Failure](r.Failure)
	return scheduler.StepView{
		ID: r.ID, Ordinal: int(r.Ordinal), Name: r.Name, Capability: r.Capability, Node: r.Node, Priority: int(r.Priority),
		State: task.StepState(r.State), AttemptCount: int(r.AttemptsEnded), Counted: int(r.Counted),
		NextDue: fromInstant(r.NextDue), Failure: failure, StoppedBecause: r.StoppedBecause,
	}, err
}

func readParents(ctx context.Context, q *dbsqlc.Queries, ids []uuid.UUID, at map[uuid.UUID]*scheduler.StepView) error {
	rows, err := q.ListParents(ctx, ids)
	for _, r := range rows {
		at[r.ChildID].DependsOn = append(at[r.ChildID].DependsOn, r.Name)
	}
	return wrap("read parents", err)
}

// Attempts that are read at once: of many steps only the last few of each.
const (
	mostAttempts    = 5000
	attemptsPerStep = 100
	fewAttempts     = 5
)

func readAttempts(ctx context.Context, q *dbsqlc.Queries, ids []uuid.UUID, at map[uuid.UUID]*scheduler.StepView, query scheduler.ExecutionQuery) error {
	perStep := min(max(mostAttempts/max(len(ids), 1), fewAttempts), attemptsPerStep)
	if query.Brief || query.LastAttempt {
		perStep = 1 // it tells whether the step runs
	}
	rows, err := q.ListAttempts(ctx, dbsqlc.ListAttemptsParams{StepIds: ids, PerStep: int32(perStep)})
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	for i := range rows {
		r, s := &rows[i], at[rows[i].StepID]
		failure, err := fromJSON[task.Failure](r.Failure)
		if err != nil {
			return err
		}
		if query.LastAttempt {
			dropDetails(failure)
		}
		a := scheduler.AttemptView{
			ID: r.ID, Number: int(r.Number), Round: int(r.Round), State: task.AttemptState(r.State), Reason: r.Reason,
			WorkerID: r.WorkerID, WorkerName: r.WorkerName, Node: r.Node, LeaseVersion: r.LeaseVersion,
			LeasedAt: r.LeasedAt.Time.UTC(), ExpiresAt: fromInstant(r.ExpiresAt), EndedAt: fromInstant(r.EndedAt),
			Failure: failure, ProgressMessage: r.ProgressMessage,
		}
		if r.Progress.Valid {
			a.Progress = &r.Progress.Float64
		}
		if !query.Brief {
			s.Attempts = append(s.Attempts, a)
		}
		if a.State == task.AttemptLeased { // stored as READY with a live attempt
			s.State, s.AttemptCount, s.NextDue = task.StepRunning, a.Number, nil
		}
	}
	return nil
}

// ListTimeline reads a page of what happened.
func (s *Store) ListTimeline(ctx context.Context, execution uuid.UUID, after int64, limit int) ([]scheduler.EntryView, error) {
	var rows []dbsqlc.ListTimelineRow
	err := s.snapshot(ctx, "list timeline", func(q *dbsqlc.Queries) error {
		var err error
		rows, err = q.ListTimeline(ctx, dbsqlc.ListTimelineParams{Ids: []uuid.UUID{execution}, Afters: []int64{after}, PageSize: int32(limit)})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 && after == 0 { // every execution has a first entry
		return nil, &scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: execution.String()}
	}
	entries := make([]scheduler.EntryView, len(rows))
	for i := range rows {
		if entries[i], err = entryView(&rows[i]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

func entryView(r *dbsqlc.ListTimelineRow) (scheduler.EntryView, error) {
	details, err := fromJSONMap(r.Details)
	return scheduler.EntryView{Count: int(r.Count), Entry: task.Entry{
		Sequence: r.Sequence, Milestone: r.Milestone, Stage: task.Stage(r.Stage), Component: r.Component, Title: r.Title,
		StepName: r.StepName, AttemptNumber: int(r.AttemptNumber), LeaseVersion: r.LeaseVersion,
		WorkerID: maybeID(r.WorkerID), At: r.At.Time.UTC(), Details: details,
	}}, err
}

// StepInputs reads parents' outputs of a live attempt, as many as fit, one at least.
func (s *Store) StepInputs(ctx context.Context, q scheduler.InputsQuery) (scheduler.Inputs, error) {
	in := scheduler.Inputs{Outputs: map[string]*task.Payload{}, Next: -1}
	err := s.snapshot(ctx, "step inputs", func(db *dbsqlc.Queries) error {
		step, err := liveStep(ctx, &txn{q: db, s: s}, q)
		if err != nil {
			return err
		}
		last, next, err := inputsPage(ctx, db, step, q)
		if err != nil {
			return err
		}
		in.Next = next
		rows, err := db.ParentOutputsBetween(ctx, dbsqlc.ParentOutputsBetweenParams{StepID: step, After: int32(q.AfterOrdinal), Last: last})
		for _, r := range rows {
			in.Outputs[r.Name] = &task.Payload{JSON: r.IsJson, Body: r.Body, ContentType: r.ContentType}
		}
		return wrap("read parents' outputs", err)
	})
	return in, err
}

func liveStep(ctx context.Context, t *txn, q scheduler.InputsQuery) (uuid.UUID, error) {
	late, err := t.late(ctx, []uuid.UUID{q.AttemptID})
	if err != nil {
		return uuid.Nil, err
	}
	l, known := late[q.AttemptID]
	if !known {
		return uuid.Nil, own(&scheduler.NotFoundError{Kind: scheduler.KindAttempt, ID: q.AttemptID.String()})
	}
	l.HeldVersion = q.LeaseVersion
	if l.Attempt.State != task.AttemptLeased || l.Attempt.LeaseVersion != q.LeaseVersion {
		return uuid.Nil, own(l.refusal())
	}
	return l.Attempt.StepID, nil
}

// inputsPage chooses how far a page of parents' outputs goes; next is -1 when it is the last.
func inputsPage(ctx context.Context, q *dbsqlc.Queries, step uuid.UUID, query scheduler.InputsQuery) (last int32, next int, err error) {
	sizes, err := q.ParentOutputSizes(ctx, dbsqlc.ParentOutputSizesParams{StepID: step, After: int32(query.AfterOrdinal)})
	if err != nil {
		return 0, -1, fmt.Errorf("read sizes: %w", err)
	}
	const most = 1000
	last = int32(query.AfterOrdinal)
	bytes := 0
	for i, s := range sizes {
		bytes += int(s.Bytes) + len(s.Name)
		if i > 0 && (bytes > query.MaxBytes || i == most) {
			return last, int(last), nil
		}
		last = s.Ordinal
	}
	return last, -1, nil
}
