package scheduler

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// What stores answer when they refuse something: the words are the same, whichever store it is.

// SessionError is the answer to a session that is not its worker's: superseded, or unknown.
func SessionError(worker, session uuid.UUID, superseded bool) error {
	if superseded {
		return &RefusedError{
			Reason: task.ReasonSessionSuperseded, Subject: worker.String(),
			Message: "another process has registered under this worker's name",
		}
	}
	return &NotFoundError{Kind: KindSession, ID: session.String()}
}

// OtherSessionError is the answer to a renewal of a live lease that is not its session's.
func OtherSessionError(attempt uuid.UUID, version int64) error {
	return &RefusedError{
		Reason: task.ReasonSessionSuperseded, Subject: attempt.String(), HeldVersion: version, CurrentVersion: version,
		Message: "the lease belongs to another session, or to one that was superseded; it can still be reported on",
	}
}

// CancelNotRequestedError is the answer to a worker that reports canceled unasked.
func CancelNotRequestedError(attempt uuid.UUID, version int64) error {
	return &RefusedError{
		Reason: task.ReasonCancelNotRequested, Subject: attempt.String(), HeldVersion: version,
		CurrentVersion: version, Message: "canceled was reported, but no cancel was requested",
	}
}

// LateError is the answer to a call for a lease that is not held any more. current is the
// latest lease version of its step.
func LateError(l task.Late, current int64) error {
	return &RefusedError{
		Reason: l.Reason(), Subject: l.Attempt.ID.String(), HeldVersion: l.HeldVersion, CurrentVersion: current,
		Message: "the lease is not held any more: " + string(l.Reason()),
	}
}

// LeasesLiveError is the answer to a worker that wants to leave while it holds leases.
func LeasesLiveError(worker uuid.UUID, live int) error {
	return &RefusedError{
		Reason: ReasonLeasesLive, Subject: worker.String(),
		Message: fmt.Sprintf("the worker holds %d live leases", live),
	}
}

// EndedError is the answer to a call that comes after an execution's end.
func EndedError(execution uuid.UUID, refused *task.TransitionError) error {
	return &RefusedError{
		Reason: task.ReasonExecutionClosed, Subject: execution.String(), Message: "the execution has ended: " + refused.From,
	}
}

// NotRetryableError is the answer to a retry that the domain refused.
func NotRetryableError(execution uuid.UUID, refused *task.TransitionError) error {
	r := &RefusedError{
		Reason: task.ReasonNotRetryable, Subject: execution.String(),
		Message: "only an execution that FAILED or was CANCELED can be tried again; this one is " + refused.From,
	}
	if from := task.ExecutionState(refused.From); from == task.ExecutionFailed || from == task.ExecutionCanceled {
		r.Message = "nothing of it is left to be tried again: all its steps SUCCEEDED"
	}
	if refused.Entity == "step" {
		r.Reason = task.ReasonStepNotRetryable
		r.Message = "a named step SUCCEEDED, or has a parent that neither succeeded nor is opened with it"
	}
	return r
}
