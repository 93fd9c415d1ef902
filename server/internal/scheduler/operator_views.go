package scheduler

import (
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// DrainKind is what a drain is about.
type DrainKind string

// The kinds of drains.
const (
	DrainWorker  DrainKind = "WORKER"
	DrainNode    DrainKind = "NODE"
	DrainVersion DrainKind = "VERSION"
)

// Drain is an operator's word about workers, those that come later too.
type Drain struct {
	Namespace string
	Kind      DrainKind
	Value     string // a worker's id, a node or a version
	Draining  bool   // false: the drain ends
	Reason    string
}

// Drained is what a drain is about.
type Drained struct {
	Workers int  // with a session
	More    bool // there are more than were counted
	Leases  int  // that they hold
}

// CapabilityKey names a capability.
type CapabilityKey struct{ Namespace, Name string }

// Revocation asks to take a lease away.
type Revocation struct {
	AttemptID    uuid.UUID
	LeaseVersion int64
	Reason       string
}

// Revoked is what came of a revocation.
type Revoked struct {
	Replayed       bool // it was revoked before
	StepState      task.StepState
	ExecutionState task.ExecutionState
	NextDue        *time.Time
}

// WorkerQuery selects workers in order of name.
type WorkerQuery struct {
	Namespace  string
	Node       string // empty: any, as the two below
	Version    string
	Capability string
	LiveOnly   bool
	After      string // the last name of the page before
	Limit      int
}

// WorkerView is a worker as read.
type WorkerView struct {
	ID           uuid.UUID
	Namespace    string
	Name         string
	Node         string
	Version      string
	Labels       map[string]string
	Capabilities []string
	SessionID    uuid.UUID     // zero: it has left
	Standing     task.Standing // Present: it was seen within the session timeout
	DrainsItself bool
	Drains       []DrainView
	RegisteredAt time.Time
	LastSeenAt   time.Time
	Attempts     []WorkerAttempt // the oldest first, where asked for
	MoreAttempts bool
	Now          time.Time // when it was read
}

// DrainView is a drain as read.
type DrainView struct {
	Kind   DrainKind
	Value  string
	Reason string
	At     time.Time
}

// WorkerAttempt is a live attempt of a worker.
type WorkerAttempt struct {
	AttemptID       uuid.UUID
	Number          int
	LeaseVersion    int64
	ExecutionID     uuid.UUID
	ExecutionName   string
	StepID          uuid.UUID
	StepName        string
	Capability      string
	LeasedAt        time.Time
	ExpiresAt       time.Time
	Progress        *float64
	ProgressMessage string
}

// CapabilityQuery selects capabilities in order of name.
type CapabilityQuery struct {
	Namespace string
	Name      string // empty: all
	After     string // the last name of the page before
	Limit     int
}

// CapabilityView is a capability as read. Counts are bounded, and say when there are more.
type CapabilityView struct {
	Name           string
	Ready          Count
	Delayed        Count
	Running        Count
	OldestReady    *time.Duration // how long it has been due; nil: none is
	Pause          *task.Notice   // nil: it is not paused
	LiveWorkers    int            // drained ones too
	DrainedWorkers int
	FreeSlots      int64
	MoreWorkers    bool // than were looked at
	LastMinute     map[task.AttemptState]int64
	LastHour       map[task.AttemptState]int64
}

// Count is a number that was counted up to a bound.
type Count struct {
	N    int
	More bool // there are more
}

// StepQuery names a step by its id, or by execution and name.
type StepQuery struct {
	StepID      uuid.UUID
	ExecutionID uuid.UUID
	Name        string
}

// StepExplained is a step, and all that holds for it at an instant.
type StepExplained struct {
	Step        task.StepData
	Execution   task.ExecutionData
	Explanation task.Explanation
	At          time.Time
}
