package task

import (
	"time"

	"github.com/google/uuid"
)

// IDs are made before the first try, so that an unknown commit can be found.
type IDs struct {
	Execution uuid.UUID
	Steps     []uuid.UUID
}

// NewExecution accepts a checked specification: the execution, its steps, and what is to be
// written of them. Roots are READY; the execution is QUEUED at once unless its start is later.
func NewExecution(spec *ExecutionSpec, ids IDs, now time.Time) (*Execution, []Edge) {
	due := now.Add(spec.StartDelay)
	if spec.StartAt != nil && spec.StartAt.After(now) {
		due = *spec.StartAt
	}
	e := RestoreExecution(ExecutionData{
		ID: ids.Execution, Namespace: spec.Namespace, Name: spec.Name, State: ExecutionCreated, Round: 1,
		FailFast: spec.FailFast, CreatedAt: now, DueAt: due, Timeout: spec.Timeout, CancelGrace: spec.CancelGrace,
		Revision: 1, StepCount: len(spec.Steps), OpenSteps: len(spec.Steps),
	})
	e.touch()
	e.setDeadline(due)
	e.event(EventExecutionEnqueued, now, nil, nil)
	if due.After(now) {
		e.changes.Timers = append(e.changes.Timers, Timer{Kind: TimerStart, At: due})
	} else {
		e.d.State = ExecutionQueued
	}
	return e, e.addSteps(spec, ids, due)
}

func (e *Execution) setDeadline(from time.Time) {
	e.d.Deadline = nil
	if e.d.Timeout == 0 {
		return
	}
	at := from.Add(e.d.Timeout)
	e.d.Deadline = &at
	e.changes.Timers = append(e.changes.Timers, Timer{Kind: TimerDeadline, At: at})
}

func (e *Execution) addSteps(spec *ExecutionSpec, ids IDs, due time.Time) []Edge {
	index := make(map[string]int, len(spec.Steps))
	for i := range spec.Steps {
		index[spec.Steps[i].Name] = i
	}
	common := spec.commonBytes()
	var edges []Edge
	parents := make(map[int]bool)
	for i := range spec.Steps {
		for _, name := range spec.Steps[i].DependsOn {
			p := index[name]
			parents[p] = true
			edges = append(edges, Edge{Parent: ids.Steps[p], Child: ids.Steps[i]})
		}
	}
	for i := range spec.Steps {
		s := newStep(&spec.Steps[i], ids.Steps[i], i)
		s.d.InputBytes += common
		s.d.HasChildren = parents[i]
		e.steps[s.d.ID] = s
		e.dirtyStep(s)
		if s.d.WaitingParents == 0 {
			s.open(due)
			e.request(s, *s.d.OpenedAt)
		}
	}
	return edges
}

func newStep(spec *StepSpec, id uuid.UUID, ordinal int) *Step {
	return &Step{d: StepData{
		ID: id, Ordinal: ordinal, Name: spec.Name, Capability: spec.Capability, Node: spec.Node,
		Priority: spec.Priority, State: StepBlocked, Retry: spec.Retry,
		ScheduleToStart: spec.ScheduleToStart, StartToClose: spec.StartToClose,
		ScheduleToClose: spec.ScheduleToClose, StartDelay: spec.StartDelay,
		WaitingParents: len(spec.DependsOn), InputBytes: spec.Input.Size(),
	}}
}

// commonBytes is what travels with each lease of the execution, beside payloads.
func (s *ExecutionSpec) commonBytes() int {
	const names = 2 << 10 // ids, names and the encoding itself, at most
	n := names
	for _, m := range []map[string]string{s.Labels, s.TraceContext} {
		for k, v := range m {
			n += len(k) + len(v) + 8
		}
	}
	return n
}
