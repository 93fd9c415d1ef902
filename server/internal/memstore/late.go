package memstore

import (
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// lateCall is what is known for the answer to a late call.
type lateCall struct {
	task.Late
	stepName       string
	execution      uuid.UUID
	current        int64 // the step's latest lease version
	stepState      task.StepState
	executionState task.ExecutionState
	nextDue        *time.Time
}

// late looks at an attempt whose lease is not there, or not with the version that a call holds.
func (t *txn) late(id uuid.UUID, held int64) (l lateCall, known bool) {
	a, known := t.attempts[id]
	if !known {
		return l, false
	}
	s := t.steps[a.StepID]
	last := t.attempts[s.attempts[len(s.attempts)-1]]
	l = lateCall{
		stepName: s.Name, execution: s.execution, current: last.LeaseVersion, stepState: s.State,
		executionState: t.executions[s.execution].State,
	}
	l.Late = task.Late{
		Attempt: a.AttemptData, HeldVersion: held, LaterAttempt: last.Number > a.Number,
		SessionCurrent: t.workers[a.WorkerID].session == a.SessionID, ExecutionClosed: l.executionState.Terminal(),
	}
	if a.State == task.AttemptLeased {
		l.stepState = task.StepRunning
	}
	if r, there := t.requests[requestKey{s.ID, s.AttemptsEnded + 1}]; there {
		l.nextDue = &r.Due
	}
	return l, true
}

func (l lateCall) refusal() error { return scheduler.LateError(l.Late, l.current) }

// earliest is the earlier one; a nil is never.
func earliest(a time.Time, b *time.Time) time.Time {
	if b != nil && b.Before(a) {
		return *b
	}
	return a
}
