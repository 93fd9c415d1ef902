package scheduler

import (
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Bounds of leases and waits.
const (
	DefaultLeaseDuration = 30 * time.Second
	MinLeaseDuration     = time.Second
	MaxLeaseDuration     = time.Hour
	DefaultWait          = 20 * time.Second
	MaxWait              = 55 * time.Second
)

// Enqueued is what came of an enqueue.
type Enqueued struct {
	Execution *ExecutionView // with its steps, if it was created and has at most 100
	Created   bool
}

// Registration is a worker as it describes itself.
type Registration struct {
	Namespace    string
	Name         string // empty: a unique one is made
	Node         string
	Version      string
	Capabilities []string
	Slots        int
	Labels       map[string]string
	RequestID    string
}

// Session is what a registration opened.
type Session struct {
	WorkerID  uuid.UUID
	SessionID uuid.UUID
	Name      string
}

// Poll asks for leases.
type Poll struct {
	WorkerID  uuid.UUID
	SessionID uuid.UUID
	RequestID string
	MaxLeases int
	Wait      time.Duration // 0 answers at once
	Duration  time.Duration // of the leases
	Received  time.Time     // a stopwatch's start, monotonic
}

// PollAnswer is what a poll got.
type PollAnswer struct {
	Leases   []LeaseView
	Draining bool
	Held     time.Duration // from receipt until just before the transaction of the grant began
}

// Renewal keeps an attempt.
type Renewal struct {
	AttemptID       uuid.UUID
	LeaseVersion    int64
	SessionID       uuid.UUID
	Duration        time.Duration
	Checkpoint      *task.Payload
	Progress        *float64
	ProgressMessage string
}

// Renewed is a lease after its renewal.
type Renewed struct {
	WorkerID        uuid.UUID
	ExpiresAt       time.Time
	Remaining       time.Duration
	Cancel          bool
	CancelAt        *time.Time
	CancelRemaining time.Duration
	Draining        bool
}

// Report ends an attempt.
type Report struct {
	AttemptID    uuid.UUID
	LeaseVersion int64
	Outcome      task.Outcome // its checkpoint too
}

// Reported is what came of a report.
type Reported struct {
	Replayed       bool
	StepState      task.StepState
	ExecutionState task.ExecutionState
	NextDue        *time.Time
	Opened         bool // attempts are asked for that were not before, by this report or its neighbours
}

// Cancellation asks to stop an execution.
type Cancellation struct {
	Execution uuid.UUID
	Reason    string
}

// Retry asks for the next round of an execution.
type Retry struct {
	Execution uuid.UUID
	Steps     []string // names; none: all that failed or were cancelled
	RequestID string   // empty: one is made
	Reason    string
}

// Retried is what came of a retry.
type Retried struct {
	Execution *ExecutionView // without steps
	Round     int            // that the request opened
	Replayed  bool           // by an earlier call
}

// ExecutionQuery names an execution and what to read of it.
type ExecutionQuery struct {
	ID             uuid.UUID // or
	Namespace      string
	IdempotencyKey string
	StepNames      []string // empty: all
	AfterOrdinal   int      // -1: from the first
	StepLimit      int      // 0: no steps
	Payloads       bool     // inputs and outputs too
	Brief          bool     // no attempts and no failures
	LastAttempt    bool     // of attempts the last one of each step only, and no details of failures
}

// ListQuery selects executions, newest first.
type ListQuery struct {
	Namespace     string
	States        []task.ExecutionState
	Name          string
	Labels        map[string]string
	CreatedAfter  time.Time     // inclusive; zero: any
	CreatedBefore time.Time     // exclusive; zero: any
	Before        *ListPosition // how far the page before came; nil: from the newest
	Limit         int
}

// ListPosition is an execution's place in lists.
type ListPosition struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

// ExecutionPage is some of the executions that were asked for. Next, if set, is how far the
// store has looked: there may be more, also when the page is short.
type ExecutionPage struct {
	Executions []ExecutionView
	Next       *ListPosition
}

// InputsQuery asks for parents' outputs of a live attempt.
type InputsQuery struct {
	AttemptID    uuid.UUID
	LeaseVersion int64
	AfterOrdinal int // -1: from the first
	MaxBytes     int
}

// Inputs are some of the parents' outputs; Next is -1 when these were the last.
type Inputs struct {
	Outputs map[string]*task.Payload
	Next    int
}
