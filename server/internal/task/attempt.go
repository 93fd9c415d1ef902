package task

import (
	"time"

	"github.com/google/uuid"
)

// AttemptState is how an attempt stands or ended.
type AttemptState string

// The states of an attempt; all but AttemptLeased are final.
const (
	AttemptLeased    AttemptState = "LEASED"
	AttemptSucceeded AttemptState = "SUCCEEDED"
	AttemptFailed    AttemptState = "FAILED"
	AttemptTimedOut  AttemptState = "TIMED_OUT"
	AttemptLost      AttemptState = "LOST"
	AttemptReleased  AttemptState = "RELEASED"
	AttemptCanceled  AttemptState = "CANCELED"
)

// Counts tells whether an attempt that ended so counts against maximum_attempts: those
// that may have run.
func (s AttemptState) Counts() bool {
	switch s {
	case AttemptSucceeded, AttemptFailed, AttemptTimedOut, AttemptLost:
		return true
	default:
		return false
	}
}

// Reasons with which the service itself ends attempts.
const (
	EndLeaseExpired      = "lease_expired"
	EndSessionSuperseded = "session_superseded"
	EndDeregistered      = "worker_deregistered"
	EndRevoked           = "revoked"
	EndStartToClose      = "start_to_close_timeout"
	EndScheduleToClose   = "schedule_to_close_timeout"
	EndExecutionDeadline = "execution_deadline"
	EndCancelGrace       = "cancel_grace_over"
	EndUndelivered       = "undelivered"
)

// AttemptData is an attempt as stored.
type AttemptData struct {
	ID             uuid.UUID
	StepID         uuid.UUID
	Number         int
	Round          int
	State          AttemptState
	Reason         string
	WorkerID       uuid.UUID
	SessionID      uuid.UUID
	WorkerName     string
	Node           string
	LeaseVersion   int64
	LeasedAt       time.Time
	StartToCloseAt time.Time
	EndedAt        *time.Time
	NextDue        *time.Time // when the attempt after it is due
	Failure        *Failure
	Outcome        []byte // fingerprint of the report that ended it; none when the service ended it
	LeaseEntry     int64  // its numbers in the timeline
	EndEntry       int64

	CheckpointBytes int // of the last checkpoint that it gave; 0: none
}

// Attempt is one try of a step.
type Attempt struct{ d AttemptData }

// RestoreAttempt makes an attempt from what was stored.
func RestoreAttempt(d AttemptData) *Attempt { return &Attempt{d} }

// Data is what is to be stored.
func (a *Attempt) Data() AttemptData { return a.d }

// Outcome is how a worker says that an attempt ended.
type Outcome struct {
	State      AttemptState // SUCCEEDED, FAILED, RELEASED or CANCELED
	Output     *Payload
	Checkpoint *Payload
	Failure    *Failure
	Reason     string        // of a release
	NotBefore  time.Duration // of a release
}

// Succeed ends it by the worker's word.
func (a *Attempt) Succeed(now time.Time) error {
	return a.end(now, "succeed", AttemptSucceeded, "", nil)
}

// Fail ends it by the worker's word.
func (a *Attempt) Fail(now time.Time, f *Failure) error {
	return a.end(now, "fail", AttemptFailed, "", f)
}

// Release hands it back, undone.
func (a *Attempt) Release(now time.Time, reason string) error {
	return a.end(now, "release", AttemptReleased, reason, nil)
}

// Cancel ends it because its execution is being cancelled.
func (a *Attempt) Cancel(now time.Time, reason string) error {
	return a.end(now, "cancel", AttemptCanceled, reason, nil)
}

// Lose ends it without its worker's word.
func (a *Attempt) Lose(now time.Time, reason string) error {
	return a.end(now, "lose", AttemptLost, reason, &Failure{Type: "LEASE_LOST", Message: lostMessage(reason)})
}

// TimeOut ends it because a timeout or deadline has come.
func (a *Attempt) TimeOut(now time.Time, reason string) error {
	return a.end(now, "time out", AttemptTimedOut, reason, &Failure{Type: "TIMEOUT", Message: timeoutMessage(reason)})
}

func (a *Attempt) end(now time.Time, event string, to AttemptState, reason string, f *Failure) error {
	if a.d.State != AttemptLeased {
		return &TransitionError{Entity: "attempt", From: string(a.d.State), Event: event}
	}
	a.d.State, a.d.Reason, a.d.EndedAt, a.d.Failure = to, reason, &now, f
	return nil
}

func lostMessage(reason string) string {
	switch reason {
	case EndSessionSuperseded:
		return "the lease ran out after the worker had registered anew"
	case EndDeregistered:
		return "the worker was deregistered while it held the lease"
	case EndRevoked:
		return "the lease was revoked"
	default:
		return "the lease ran out without a word from the worker"
	}
}

func timeoutMessage(reason string) string {
	switch reason {
	case EndScheduleToClose:
		return "schedule_to_close_timeout of the step came while it ran"
	case EndExecutionDeadline:
		return "the execution's deadline came while it ran"
	default:
		return "start_to_close_timeout came while it ran"
	}
}
