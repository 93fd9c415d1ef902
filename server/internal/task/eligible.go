package task

import "github.com/google/uuid"

// The rules of who may get what, each in one place: claim, placing and dispatch ask them before
// they grant anything, and Explain asks them why nothing was granted.

// Need is what a step asks of a worker.
type Need struct {
	Namespace  string
	Capability string
	Node       string // empty: any
}

// Reach is what a worker can take at all. It never changes while its session lasts.
type Reach struct {
	Namespace    string
	Node         string
	Capabilities map[string]bool
}

// Hindrance is what keeps a worker from taking a step.
type Hindrance int

// The hindrances, in the order in which they are looked for.
const (
	NotHindered     Hindrance = iota
	WorkerAbsent              // it has no session, or not the one that asks, or was not heard of for too long
	WorkerIncapable           // it does not offer the capability in the namespace
	WorkerElsewhere           // the step is pinned to another node
	WorkerDrained             // it takes no more
	WorkerFull                // all its slots are in use
)

// Hinders is what of its reach keeps a worker from a step.
func (r Reach) Hinders(n Need) Hindrance {
	switch {
	case n.Namespace != r.Namespace || !r.Capabilities[n.Capability]:
		return WorkerIncapable
	case !MatchesNode(n.Node, r.Node):
		return WorkerElsewhere
	default:
		return NotHindered
	}
}

// MatchesNode tells whether a step pinned to a node (or to none) may run on a worker's node.
func MatchesNode(pinned, node string) bool { return pinned == "" || pinned == node }

// Standing is how a worker stands now.
type Standing struct {
	Present bool // it has a session: the one that asks, or one that was heard of lately
	Drained bool // by its own word, or an operator's
	Slots   int
	Live    int // leases that it holds
}

// Hinders is what keeps a worker from taking anything.
func (s Standing) Hinders() Hindrance {
	switch {
	case !s.Present:
		return WorkerAbsent
	case s.Drained:
		return WorkerDrained
	case s.Live >= s.Slots:
		return WorkerFull
	default:
		return NotHindered
	}
}

// Free is how many more leases a worker may get.
func (s Standing) Free() int {
	if s.Hinders() != NotHindered {
		return 0
	}
	return s.Slots - s.Live
}

// grants tells whether attempts of an execution in this state may be dispatched.
func (s ExecutionState) grants() bool {
	return s == ExecutionCreated || s == ExecutionQueued || s == ExecutionRunning
}

// Leasable tells whether a step waits for just this attempt and may be leased as soon as it
// is due.
func (e *Execution) Leasable(stepID uuid.UUID, number int) bool {
	s := e.steps[stepID]
	return s != nil && e.d.State.grants() && !e.d.Stopping && s.d.State == StepReady && number == s.d.AttemptsEnded+1
}
