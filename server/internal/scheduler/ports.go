package scheduler

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// NewExecution is an execution to accept, with ids made before the first try.
type NewExecution struct {
	Spec *task.ExecutionSpec
	IDs  task.IDs
	Hash []byte
}

// EnqueueStore accepts executions.
type EnqueueStore interface {
	// Enqueue accepts a batch in one transaction; each item has its own result. With
	// allOrNothing the first refusal is the error and nothing is stored. Unless wait, the
	// batch fails soon when an unfinished transaction holds a key of it.
	Enqueue(ctx context.Context, batch []NewExecution, allOrNothing, wait bool) ([]Result[Enqueued], error)
}

// LeaseStore keeps and ends attempts. An item whose rows another transaction holds is
// answered ErrBusy and changes nothing; with wait set the item's lock is waited for.
type LeaseStore interface {
	Renew(ctx context.Context, batch []Renewal, wait bool) ([]Result[Renewed], error)
	Report(ctx context.Context, batch []Report, wait bool) ([]Result[Reported], error)
}

// DispatchStore grants attempts.
type DispatchStore interface {
	// NextDue is how long until something is due, of each of the groups of which something
	// waits.
	NextDue(ctx context.Context, groups []Group) ([]DueGroup, error)
	// Claim counts the workers' free slots, then claims what polls with free slots can take.
	Claim(ctx context.Context, c ClaimCommand) (Claimed, error)
	// Free gives claimed requests back.
	Free(ctx context.Context, claim uuid.UUID, steps []uuid.UUID) error
	// Dispatch makes attempts and leases of assignments whose every condition still holds.
	Dispatch(ctx context.Context, d DispatchCommand) (Dispatched, error)
	// Contents reads what workers get with live leases.
	Contents(ctx context.Context, attempts []uuid.UUID) ([]LeaseView, error)
	// Fill adds the payloads to leases as a dispatch told them.
	Fill(ctx context.Context, leases []LeaseView) error
}

// DeliveryStore is what delivering grants needs.
type DeliveryStore interface {
	// Lookup tells how workers and sessions stand, and which live leases bear the polls'
	// request ids or whether those were answered before.
	Lookup(ctx context.Context, keys []PollKey) ([]PollState, error)
	// Replay raises the delivery of live leases and returns them.
	Replay(ctx context.Context, attempts []uuid.UUID) ([]LeaseView, error)
	// Return hands back grants that reached nobody.
	Return(ctx context.Context, grants []Undelivered) error
	// Touch writes signs of life, and tells the current session of each worker.
	Touch(ctx context.Context, workers []uuid.UUID) (map[uuid.UUID]WorkerState, error)
}

// SessionStore opens and ends workers' sessions.
type SessionStore interface {
	Register(ctx context.Context, r Registration, workerID, sessionID uuid.UUID) (Session, error)
	Drain(ctx context.Context, workerID, sessionID uuid.UUID) (liveLeases int, err error)
	Deregister(ctx context.Context, workerID, sessionID uuid.UUID, force bool) (endedLeases int, err error)
}

// ControlStore changes whole executions.
type ControlStore interface {
	// Cancel stops executions; each item has its own answer, as with LeaseStore.
	Cancel(ctx context.Context, batch []Cancellation, wait bool) ([]Result[*ExecutionView], error)
	// Retry opens the next round of an execution, or finds the one that the request opened.
	Retry(ctx context.Context, r Retry) (Retried, error)
}

// QueryStore reads.
type QueryStore interface {
	GetExecution(ctx context.Context, q ExecutionQuery) (view *ExecutionView, more bool, err error)
	ListExecutions(ctx context.Context, q ListQuery) (ExecutionPage, error)
	ListTimeline(ctx context.Context, execution uuid.UUID, after int64, limit int) ([]EntryView, error)
	StepInputs(ctx context.Context, q InputsQuery) (Inputs, error)
}

// SweepStore ends what is over.
type SweepStore interface {
	// BeginSweep takes the right to sweep, gives credit after an outage, and looks whether
	// there is anything to end.
	BeginSweep(ctx context.Context, interval time.Duration) (SweepStart, error)
	// ExpireLeases ends leases that are over, of at most a batch's attempts.
	ExpireLeases(ctx context.Context, b SweepBatch) (Swept, error)
	// FireTimers looks at rules of time whose timer is due, of at most a batch's executions.
	FireTimers(ctx context.Context, b SweepBatch) (Swept, error)
	// Tidy forgets what is too old to matter, some at a time.
	Tidy(ctx context.Context) error
}

// WatchStore is what watches read, as committed.
type WatchStore interface {
	// Moved tells which executions are not at the revision that is known of them, and at which
	// they are; 0 is one that is gone.
	Moved(ctx context.Context, known []Revision) ([]Revision, error)
	// Changes reads executions, each with its entries after a revision in order, in one snapshot
	// of all: at most limit entries of each. Those that are gone are left out. At most two calls
	// run at once.
	Changes(ctx context.Context, after []Revision, limit int) ([]Changes, error)
	// GetExecution reads an execution with a page of its steps.
	GetExecution(ctx context.Context, q ExecutionQuery) (view *ExecutionView, more bool, err error)
}

// Revision is how far an execution has come.
type Revision struct {
	ID       uuid.UUID
	Revision int64
}

// SweepStart is how a sweep begins.
type SweepStart struct {
	Mine       bool          // false: another replica sweeps, or did just now
	Gap        time.Duration // since the last sweep of any replica
	Credited   bool          // the gap was an outage: live leases last anew
	LeasesOver bool
	TimersDue  bool
}

// SweepBatch is a part of a sweep.
type SweepBatch struct {
	Limit   int         // candidates, at most; default 200
	Skipped []uuid.UUID // executions that were locked in this sweep
	Wait    []uuid.UUID // only these, and they are waited for: they were missed too often
}

// Swept is what a part of a sweep did.
type Swept struct {
	Looked []uuid.UUID // executions of the candidates; also when it failed
	Done   int         // attempts ended, or timers fired
	Missed []uuid.UUID // executions that another transaction held
	More   bool        // there may be more that was not looked at
}

// Group is what some parked poll can serve.
type Group struct {
	Namespace  string
	Capability string
	Node       string // empty: steps that are pinned to none
}

// DueGroup is a group of which something waits.
type DueGroup struct {
	Group
	In time.Duration // until it is due; not above 0: now
}

// ClaimCommand asks for work for parked polls.
type ClaimCommand struct {
	ClaimID uuid.UUID
	Offers  []task.Offer
	Limit   int
	Expires time.Duration
}

// Claimed is what a claim got: requests in the order of urgency, and the free slots that
// were counted in the same transaction.
type Claimed struct {
	Requests []task.Waiting
	Free     map[uuid.UUID]int
}

// DispatchItem is one assignment.
type DispatchItem struct {
	task.Waiting
	AttemptID uuid.UUID // made before the first try
	WorkerID  uuid.UUID
	SessionID uuid.UUID
	RequestID string
	Duration  time.Duration
}

// DispatchCommand is the assignments of a round.
type DispatchCommand struct {
	ClaimID uuid.UUID
	Items   []DispatchItem
}

// Dispatched is what came of a dispatch.
type Dispatched struct {
	Granted  map[uuid.UUID]bool // by attempt id
	Leases   []LeaseView        // of what was granted now, in the order of the items
	Filled   bool               // they have their payloads
	Answered []PollKey          // polls whose request id was answered before: they get no further grant
	Dropped  int                // requests that nothing needs any more
	Waited   []time.Duration    // of the steps that were granted now: from when they were due
}

// PollKey names a poll.
type PollKey struct {
	WorkerID  uuid.UUID
	SessionID uuid.UUID
	RequestID string
}

// WorkerState is a worker as committed.
type WorkerState struct {
	SessionID    uuid.UUID // zero: none
	Namespace    string
	Node         string
	Slots        int
	Capabilities []string
	Draining     bool
}

// PollState is how a poll stands.
type PollState struct {
	Worker   WorkerState
	Err      error       // *NotFoundError or *RefusedError: the session cannot poll
	Answered bool        // the request id was answered with grants before
	Live     []uuid.UUID // live attempts that bear the request id
}

// Undelivered is a grant that reached nobody.
type Undelivered struct {
	AttemptID    uuid.UUID
	LeaseVersion int64
	Delivery     int
}

// Result is one item's answer in a batch.
type Result[T any] struct {
	Value T
	Err   error
}

// Hint says that something may have changed. It is never the truth: whoever hears it looks.
type Hint string

// What hints are about.
const (
	HintWork    Hint = "work"    // something is due that was not before
	HintSlots   Hint = "slots"   // a worker has a free slot again
	HintSession Hint = "session" // a session was opened, drained or ended
	HintChange  Hint = "change"  // an execution has a further entry in its timeline
)

// Hints carries hints between replicas. They may be lost, merged and repeated.
type Hints interface {
	// Send passes hints on to the other replicas soon, without waiting.
	Send(hints ...Hint)
	// Run hears the others' hints until the context ends. After a gap in the hearing every
	// hint is given once.
	Run(ctx context.Context, hear func(Hint)) error
}
