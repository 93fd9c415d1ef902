package task

import "time"

// Cause is what holds a step back, or else what it does.
type Cause string

// Every cause, the most fundamental first.
const (
	CauseTerminal       Cause = "TERMINAL"
	CauseCanceling      Cause = "EXECUTION_CANCELING"
	CauseRunning        Cause = "RUNNING"
	CauseParents        Cause = "WAITING_FOR_PARENTS"
	CausePaused         Cause = "CAPABILITY_PAUSED"
	CauseDueLater       Cause = "DUE_LATER"
	CauseNoWorker       Cause = "NO_CAPABLE_WORKER"
	CauseNodeAway       Cause = "NODE_UNAVAILABLE"
	CauseWorkersDrained Cause = "WORKERS_DRAINED"
	CauseWorkersFull    Cause = "WORKERS_FULL"
	CauseBehindOthers   Cause = "BEHIND_OTHERS"
)

// MaxAhead is up to how many steps that come first are told.
const MaxAhead = 1000

// DueKind is what a step waits for that is due later.
type DueKind string

// The kinds of waits.
const (
	DueStart   DueKind = "START"
	DueBackoff DueKind = "BACKOFF"
	DueRelease DueKind = "RELEASE"
)

// Finding is one thing that holds for a step.
type Finding struct {
	Cause   Cause
	Since   time.Time // since when, as far as is known; else since the step began to wait
	Message string
	Change  string // what would change it
	Given   string // the reason that an operator or the caller gave

	Parents     []Parent // some of them
	ParentCount int
	Due         time.Time
	DueKind     DueKind
	Ahead       int // at most MaxAhead
	AheadCapped bool
	Capable     int // live workers that offer the capability
	Free        int // free slots of those that can run it
	Attempt     *AttemptData
	ExpiresAt   time.Time
}

// Explanation is everything that holds for a step.
type Explanation struct {
	Findings []Finding // none: the next poll of a worker that can run it gets it
	Summary  string
}

// Explain lists all that holds for a step, the most fundamental first. A step for which nothing
// is found is leased by the next round of a dispatcher in which polls of all live workers that
// can run it are parked: even if all that come first take their slots, one is left. One that is
// BEHIND_OTHERS alone may be leased in that round, when those others go elsewhere; one for which
// anything else is found is not. (A round ends when nothing more can be granted.)
func Explain(f *Situation) Explanation {
	var x Explanation
	add := func(found *Finding) {
		if found != nil {
			x.Findings = append(x.Findings, *found)
		}
	}
	state := f.step().d.State
	switch {
	case state.Terminal():
		add(f.terminal())
	case !f.waits() && state != StepRunning:
		add(f.overdue())
	default:
		add(f.canceling())
		add(f.running())
	}
	if f.waits() {
		add(f.parents())
		add(f.paused())
		add(f.dueLater())
		c := f.crew()
		add(f.workers(c))
		if len(x.Findings) == 0 {
			add(f.behind(c))
		}
	}
	x.Summary = summary(f, x.Findings)
	return x
}

// workers is what keeps every worker from the step. That they are full matters only once it is due.
func (f *Situation) workers(c crew) *Finding {
	cause := c.cause()
	if cause == "" || cause == CauseWorkersFull && (f.step().d.State != StepReady || f.due().After(f.Now)) {
		return nil
	}
	found := &Finding{Cause: cause, Since: f.began(), Capable: c.capable()}
	switch cause {
	case CauseNoWorker:
		found.Since = later(found.Since, lastSeen(c.by[WorkerAbsent], ""))
	case CauseNodeAway:
		found.Since = later(found.Since, lastSeen(c.by[WorkerAbsent], f.step().d.Node))
	case CauseWorkersDrained:
		for _, w := range c.by[WorkerDrained] {
			if d := f.Drains[w.ID]; d.At.After(found.Since) || found.Given == "" {
				found.Since, found.Given = later(found.Since, d.At), d.Reason
			}
		}
	default:
	}
	f.wordWorkers(found, c)
	return found
}

// behind tells of those that come first, if they may take every free slot.
func (f *Situation) behind(c crew) *Finding {
	if f.Ahead < min(c.free, f.AheadLimit) {
		return nil
	}
	found := &Finding{
		Cause: CauseBehindOthers, Since: f.began(), Ahead: min(f.Ahead, MaxAhead),
		AheadCapped: f.Ahead > MaxAhead || f.Ahead == f.AheadLimit, Capable: c.capable(), Free: c.free,
	}
	f.wordBehind(found)
	return found
}
