package task

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Request is a scheduling request: a step needs its next attempt, not before Due.
type Request struct {
	StepID      uuid.UUID
	Number      int
	Due         time.Time
	AnswerBytes int
}

// Changes is what has to be written, together and before anything is answered.
type Changes struct {
	Touched  bool
	Base     int64 // revision that it was decided on
	Stopped  bool  // the leases of the live attempts get the cancel's deadline
	Closed   bool
	Leased   []*Attempt
	Ended    []*Attempt
	Steps    []*Step
	Requests []Request
	Dropped  []uuid.UUID // steps whose request is no longer wanted
	Timers   []Timer
	Entries  []Entry
	Events   []Event
}

// TakeChanges hands out what has to be written.
// Events are only those of the selected types, and numbered.
func (e *Execution) TakeChanges(selected func(EventType) bool) Changes {
	c := e.changes
	e.changes = Changes{}
	for _, s := range c.Steps {
		s.listed = false
	}
	if !c.Touched {
		return c
	}
	c.Base, e.base = e.base, e.d.Revision
	kept := c.Events[:0]
	for _, ev := range c.Events {
		if !selected(ev.Type) {
			continue
		}
		e.d.Sequence++
		ev.Sequence = e.d.Sequence
		kept = append(kept, ev)
	}
	c.Events = kept
	return c
}

func (e *Execution) touch() { e.changes.Touched = true }

func (e *Execution) nextEntry() int64 {
	e.d.Revision++
	return e.d.Revision
}

func (e *Execution) entry(en Entry) {
	en.Sequence = e.nextEntry()
	e.touch()
	e.changes.Entries = append(e.changes.Entries, en)
}

func (e *Execution) milestone(what string) string {
	return fmt.Sprintf("r%d/execution/%s", e.d.Round, what)
}

// Milestones that are looked for by their names.
const (
	milestoneCancel    = "cancel_requested"
	milestoneTerminate = "terminate_requested"
)

func stepMilestone(round int, s *Step) string {
	return fmt.Sprintf("r%d/step/%s/%s", round, s.d.Name, s.d.State)
}

func (e *Execution) stepEntry(now time.Time, s *Step) {
	en := Entry{
		Milestone: stepMilestone(e.d.Round, s),
		Stage:     StageExecution, Component: "scheduler", StepName: s.d.Name, At: now,
		Title: "Step " + string(s.d.State),
	}
	if s.d.StoppedBecause != "" {
		en.Details = map[string]string{"retry_stopped_because": s.d.StoppedBecause}
	}
	e.entry(en)
}

func (e *Execution) dirtyStep(s *Step) {
	if !s.listed {
		s.listed = true
		e.changes.Steps = append(e.changes.Steps, s)
	}
}

// request asks for the next attempt of a READY step, with the timers over its wait.
func (e *Execution) request(s *Step, due time.Time) {
	e.dirtyStep(s)
	e.touch()
	s.due = &due
	e.changes.Requests = append(e.changes.Requests, Request{
		StepID: s.d.ID, Number: s.d.AttemptsEnded + 1, Due: due, AnswerBytes: s.answerBytes(),
	})
	id := s.d.ID
	if s.d.ScheduleToStart > 0 {
		e.changes.Timers = append(e.changes.Timers, Timer{TimerScheduleToStart, &id, due.Add(s.d.ScheduleToStart)})
	}
	if at := s.closeDeadline(); at != nil {
		e.changes.Timers = append(e.changes.Timers, Timer{TimerScheduleToClose, &id, *at})
	}
}

// dropRequest takes the request of a READY step back. One that was asked for in the same change
// is not there yet, and is never written.
func (e *Execution) dropRequest(s *Step) {
	if s.d.State != StepReady {
		return
	}
	e.changes.Requests = slices.DeleteFunc(e.changes.Requests, func(r Request) bool { return r.StepID == s.d.ID })
	e.changes.Dropped = append(e.changes.Dropped, s.d.ID)
}

func (e *Execution) event(t EventType, now time.Time, s *Step, a *Attempt) {
	ev := Event{
		Type: t, At: now, ExecutionID: e.d.ID, ExecutionName: e.d.Name, Namespace: e.d.Namespace, Round: e.d.Round,
	}
	var f *Failure
	if s != nil {
		id := s.d.ID
		ev.StepID, ev.StepName, ev.Reason = &id, s.d.Name, s.d.StoppedBecause
		if s.d.State != StepSucceeded {
			f = s.d.Failure
		}
	} else if e.d.State.Terminal() {
		f, ev.Reason = e.d.Failure, e.d.CancelReason
	}
	if a != nil {
		id, worker := a.d.ID, a.d.WorkerID
		ev.AttemptID, ev.WorkerID = &id, &worker
		ev.AttemptNumber, ev.LeaseVersion = a.d.Number, a.d.LeaseVersion
		ev.Reason, ev.NextAttempt, f = a.d.Reason, a.d.NextDue, a.d.Failure
	}
	if f != nil {
		ev.FailureType, ev.Failure = f.Type, f.Message
	}
	e.changes.Events = append(e.changes.Events, ev)
}

// Steps lists the steps that were read in the order of their declaration, so that what
// is written does not depend on chance.
func (e *Execution) Steps() []*Step {
	list := make([]*Step, 0, len(e.steps))
	for _, s := range e.steps {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *Step) int { return cmp.Compare(a.d.Ordinal, b.d.Ordinal) })
	return list
}
