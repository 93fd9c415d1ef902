package task

import (
	"time"

	"github.com/google/uuid"
)

// Candidate is a worker that offers what a step needs.
type Candidate struct {
	ID       uuid.UUID
	Node     string
	Standing Standing
	LastSeen time.Time
}

// Parent is a parent that has not succeeded.
type Parent struct {
	ID    uuid.UUID
	Name  string
	State StepState
}

// Notice is an operator's word about a capability or a worker.
type Notice struct {
	At     time.Time
	Reason string
}

// Situation is what is known of a step and of all that may hinder it, at one instant.
type Situation struct {
	Now       time.Time
	Execution *Execution // with the step
	StepID    uuid.UUID
	Due       time.Time    // of its scheduling request; zero: there is none
	StoppedAt *time.Time   // when its execution was asked to stop
	EndedAt   *time.Time   // when the step ended
	Last      *AttemptData // its last attempt; nil: none
	ExpiresAt *time.Time   // of its live attempt's lease
	Parents   []Parent     // that have not succeeded
	Pause     *Notice      // of its capability; nil: it is not paused
	Workers   []Candidate  // with a session, that offer its capability in its namespace

	// What only some situations need, as Wants tells.
	Drains     map[uuid.UUID]Notice // of workers, the first one that holds for each
	Ahead      int                  // requests that the dispatcher serves before this one's, counted
	AheadLimit int                  // up to here
}

// Wants is what further has to be read before Explain: it is dear, and seldom needed.
type Wants struct {
	DrainsOf   []uuid.UUID // these workers' drains
	AheadOf    []uuid.UUID // what comes first of all that these workers can run
	AheadLimit int         // how far it has to be counted
}

// crew is how the workers that offer a step's capability stand, by what hinders them.
type crew struct {
	by   map[Hindrance][]Candidate
	free int
}

// crew sorts the workers by the very rules by which a claim and a dispatch leave them out.
func (f *Situation) crew() crew {
	c := crew{by: map[Hindrance][]Candidate{}}
	pinned := f.step().d.Node
	for _, w := range f.Workers {
		h := w.Standing.Hinders()
		if h != WorkerAbsent && !MatchesNode(pinned, w.Node) {
			h = WorkerElsewhere
		}
		if h == NotHindered {
			c.free += w.Standing.Free()
		}
		c.by[h] = append(c.by[h], w)
	}
	return c
}

// capable is how many workers are there that offer the capability.
func (c crew) capable() int {
	return len(c.by[NotHindered]) + len(c.by[WorkerFull]) + len(c.by[WorkerDrained]) + len(c.by[WorkerElsewhere])
}

// cause is what the workers hold against a step, whatever is due or paused; empty if one could
// take it.
func (c crew) cause() Cause {
	switch {
	case len(c.by[NotHindered]) > 0:
		return ""
	case len(c.by[WorkerFull]) > 0:
		return CauseWorkersFull
	case len(c.by[WorkerDrained]) > 0:
		return CauseWorkersDrained
	case len(c.by[WorkerElsewhere]) > 0:
		return CauseNodeAway
	default:
		return CauseNoWorker
	}
}

// roundsBack bounds how many rounds are searched for the end of a step.
const roundsBack = 100

// Milestones are those of which one tells when the execution was asked to stop, and when the
// step ended without success.
func (e *Execution) Milestones(stepID uuid.UUID) (stop, end []string) {
	if e.d.Stopping {
		stop = []string{e.milestone(milestoneCancel), e.milestone(milestoneTerminate)}
	}
	if s := e.steps[stepID]; s != nil && s.d.State.Terminal() && s.d.State != StepSucceeded {
		for r := e.d.Round; r > max(e.d.Round-roundsBack, 0); r-- {
			end = append(end, stepMilestone(r, s))
		}
	}
	return stop, end
}

func (f *Situation) step() *Step { return f.Execution.steps[f.StepID] }

// waits tells whether a step waits, and is not about to be ended by a deadline.
func (f *Situation) waits() bool {
	s := f.step()
	return (s.d.State == StepReady || s.d.State == StepBlocked) && f.Execution.deadlineOver(s, f.Now) == nil
}

// next tells whether only workers can hinder a step: this is where a dispatcher has it.
func (f *Situation) next() bool {
	s := f.step()
	return f.waits() && f.Pause == nil && !f.due().After(f.Now) && f.Execution.Leasable(f.StepID, s.d.AttemptsEnded+1)
}

// due is when the next attempt of a READY step is due.
func (f *Situation) due() time.Time {
	if s := f.step(); f.Due.IsZero() && s.d.OpenedAt != nil {
		return *s.d.OpenedAt
	}
	return f.Due
}

// mostAhead bounds how far it is counted who comes first, whatever the number of free slots.
const mostAhead = 20_000

// Wants tells what has to be read further.
func (f *Situation) Wants() Wants {
	c := f.crew()
	if f.waits() && c.cause() == CauseWorkersDrained {
		return Wants{DrainsOf: idsOf(c.by[WorkerDrained])}
	}
	if f.next() && c.cause() == "" {
		return Wants{AheadOf: idsOf(c.by[NotHindered]), AheadLimit: min(max(c.free, MaxAhead), mostAhead)}
	}
	return Wants{}
}

func idsOf(list []Candidate) []uuid.UUID {
	ids := make([]uuid.UUID, len(list))
	for i, w := range list {
		ids[i] = w.ID
	}
	return ids
}

// began is when the step began to wait for what it waits for now: for its parents, its due time,
// or a worker.
func (f *Situation) began() time.Time {
	if f.step().d.State == StepBlocked {
		return f.roundBegan()
	}
	if due := f.due(); !due.After(f.Now) {
		return due
	}
	_, since := f.dueKind()
	return since
}

func (f *Situation) roundBegan() time.Time {
	if f.Execution.d.Round == 1 {
		return f.Execution.d.CreatedAt
	}
	return f.Execution.d.DueAt // when the round was opened
}

// dueKind is what a due time comes from, and when that began.
func (f *Situation) dueKind() (DueKind, time.Time) {
	d := f.step().d
	if a := f.Last; a != nil && a.Round == f.Execution.d.Round && a.EndedAt != nil {
		if a.State == AttemptReleased {
			return DueRelease, *a.EndedAt
		}
		return DueBackoff, *a.EndedAt
	}
	since := f.roundBegan()
	if d.OpenedAt != nil {
		if opened := d.OpenedAt.Add(-d.StartDelay); !opened.After(f.Now) {
			since = later(since, opened) // its last parent ended then
		}
	}
	return DueStart, since
}

func lastSeen(absent []Candidate, node string) time.Time {
	var at time.Time
	for _, w := range absent {
		if MatchesNode(node, w.Node) {
			at = later(at, w.LastSeen)
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
