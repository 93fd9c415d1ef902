package task

import (
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Frontier names what of the graph has to be read before Settle can decide.
type Frontier struct {
	ChildrenOf    []uuid.UUID // steps that succeeded
	DescendantsOf []uuid.UUID // steps that failed for good
	AllOpen       bool        // every step that is not terminal
}

// Empty tells whether nothing has to be read.
func (f Frontier) Empty() bool {
	return len(f.ChildrenOf) == 0 && len(f.DescendantsOf) == 0 && !f.AllOpen
}

// Frontier is what has to be read, and added by AddStep, before Settle.
func (e *Execution) Frontier() Frontier { return e.frontier }

// Edge is a dependency between two steps.
type Edge struct{ Parent, Child uuid.UUID }

// Settle draws the consequences within the graph: children of the steps that succeeded are
// unblocked (edges lists them), descendants of the steps that failed are skipped, the rest is
// cancelled under fail_fast, and the execution is closed when its last step has ended.
func (e *Execution) Settle(now time.Time, edges []Edge, descendants []uuid.UUID) error {
	f := e.frontier
	e.frontier = Frontier{}
	if err := e.skipBlocked(now, descendants); err != nil {
		return err
	}
	if f.AllOpen {
		if err := e.cancelUnleased(now); err != nil {
			return err
		}
	}
	for _, edge := range edges {
		if err := e.unblock(now, edge); err != nil {
			return err
		}
	}
	e.closeIfEnded(now)
	return nil
}

func (e *Execution) skipBlocked(now time.Time, descendants []uuid.UUID) error {
	for _, id := range descendants {
		s, err := e.read(id, "skip")
		if err != nil {
			return err
		}
		if s.d.State != StepBlocked { // ended by another branch
			continue
		}
		if err := s.skip(); err != nil {
			return err
		}
		e.stepClosed(now, s)
	}
	return nil
}

// unblock tells a child that one of its parents succeeded.
func (e *Execution) unblock(now time.Time, edge Edge) error {
	const event = "parent succeeded"
	parent, err := e.read(edge.Parent, event)
	if err != nil {
		return err
	}
	child, err := e.read(edge.Child, event)
	if err != nil {
		return err
	}
	if child.d.State != StepBlocked { // skipped or cancelled by another branch
		return nil
	}
	ready, err := child.parentSucceeded(now, parent.outputBytes())
	if err != nil {
		return err
	}
	e.dirtyStep(child)
	if ready {
		e.request(child, *child.d.OpenedAt)
	}
	return nil
}

// stepClosed books a step that reached a terminal state, and what has to be read for it.
func (e *Execution) stepClosed(now time.Time, s *Step) {
	e.d.OpenSteps--
	e.dirtyStep(s)
	e.touch()
	if s.d.State != StepSucceeded {
		e.d.UnsuccessfulSteps++
		e.stepEntry(now, s)
	}
	e.event(s.d.State.event(), now, s, nil)
	if s.d.State == StepFailed {
		e.stepFailed(now, s)
	}
	if !s.d.HasChildren || e.d.Stopping {
		return
	}
	switch s.d.State {
	case StepSucceeded:
		e.frontier.ChildrenOf = append(e.frontier.ChildrenOf, s.d.ID)
	case StepFailed:
		e.frontier.DescendantsOf = append(e.frontier.DescendantsOf, s.d.ID)
	}
}

// stepFailed keeps the first failure as the execution's, and begins to stop under fail_fast.
func (e *Execution) stepFailed(now time.Time, s *Step) {
	if e.d.Failure == nil {
		e.d.Failure = &Failure{Type: "STEP_FAILED", Message: fmt.Sprintf("step %q: %s", s.d.Name, s.d.StoppedBecause)}
		if f := s.d.Failure; f != nil {
			e.d.Failure.Message = CleanText(fmt.Sprintf("step %q: %s: %s: %s", s.d.Name, s.d.StoppedBecause, f.Type, f.Message), MaxFailureMessage)
		}
	}
	if e.d.FailFast && !e.d.Stopping && !e.ending && e.d.OpenSteps > 0 {
		if s.d.HasChildren { // they are skipped, not cancelled: read before stopping hides them
			e.frontier.DescendantsOf = append(e.frontier.DescendantsOf, s.d.ID)
		}
		e.frontier.AllOpen = true
		e.stop(now)
	}
}

// stop asks live attempts to end within the grace.
func (e *Execution) stop(now time.Time) {
	at := now.Add(e.d.CancelGrace)
	e.d.Stopping, e.d.CancelDeadline = true, &at
	e.changes.Stopped = true
}

// cancelUnleased cancels every step that waits, those in retries and delays included.
func (e *Execution) cancelUnleased(now time.Time) error {
	for _, s := range e.Steps() {
		if s.d.State != StepBlocked && s.d.State != StepReady {
			continue
		}
		e.dropRequest(s)
		if err := s.cancel(); err != nil {
			return err
		}
		e.stepClosed(now, s)
	}
	return nil
}

func (e *Execution) closeIfEnded(now time.Time) {
	if e.d.OpenSteps > 0 || e.d.State.Terminal() {
		return
	}
	switch {
	case e.d.State == ExecutionCanceling:
		e.close(now, ExecutionCanceled)
	case e.d.UnsuccessfulSteps > 0:
		if e.d.Failure == nil {
			e.d.Failure = &Failure{Type: "STEP_FAILED", Message: "steps that an earlier round left without success were not opened again"}
		}
		e.close(now, ExecutionFailed)
	default:
		e.close(now, ExecutionSucceeded)
	}
}

func (e *Execution) close(now time.Time, to ExecutionState) {
	e.d.State, e.d.EndedAt = to, &now
	e.d.EndEntry = e.nextEntry()
	e.touch()
	e.changes.Closed = true
	types := map[ExecutionState]EventType{
		ExecutionSucceeded: EventExecutionSucceeded,
		ExecutionFailed:    EventExecutionFailed,
		ExecutionCanceled:  EventExecutionCanceled,
	}
	e.event(types[to], now, nil, nil)
}
