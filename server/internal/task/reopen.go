package task

import (
	"time"

	"github.com/google/uuid"
)

// Retry is why a round is opened, and by which request: a repeat of it finds the round.
type Retry struct {
	RequestID string
	Reason    string
}

func (r Retry) details() map[string]string {
	details := reasonDetails(r.Reason)
	if r.RequestID != "" {
		if details == nil {
			details = map[string]string{}
		}
		details["request_id"] = r.RequestID
	}
	return details
}

// Reopen opens the next round of a FAILED or CANCELED execution. waiting has the steps to
// open anew, each with the number of its parents that have not succeeded; all must have been
// read, and one at least: a round without an open step would never end. ReopenSteps chooses
// them by the rule.
func (e *Execution) Reopen(now time.Time, r Retry, waiting map[uuid.UUID]int) error {
	if (e.d.State != ExecutionFailed && e.d.State != ExecutionCanceled) || len(waiting) == 0 {
		return e.refuse("reopen")
	}
	for id := range waiting {
		if _, err := e.read(id, "reopen"); err != nil {
			return err
		}
	}
	e.keepEndEntry()
	d := &e.d
	d.State, d.Round = ExecutionQueued, d.Round+1
	d.Stopping, d.CancelDeadline, d.CancelReason, d.Failure = false, nil, "", nil
	d.StartedAt, d.EndedAt, d.DueAt = nil, nil, now
	e.setDeadline(now)
	e.touch()
	e.entry(Entry{
		Milestone: e.milestone("reopened"), Stage: StageControl, Component: "producer",
		Title: "Retry requested", At: now, Details: r.details(),
	})
	e.event(EventExecutionReopened, now, nil, nil)
	for _, s := range e.Steps() {
		if parents, named := waiting[s.d.ID]; named {
			if err := e.reopenStep(now, s, parents); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Execution) reopenStep(now time.Time, s *Step, parents int) error {
	if err := s.reopen(now, parents); err != nil {
		return err
	}
	e.d.OpenSteps++
	e.d.UnsuccessfulSteps--
	e.dirtyStep(s)
	if s.d.State == StepReady {
		e.request(s, *s.d.OpenedAt)
	}
	return nil
}

// keepEndEntry writes down the end of the round that is over: it was derived from the row.
func (e *Execution) keepEndEntry() {
	details := map[string]string{}
	if f := e.d.Failure; f != nil {
		details["failure_type"], details["failure_message"] = f.Type, f.Message
	}
	if e.d.CancelReason != "" {
		details["cancel_reason"] = e.d.CancelReason
	}
	e.changes.Entries = append(e.changes.Entries, Entry{
		Sequence: e.d.EndEntry, Milestone: e.milestone("ended"), Stage: StageExecution, Component: "scheduler",
		Title: "Execution " + string(e.d.State), At: *e.d.EndedAt, Details: details,
	})
	e.d.EndEntry = 0
}

// ReopenSteps opens the next round with the named steps, by default all that FAILED or were
// CANCELED, and with those of their SKIPPED or CANCELED descendants whose parents all are
// SUCCEEDED or opened too. All steps must have been read; edges are all of the graph. A named
// step is refused when it succeeded, or would wait for a parent that stays as it ended.
func (e *Execution) ReopenSteps(now time.Time, r Retry, named []uuid.UUID, edges []Edge) error {
	if e.d.State != ExecutionFailed && e.d.State != ExecutionCanceled {
		return e.refuse("reopen")
	}
	if len(named) == 0 {
		for _, s := range e.Steps() {
			if s.d.State == StepFailed || s.d.State == StepCanceled {
				named = append(named, s.d.ID)
			}
		}
	}
	opened, err := e.chooseReopened(named, edges)
	if err != nil {
		return err
	}
	return e.Reopen(now, r, e.weighParents(opened, edges))
}

// chooseReopened spreads from the named steps to their children, as far as the rule goes.
func (e *Execution) chooseReopened(named []uuid.UUID, edges []Edge) (map[uuid.UUID]bool, error) {
	children := map[uuid.UUID][]uuid.UUID{}
	barred := map[uuid.UUID]int{} // parents that neither succeeded nor are opened
	for _, edge := range edges {
		parent, err := e.read(edge.Parent, "reopen")
		if err != nil {
			return nil, err
		}
		if parent.d.State != StepSucceeded {
			children[edge.Parent] = append(children[edge.Parent], edge.Child)
			barred[edge.Child]++
		}
	}
	opened := map[uuid.UUID]bool{}
	next := append([]uuid.UUID(nil), named...)
	for len(next) > 0 {
		id := next[0]
		next = next[1:]
		if opened[id] {
			continue
		}
		opened[id] = true
		for _, child := range children[id] {
			if barred[child]--; barred[child] == 0 && e.follows(child) {
				next = append(next, child)
			}
		}
	}
	for _, id := range named {
		s, err := e.read(id, "reopen")
		if err != nil {
			return nil, err
		}
		if s.d.State == StepSucceeded || barred[id] > 0 {
			return nil, s.refuse("reopen")
		}
	}
	return opened, nil
}

// follows tells whether a step is opened with its parents. A FAILED one was tried in earnest,
// and is opened by name only.
func (e *Execution) follows(id uuid.UUID) bool {
	s := e.steps[id]
	return s != nil && (s.d.State == StepSkipped || s.d.State == StepCanceled)
}

// weighParents counts for each step how many of its parents it waits for, and anew what the
// others' outputs weigh: one that succeeded after the step had ended was not counted then.
func (e *Execution) weighParents(opened map[uuid.UUID]bool, edges []Edge) map[uuid.UUID]int {
	waiting := make(map[uuid.UUID]int, len(opened))
	for id := range opened {
		waiting[id] = 0
		e.steps[id].d.ParentBytes = 0
	}
	for _, edge := range edges {
		switch parent := e.steps[edge.Parent]; {
		case !opened[edge.Child]:
		case parent.d.State == StepSucceeded:
			e.steps[edge.Child].d.weighParent(parent.outputBytes())
		default:
			waiting[edge.Child]++
		}
	}
	return waiting
}
