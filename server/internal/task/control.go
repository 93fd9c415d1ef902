package task

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Cancel stops it: steps that wait are cancelled at once, live attempts may finish within
// the grace. All open steps must have been read. Repeats change nothing.
func (e *Execution) Cancel(now time.Time, reason string) error {
	switch e.d.State {
	case ExecutionCanceling, ExecutionCanceled:
		return nil
	case ExecutionSucceeded, ExecutionFailed:
		return e.refuse("cancel")
	default:
	}
	e.d.State, e.d.CancelReason = ExecutionCanceling, reason
	e.touch()
	e.entry(Entry{
		Milestone: e.milestone(milestoneCancel), Stage: StageControl, Component: "producer",
		Title: "Cancel requested", At: now, Details: reasonDetails(reason),
	})
	if !e.d.Stopping {
		e.stop(now)
	}
	if err := e.cancelUnleased(now); err != nil {
		return err
	}
	e.frontier = Frontier{}
	e.closeIfEnded(now)
	return nil
}

// Terminate ends it CANCELED at once; live attempts are LOST. All open steps must have been
// read, and the leases of the live ones deleted.
func (e *Execution) Terminate(now time.Time, reason string) error {
	if e.d.State.Terminal() {
		return e.refuse("terminate")
	}
	if e.d.State != ExecutionCanceling {
		e.d.State, e.d.CancelReason = ExecutionCanceling, reason
	}
	e.d.Stopping = true
	e.entry(Entry{
		Milestone: e.milestone(milestoneTerminate), Stage: StageControl, Component: "operator",
		Title: "Terminate requested", At: now, Details: reasonDetails(reason),
	})
	for _, s := range e.Steps() {
		if s.attempt == nil {
			continue
		}
		if err := e.LoseLease(now, s.d.ID, EndRevoked, 0); err != nil {
			return err
		}
	}
	if err := e.cancelUnleased(now); err != nil {
		return err
	}
	e.frontier = Frontier{}
	e.closeIfEnded(now)
	return nil
}

// RevokeLease ends a live attempt LOST by an operator's word. Its lease must have been deleted.
func (e *Execution) RevokeLease(now time.Time, stepID uuid.UUID, reason string, chance float64) error {
	s, a, err := e.live(stepID, "revoke lease")
	if err != nil {
		return err
	}
	worker := a.d.WorkerID
	e.entry(Entry{
		Milestone: fmt.Sprintf("r%d/step/%s/attempt/%d/revoked", a.d.Round, s.d.Name, a.d.Number), Stage: StageControl,
		Component: "operator", Title: "Lease revoked", StepName: s.d.Name, AttemptNumber: a.d.Number,
		LeaseVersion: a.d.LeaseVersion, WorkerID: &worker, At: now, Details: reasonDetails(reason),
	})
	return e.LoseLease(now, stepID, EndRevoked, chance)
}

// ExceedDeadline ends it because its deadline has come: live attempts TIMED_OUT, their steps
// and the waiting ones FAILED, blocked ones SKIPPED, the execution FAILED; while CANCELING it
// ends CANCELED instead. All open steps must have been read, and the leases of the live ones
// deleted.
func (e *Execution) ExceedDeadline(now time.Time) error {
	if e.d.State.Terminal() || !reached(e.d.Deadline, now) {
		return e.refuse("exceed deadline")
	}
	e.beginDeadline()
	for _, s := range e.Steps() {
		if err := e.deadlineEndsStep(now, s); err != nil {
			return err
		}
	}
	e.frontier = Frontier{}
	e.closeIfEnded(now)
	return nil
}

// beginDeadline says why the execution ends. An earlier failure stays its failure.
func (e *Execution) beginDeadline() {
	e.ending = true
	if e.d.State != ExecutionCanceling && e.d.Failure == nil {
		e.d.Failure = &Failure{Type: StoppedDeadline, Message: "the execution's deadline came before its last step ended"}
	}
}

func (e *Execution) deadlineEndsStep(now time.Time, s *Step) error {
	switch s.d.State {
	case StepRunning:
		a := s.attempt
		if err := a.TimeOut(now, EndExecutionDeadline); err != nil {
			return err
		}
		if err := e.attemptEnded(now, s, a, &Outcome{}, 0); err != nil {
			return err
		}
	case StepReady:
		e.dropRequest(s)
		if err := s.timeOut(StoppedDeadline); err != nil {
			return err
		}
		e.stepClosed(now, s)
	case StepBlocked:
		if err := s.skip(); err != nil {
			return err
		}
		e.stepClosed(now, s)
	default:
	}
	return nil
}

// TimerKind is what a timer is for.
type TimerKind string

// The kinds of timers. A timer is a hint: when it fires, the rule is looked at anew.
const (
	TimerStart           TimerKind = "START"
	TimerDeadline        TimerKind = "DEADLINE"
	TimerScheduleToStart TimerKind = "SCHEDULE_TO_START"
	TimerScheduleToClose TimerKind = "SCHEDULE_TO_CLOSE"
)

// Timer says when a rule of time has to be looked at.
type Timer struct {
	Kind   TimerKind
	StepID *uuid.UUID // of step timers
	At     time.Time
}

// FireStepTimer fails a step that has waited too long. due is when its attempt became due.
// A timer that no longer applies changes nothing.
func (e *Execution) FireStepTimer(now time.Time, kind TimerKind, stepID uuid.UUID, due time.Time) error {
	s, err := e.read(stepID, "time out")
	if err != nil {
		return err
	}
	if e.d.State.Terminal() || s.d.State != StepReady {
		return nil
	}
	var because string
	switch kind {
	case TimerScheduleToClose:
		if s.closesBefore(now) {
			because = StoppedScheduleToClose
		}
	case TimerScheduleToStart:
		if s.d.ScheduleToStart > 0 && !now.Before(due.Add(s.d.ScheduleToStart)) {
			because = StoppedScheduleToStart
		}
	}
	if because == "" {
		return nil
	}
	e.dropRequest(s)
	if err := s.timeOut(because); err != nil {
		return err
	}
	e.stepClosed(now, s)
	return nil
}

func reasonDetails(reason string) map[string]string {
	if reason == "" {
		return nil
	}
	return map[string]string{"reason": reason}
}
