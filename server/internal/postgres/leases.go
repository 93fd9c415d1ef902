package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// heldLeases are lease rows that a transaction has locked.
type heldLeases struct {
	versions map[uuid.UUID]int64 // by attempt
	busy     set                 // live, but another transaction holds them
	waited   bool                // for those that another held
}

// lockLeases locks the lease rows of attempts in order of id. Those that another transaction
// holds are left out, unless wait.
func (t *txn) lockLeases(ctx context.Context, attempts []uuid.UUID, wait bool) (heldLeases, error) {
	if wait {
		defer t.locking(time.Now())
	}
	held, err := lockLeases(ctx, t.q, attempts, wait)
	if err != nil {
		return held, err
	}
	return held, t.findBusy(ctx, attempts, &held)
}

func lockLeases(ctx context.Context, q *dbsqlc.Queries, attempts []uuid.UUID, wait bool) (heldLeases, error) {
	held := heldLeases{versions: make(map[uuid.UUID]int64, len(attempts)), waited: wait}
	if wait {
		rows, err := q.LockLeasesWaiting(ctx, attempts)
		for _, r := range rows {
			held.versions[r.AttemptID] = r.LeaseVersion
		}
		return held, wrap("lock leases", err)
	}
	rows, err := q.LockLeases(ctx, attempts)
	for _, r := range rows {
		held.versions[r.AttemptID] = r.LeaseVersion
	}
	return held, wrap("lock leases", err)
}

// findBusy looks, in a later statement, which of those that were not locked are live.
func (t *txn) findBusy(ctx context.Context, attempts []uuid.UUID, held *heldLeases) error {
	if held.waited || len(held.versions) == len(attempts) {
		return nil
	}
	live, err := t.q.LiveLeases(ctx, attempts)
	held.busy = set{}
	for _, id := range live {
		if _, locked := held.versions[id]; !locked {
			held.busy[id] = true
		}
	}
	return wrap("look for leases", err)
}

func (t *txn) deleteLeases(ctx context.Context, p dbsqlc.DeleteLeasesParams) (set, error) {
	if len(p.AttemptIds) == 0 {
		return set{}, nil
	}
	rows, err := t.q.DeleteLeases(ctx, p)
	deleted := make(set, len(rows))
	for _, r := range rows {
		deleted[r.AttemptID] = true
	}
	return deleted, wrap("delete leases", err)
}

// endLeases deletes leases that were locked with just these versions.
func endLeases(ctx context.Context, p dbsqlc.DeleteLeasesParams) []call {
	if len(p.AttemptIds) == 0 {
		return nil
	}
	return []call{func(q *dbsqlc.Queries) error {
		return wrap("end leases", stale(q.EndLeases(ctx, dbsqlc.EndLeasesParams(p))))
	}}
}

// lateCall is what is known for the answer to a late renewal or report.
type lateCall struct {
	task.Late
	stepName       string
	current        int64 // the step's latest lease version
	stepState      task.StepState
	executionState task.ExecutionState
	nextDue        *time.Time
}

// late reads what is known of attempts whose lease is not there, or not with that version.
func (t *txn) late(ctx context.Context, attempts []uuid.UUID) (map[uuid.UUID]lateCall, error) {
	if len(attempts) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	rows, err := t.q.LateAttempts(ctx, attempts)
	if err != nil {
		return nil, fmt.Errorf("read late attempts: %w", err)
	}
	calls := make(map[uuid.UUID]lateCall, len(rows))
	for i := range rows {
		calls[rows[i].ID] = newLateCall(&rows[i])
	}
	return calls, nil
}

func newLateCall(r *dbsqlc.LateAttemptsRow) lateCall {
	state := task.StepState(r.StepState)
	if task.AttemptState(r.State) == task.AttemptLeased {
		state = task.StepRunning
	}
	execution := task.ExecutionState(r.ExecutionState)
	return lateCall{
		Late: task.Late{
			Attempt: task.AttemptData{
				ID: r.ID, StepID: r.StepID, Number: int(r.Number), Round: int(r.Round), State: task.AttemptState(r.State),
				Reason: r.Reason, WorkerID: r.WorkerID, SessionID: r.SessionID, LeaseVersion: r.LeaseVersion, Outcome: r.Outcome,
			},
			LaterAttempt: r.Later, SessionCurrent: r.SessionCurrent, ExecutionClosed: execution.Terminal(),
		},
		stepName: r.StepName, current: r.CurrentVersion, stepState: state, executionState: execution, nextDue: fromInstant(r.NextDue),
	}
}

func (l lateCall) refusal() error {
	return scheduler.LateError(l.Late, l.current)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
