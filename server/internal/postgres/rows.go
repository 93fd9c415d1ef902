package postgres

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/task"
)

func executionData(r *dbsqlc.Execution) (task.ExecutionData, error) {
	failure, err := fromJSON[task.Failure](r.Failure)
	if err != nil {
		return task.ExecutionData{}, fmt.Errorf("execution %s: %w", r.ID, err)
	}
	return task.ExecutionData{
		ID: r.ID, Namespace: r.Namespace, Name: r.Name, State: task.ExecutionState(r.State), Round: int(r.Round),
		FailFast: r.FailFast, Stopping: r.Stopping, CreatedAt: r.CreatedAt.Time.UTC(), DueAt: r.DueAt.Time.UTC(),
		StartedAt: fromInstant(r.StartedAt), EndedAt: fromInstant(r.EndedAt), Timeout: fromInterval(r.Timeout),
		CancelGrace: fromInterval(r.CancelGrace), Deadline: fromInstant(r.Deadline),
		CancelDeadline: fromInstant(r.CancelDeadline), CancelReason: r.CancelReason, Failure: failure,
		Revision: r.Revision, Sequence: r.Sequence, EndEntry: r.EndEntry,
		StepCount: int(r.StepCount), OpenSteps: int(r.OpenSteps), UnsuccessfulSteps: int(r.UnsuccessfulSteps),
		LiveAttempts: int(r.LiveAttempts),
	}, nil
}

func restoreStep(r *dbsqlc.StepsByIDRow) (*task.Step, error) {
	policy, err := fromRetryPolicy(r.RetryPolicy)
	if err != nil {
		return nil, fmt.Errorf("step %s: %w", r.ID, err)
	}
	failure, err := fromJSON[task.Failure](r.Failure)
	if err != nil {
		return nil, fmt.Errorf("step %s: %w", r.ID, err)
	}
	d := task.StepData{
		ID: r.ID, Ordinal: int(r.Ordinal), Name: r.Name, Capability: r.Capability, Node: r.Node, Priority: int(r.Priority),
		State: task.StepState(r.State), Retry: policy, ScheduleToStart: fromInterval(r.ScheduleToStart),
		StartToClose: fromInterval(r.StartToClose), ScheduleToClose: fromInterval(r.ScheduleToClose),
		StartDelay: fromInterval(r.StartDelay), HasChildren: r.HasChildren, WaitingParents: int(r.WaitingParents),
		OpenedAt: fromInstant(r.OpenedAt), AttemptsEnded: int(r.AttemptsEnded), Counted: int(r.Counted),
		Failures: int(r.Failures), LostInRow: int(r.LostInRow), ReleasedInRow: int(r.ReleasedInRow), Failure: failure,
		StoppedBecause: r.StoppedBecause, InputBytes: int(r.InputBytes), ParentBytes: int(r.ParentBytes),
		OutputBytes: int(r.OutputBytes), CheckpointBytes: int(r.CheckpointBytes),
	}
	return task.RestoreStep(d, liveAttempt(r)), nil
}

// liveAttempt is the attempt of the step's next number: it exists exactly while it is live.
func liveAttempt(r *dbsqlc.StepsByIDRow) *task.Attempt {
	if r.AttemptID == uuid.Nil {
		return nil
	}
	return task.RestoreAttempt(task.AttemptData{
		ID: r.AttemptID, StepID: r.ID, Number: int(r.Number), Round: int(r.Round),
		State: task.AttemptState(r.AttemptState), WorkerID: r.WorkerID, SessionID: r.SessionID,
		WorkerName: r.WorkerName, Node: r.AttemptNode, LeaseVersion: r.LeaseVersion,
		LeasedAt: r.LeasedAt.Time.UTC(), StartToCloseAt: r.StartToCloseAt.Time.UTC(), LeaseEntry: r.LeaseEntry,
		CheckpointBytes: int(r.AttemptCheckpointBytes),
	})
}

// storedState is how a step's state is stored: RUNNING stands in the attempt's row.
func storedState(s task.StepState) string {
	if s == task.StepRunning {
		return string(task.StepReady)
	}
	return string(s)
}

// set is a set of ids.
type set map[uuid.UUID]bool

func setOf(ids []uuid.UUID) set {
	s := make(set, len(ids))
	for _, id := range ids {
		s[id] = true
	}
	return s
}

// ids lists a set; its order is left to the statements that lock.
func (s set) ids() []uuid.UUID {
	list := make([]uuid.UUID, 0, len(s))
	for id := range s {
		list = append(list, id)
	}
	return list
}
