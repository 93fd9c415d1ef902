package scheduler

import (
	"time"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Observer hears what a replica does, for its metrics. Its methods return at once, and are
// called from several goroutines.
type Observer interface {
	// Enqueued tells how a request for an execution was answered.
	Enqueued(how EnqueueAnswer)
	// LateRefused tells of a renewal or report that came too late.
	LateRefused(call LateCall, reason task.Reason)
	// Swept tells what the sweeper did, and how often.
	Swept(what SweepWork, n int)
	// Flushed tells how many calls a group commit wrote together.
	Flushed(loop Loop, calls int)
	// Looped tells that a loop got through a round without an error of the store.
	Looped(loop Loop)
}

// DispatchObserver hears of the dispatcher's rounds, as an Observer does.
type DispatchObserver interface {
	// Round tells what a round did.
	Round(r Round)
	// Leased tells how long a step was ready until it was leased, by the store's clock.
	Leased(waited time.Duration)
}

// EnqueueAnswer is how a request for an execution was answered.
type EnqueueAnswer string

// How requests for executions are answered.
const (
	EnqueueCreated  EnqueueAnswer = "created"
	EnqueueExisting EnqueueAnswer = "existing" // the key was used before, with the same content
	EnqueueConflict EnqueueAnswer = "conflict" // the key was used before, with other content
)

// LateCall is a call of a worker that may come too late.
type LateCall string

// The calls that may come too late.
const (
	LateRenewal LateCall = "renewal"
	LateReport  LateCall = "report"
)

// SweepWork is something that the sweeper does.
type SweepWork string

// What the sweeper does.
const (
	SweepLeases  SweepWork = "leases"  // leases that were over, ended
	SweepTimers  SweepWork = "timers"  // timers that fired
	SweepCredits SweepWork = "credits" // outages of the service, after which leases lasted anew
)

// Round is what one round of the dispatcher did.
type Round struct {
	Took    time.Duration
	Claimed int // requests
	Granted int // leases
	Left    int // placed, but another transaction held something of it
	Err     error
}

// Loop names a loop of a replica.
type Loop string

// The loops of this package.
const (
	LoopDispatcher Loop = "dispatcher"
	LoopSweeper    Loop = "sweeper"
	LoopPresence   Loop = "presence"
	LoopEnqueues   Loop = "enqueues" // the group commits
	LoopRenewals   Loop = "renewals"
	LoopReports    Loop = "reports"
	LoopCancels    Loop = "cancels"
	LoopWatches    Loop = "watches"
)

// The loops get through a round at least so often, whatever there is to do, while the store
// answers; one that has not is stuck.
const (
	dispatcherWithin  = 20 * time.Second // a look each second, and a round that may take 15 s
	presenceWithin    = 20 * time.Second
	groupCommitWithin = 20 * time.Second // a flush may take 15 s
	watchesWithin     = 20 * time.Second // a look may take 5 s
	sweeperWithin     = 25 * time.Second // beside the interval: both parts of a sweep, and tidying
)

// Loops are the loops of this replica, each with the time within which it gets through a round.
func (s *Scheduler) Loops() map[Loop]time.Duration {
	return map[Loop]time.Duration{
		LoopDispatcher: dispatcherWithin, LoopSweeper: s.sweepEvery + sweeperWithin, LoopPresence: presenceWithin,
		LoopEnqueues: groupCommitWithin, LoopRenewals: groupCommitWithin, LoopReports: groupCommitWithin, LoopCancels: groupCommitWithin,
		LoopWatches: watchesWithin,
	}
}

// ParkedPolls is how many polls wait for work.
func (s *Scheduler) ParkedPolls() int { return s.dispatcher.polls.count() }

// nobody is an observer where there is none.
type nobody struct{}

// Enqueued is not heard.
func (nobody) Enqueued(EnqueueAnswer) {}

// LateRefused is not heard.
func (nobody) LateRefused(LateCall, task.Reason) {}

// Swept is not heard.
func (nobody) Swept(SweepWork, int) {}

// Flushed is not heard.
func (nobody) Flushed(Loop, int) {}

// Looped is not heard.
func (nobody) Looped(Loop) {}

// Round is not heard.
func (nobody) Round(Round) {}

// Leased is not heard.
func (nobody) Leased(time.Duration) {}

// Purged is not heard.
func (nobody) Purged(PurgeKind, int) {}
