package memstore

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// GetExecution reads an execution as committed.
func (s *Store) GetExecution(_ context.Context, q scheduler.ExecutionQuery) (view *scheduler.ExecutionView, more bool, err error) {
	s.read(func(t *txn) { view, more, err = t.getExecution(q) })
	return view, more, err
}

func (t *txn) getExecution(q scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
	id, name := q.ID, q.ID.String()
	if id == uuid.Nil {
		id, name = t.keys[keyOf{q.Namespace, q.IdempotencyKey}], q.IdempotencyKey
	}
	row, there := t.executions[id]
	if !there {
		return nil, false, &scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: name}
	}
	view := t.executionView(&row)
	if q.Brief {
		view.Failure = nil
	}
	if q.StepLimit == 0 {
		return view, false, nil
	}
	view.Steps = []scheduler.StepView{}
	for _, id := range row.steps {
		s := t.steps[id]
		if s.Ordinal <= q.AfterOrdinal || len(q.StepNames) > 0 && !slices.Contains(q.StepNames, s.Name) {
			continue
		}
		if len(view.Steps) == q.StepLimit {
			return view, true, nil
		}
		view.Steps = append(view.Steps, t.stepView(&row, s, q))
	}
	return view, false, nil
}

func (t *txn) executionView(row *execution) *scheduler.ExecutionView {
	return &scheduler.ExecutionView{
		ExecutionData: row.ExecutionData, IdempotencyKey: row.key, Priority: row.priority, Labels: row.labels, Now: t.at,
	}
}

// attemptsPerStep is how many attempts of a step are read, the last ones.
const attemptsPerStep = 100

func (t *txn) stepView(row *execution, s step, q scheduler.ExecutionQuery) scheduler.StepView {
	v := scheduler.StepView{
		ID: s.ID, Ordinal: s.Ordinal, Name: s.Name, Capability: s.Capability, Node: s.Node, Priority: s.Priority,
		State: s.State, AttemptCount: s.AttemptsEnded, Counted: s.Counted, StoppedBecause: s.StoppedBecause,
		Failure: failureFor(q, s.Failure),
	}
	if r, there := t.requests[requestKey{s.ID, s.AttemptsEnded + 1}]; there {
		v.NextDue = &r.Due
	}
	for _, edge := range row.edges {
		if edge.Child == s.ID {
			v.DependsOn = append(v.DependsOn, t.steps[edge.Parent].Name)
		}
	}
	if q.Payloads {
		v.Input, v.Output = s.input, s.output
	}
	if t.live(s) != nil {
		v.State, v.AttemptCount, v.NextDue = task.StepRunning, len(s.attempts), nil
	}
	shown := s.attempts[max(len(s.attempts)-attemptsPerStep, 0):]
	switch {
	case q.Brief:
		return v
	case q.LastAttempt:
		shown = shown[max(len(shown)-1, 0):]
	}
	for _, id := range shown {
		v.Attempts = append(v.Attempts, t.attemptView(t.attempts[id], q))
	}
	return v
}

// failureFor is what a query shows of a failure.
func failureFor(q scheduler.ExecutionQuery, f *task.Failure) *task.Failure {
	if q.Brief || f == nil {
		return nil
	}
	if q.LastAttempt {
		short := *f
		short.Details = nil
		return &short
	}
	return f
}

func (t *txn) attemptView(a attempt, q scheduler.ExecutionQuery) scheduler.AttemptView {
	v := scheduler.AttemptView{
		ID: a.ID, Number: a.Number, Round: a.Round, State: a.State, Reason: a.Reason, WorkerID: a.WorkerID, WorkerName: a.WorkerName,
		Node: a.Node, LeaseVersion: a.LeaseVersion, LeasedAt: a.LeasedAt, EndedAt: a.EndedAt, Failure: failureFor(q, a.Failure),
		Progress: a.progress, ProgressMessage: a.message,
	}
	if l, live := t.leases[a.ID]; live {
		v.ExpiresAt = &l.expiresAt
	}
	return v
}

// Moved tells which executions are not at the revision that is known of them.
func (s *Store) Moved(_ context.Context, known []scheduler.Revision) (moved []scheduler.Revision, err error) {
	s.read(func(t *txn) {
		for _, k := range known {
			if at := t.executions[k.ID].Revision; at != k.Revision {
				moved = append(moved, scheduler.Revision{ID: k.ID, Revision: at})
			}
		}
	})
	return moved, nil
}

// Changes reads executions, each with its entries after a revision.
func (s *Store) Changes(_ context.Context, after []scheduler.Revision, limit int) (list []scheduler.Changes, err error) {
	s.read(func(t *txn) {
		for _, r := range after {
			row, there := t.executions[r.ID]
			if !there {
				continue
			}
			c := scheduler.Changes{Execution: t.executionView(&row)}
			for _, en := range t.timeline(&row, r.Revision, limit) {
				c.Entries = append(c.Entries, scheduler.ChangeView{EntryView: en, Step: t.stepNamed(&row, en.StepName)})
			}
			list = append(list, c)
		}
	})
	return list, nil
}

// stepNamed is a step as watches see it, or nil.
func (t *txn) stepNamed(row *execution, name string) *scheduler.StepView {
	for _, id := range row.steps {
		if s := t.steps[id]; s.Name == name {
			v := t.stepView(row, s, scheduler.ExecutionQuery{LastAttempt: true})
			v.DependsOn = nil
			return &v
		}
	}
	return nil
}
