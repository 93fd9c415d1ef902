package task

import (
	"time"

	"github.com/google/uuid"
)

// StepState is where a step stands.
type StepState string

// The states of a step.
const (
	StepBlocked   StepState = "BLOCKED"
	StepReady     StepState = "READY"
	StepRunning   StepState = "RUNNING"
	StepSucceeded StepState = "SUCCEEDED"
	StepFailed    StepState = "FAILED"
	StepCanceled  StepState = "CANCELED"
	StepSkipped   StepState = "SKIPPED"
)

// Terminal tells whether the state is final within a round.
func (s StepState) Terminal() bool {
	switch s {
	case StepSucceeded, StepFailed, StepCanceled, StepSkipped:
		return true
	default:
		return false
	}
}

// Why a FAILED step is not tried again.
const (
	StoppedMaximumAttempts = "MAXIMUM_ATTEMPTS_REACHED"
	StoppedNonRetryable    = "NON_RETRYABLE_FAILURE"
	StoppedScheduleToStart = "SCHEDULE_TO_START_TIMEOUT"
	StoppedScheduleToClose = "SCHEDULE_TO_CLOSE_TIMEOUT"
	StoppedDeadline        = "EXECUTION_DEADLINE_EXCEEDED"
)

// From the how manieth in a row LOST and RELEASED attempts wait before the next one.
const (
	lostBeforeBackoff     = 3
	releasedBeforeBackoff = 10
)

// StepData is a step as stored.
type StepData struct {
	ID              uuid.UUID
	Ordinal         int
	Name            string
	Capability      string
	Node            string
	Priority        int
	State           StepState
	Retry           RetryPolicy
	ScheduleToStart time.Duration
	StartToClose    time.Duration
	ScheduleToClose time.Duration
	StartDelay      time.Duration

	HasChildren    bool
	WaitingParents int        // parents that have not succeeded
	OpenedAt       *time.Time // when it first was due in this round
	AttemptsEnded  int        // of all rounds: the next number is one more

	// Of this round.
	Counted       int // attempts that count against maximum_attempts
	Failures      int // FAILED and TIMED_OUT: they set the backoff
	LostInRow     int
	ReleasedInRow int

	Failure        *Failure
	StoppedBecause string

	// Sizes in bytes, so that an answer's size is known before dispatch.
	InputBytes      int // with all that travels with each lease
	ParentBytes     int
	CheckpointBytes int
	OutputBytes     int
}

// Step is a node of an execution's graph.
type Step struct {
	d       StepData
	attempt *Attempt   // live, while RUNNING
	due     *time.Time // of the next attempt, where it was decided just now
	listed  bool       // among the execution's changes
}

// RestoreStep makes a step from what was stored; live is its live attempt, if any.
func RestoreStep(d StepData, live *Attempt) *Step {
	if live != nil {
		d.State = StepRunning
	}
	return &Step{d: d, attempt: live}
}

// Data is what is to be stored.
func (s *Step) Data() StepData { return s.d }

// Live is its live attempt, or nil.
func (s *Step) Live() *Attempt { return s.attempt }

func (s *Step) refuse(event string) error {
	return &TransitionError{Entity: "step", From: string(s.d.State), Event: event}
}

// parentSucceeded counts a parent down; it reports whether the step became READY.
func (s *Step) parentSucceeded(now time.Time, outputBytes int) (ready bool, err error) {
	if s.d.State != StepBlocked {
		return false, s.refuse("parent succeeded")
	}
	s.d.WaitingParents--
	s.d.weighParent(outputBytes)
	if s.d.WaitingParents > 0 {
		return false, nil
	}
	s.open(now)
	return true, nil
}

// open makes it READY for the first time in a round.
func (s *Step) open(from time.Time) {
	due := from.Add(s.d.StartDelay)
	s.d.State, s.d.OpenedAt = StepReady, &due
}

// lease makes it RUNNING.
func (s *Step) lease(a *Attempt) error {
	if s.d.State != StepReady {
		return s.refuse("lease")
	}
	s.d.State, s.attempt = StepRunning, a
	return nil
}

// attemptSucceeded ends it well.
func (s *Step) attemptSucceeded(output *Payload) error {
	if s.d.State != StepRunning {
		return s.refuse("attempt succeeded")
	}
	s.close(StepSucceeded, "")
	if output != nil {
		s.d.OutputBytes = max(output.Size(), 1) // an empty one is one too
	}
	return nil
}

// attemptEnded decides what follows an attempt that did not succeed: READY with a due time,
// FAILED with the reason, or CANCELED when the execution is being stopped.
func (s *Step) attemptEnded(now time.Time, a AttemptData, notBefore time.Duration, stopping bool, chance float64) (due time.Time, err error) {
	if s.d.State != StepRunning {
		return due, s.refuse("attempt " + string(a.State))
	}
	delay := s.count(a, notBefore, chance)
	s.keepFailure(a)
	switch {
	case stopping:
		s.close(StepCanceled, "")
	case a.State == AttemptTimedOut && a.Reason == EndScheduleToClose:
		s.close(StepFailed, StoppedScheduleToClose)
	case a.State == AttemptTimedOut && a.Reason == EndExecutionDeadline:
		s.close(StepFailed, StoppedDeadline)
	case a.State == AttemptFailed && s.d.Retry.refuses(a.Failure):
		s.close(StepFailed, StoppedNonRetryable)
	case a.State.Counts() && s.d.Retry.Exhausted(s.d.Counted):
		s.close(StepFailed, StoppedMaximumAttempts)
	case s.closesBefore(now.Add(delay)):
		s.close(StepFailed, StoppedScheduleToClose)
	default:
		s.d.State = StepReady
		due = now.Add(delay)
	}
	return due, nil
}

// keepFailure remembers why the attempt ended. A deadline over the whole step does not hide
// the last real error: StoppedBecause tells of the deadline beside it.
func (s *Step) keepFailure(a AttemptData) {
	deadline := a.State == AttemptTimedOut && (a.Reason == EndExecutionDeadline || a.Reason == EndScheduleToClose)
	if a.Failure == nil || (deadline && s.d.Failure != nil) {
		return
	}
	s.d.Failure = a.Failure
}

// count books the ended attempt and returns how long the next one has to wait.
func (s *Step) count(a AttemptData, notBefore time.Duration, chance float64) time.Duration {
	s.attempt = nil
	s.d.AttemptsEnded = a.Number
	if a.State.Counts() {
		s.d.Counted++
	}
	switch a.State {
	case AttemptLost:
		s.d.LostInRow, s.d.ReleasedInRow = s.d.LostInRow+1, 0
		return s.backoffFrom(lostBeforeBackoff, s.d.LostInRow, chance)
	case AttemptReleased:
		s.d.ReleasedInRow, s.d.LostInRow = s.d.ReleasedInRow+1, 0
		return max(bounded(notBefore), s.backoffFrom(releasedBeforeBackoff, s.d.ReleasedInRow, chance))
	case AttemptFailed, AttemptTimedOut:
		s.d.Failures, s.d.LostInRow, s.d.ReleasedInRow = s.d.Failures+1, 0, 0
		if f := a.Failure; f != nil && f.NextRetryDelay != nil {
			return bounded(*f.NextRetryDelay)
		}
		return s.d.Retry.Backoff(s.d.Failures, chance)
	default:
		return 0
	}
}

func (s *Step) backoffFrom(threshold, inRow int, chance float64) time.Duration {
	if inRow < threshold {
		return 0
	}
	return s.d.Retry.Backoff(inRow-threshold+1, chance)
}

// closeDeadline is when schedule_to_close_timeout comes, or nil.
func (s *Step) closeDeadline() *time.Time {
	if s.d.ScheduleToClose == 0 || s.d.OpenedAt == nil {
		return nil
	}
	at := s.d.OpenedAt.Add(s.d.ScheduleToClose)
	return &at
}

func (s *Step) closesBefore(due time.Time) bool {
	at := s.closeDeadline()
	return at != nil && !due.Before(*at)
}

// timeOut fails it while it waits for a worker.
func (s *Step) timeOut(because string) error {
	if s.d.State != StepReady {
		return s.refuse("time out")
	}
	s.close(StepFailed, because)
	if s.d.Failure == nil {
		s.d.Failure = &Failure{Type: "TIMEOUT", Message: "no attempt was made before " + because}
	}
	return nil
}

// skip ends it because a parent did not succeed.
func (s *Step) skip() error {
	if s.d.State != StepBlocked {
		return s.refuse("skip")
	}
	s.close(StepSkipped, "")
	return nil
}

// cancel ends it while nothing of it is live.
func (s *Step) cancel() error {
	if s.d.State != StepBlocked && s.d.State != StepReady {
		return s.refuse("cancel")
	}
	s.close(StepCanceled, "")
	return nil
}

// reopen starts it anew in a further round.
func (s *Step) reopen(now time.Time, waitingParents int) error {
	if !s.d.State.Terminal() || s.d.State == StepSucceeded {
		return s.refuse("reopen")
	}
	d := &s.d
	d.Counted, d.Failures, d.LostInRow, d.ReleasedInRow = 0, 0, 0, 0
	d.StoppedBecause, d.OpenedAt, d.WaitingParents = "", nil, waitingParents
	d.State = StepBlocked
	if waitingParents == 0 {
		s.open(now)
	}
	return nil
}

func (s *Step) close(to StepState, because string) {
	s.d.State, s.d.StoppedBecause, s.attempt = to, because, nil
}

// MaxParentBytes is how many bytes of parents' outputs travels with a lease.
const MaxParentBytes = 1 << 20

// OmitsParents tells whether the parents' outputs are too large to travel with the lease.
func (s *Step) OmitsParents() bool { return s.d.ParentBytes > MaxParentBytes }

// outputBytes is what its output weighs in a child's lease, with its name.
func (s *Step) outputBytes() int {
	if s.d.OutputBytes == 0 {
		return 0
	}
	return s.d.OutputBytes + len(s.d.Name)
}

// weighParent adds a parent's output, up to where it would not travel anyway: beyond that the
// exact weight means nothing, and must not overflow.
func (d *StepData) weighParent(bytes int) {
	d.ParentBytes = min(d.ParentBytes+bytes, MaxParentBytes+1)
}

// answerBytes is what a lease of it weighs in an answer, its payloads at least.
func (s *Step) answerBytes() int {
	n := s.d.InputBytes + s.d.CheckpointBytes
	if !s.OmitsParents() {
		n += s.d.ParentBytes
	}
	if f := s.d.Failure; f != nil {
		n += len(f.Type) + len(f.Message) + f.Details.Size()
	}
	return n
}
