package scheduler

import (
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// ExecutionView is an execution as read. Remaining durations are counted from Now.
type ExecutionView struct {
	task.ExecutionData
	IdempotencyKey string
	Priority       int
	Labels         map[string]string
	Steps          []StepView
	Now            time.Time // PostgreSQL's, when it was read
}

// StepView is a step as read.
type StepView struct {
	ID             uuid.UUID
	Ordinal        int
	Name           string
	Capability     string
	Node           string
	Priority       int
	State          task.StepState
	DependsOn      []string
	Attempts       []AttemptView // oldest first, at most the last 100
	AttemptCount   int
	Counted        int
	NextDue        *time.Time
	Failure        *task.Failure
	StoppedBecause string
	Input, Output  *task.Payload // when asked for
}

// AttemptView is an attempt as read.
type AttemptView struct {
	ID              uuid.UUID
	Number          int
	Round           int
	State           task.AttemptState
	Reason          string
	WorkerID        uuid.UUID
	WorkerName      string
	Node            string
	LeaseVersion    int64
	LeasedAt        time.Time
	ExpiresAt       *time.Time // while it is live
	EndedAt         *time.Time
	Failure         *task.Failure
	Progress        *float64
	ProgressMessage string
}

// EntryView is a timeline entry as read.
type EntryView struct {
	task.Entry
	Count int
}

// Changes is what happened to an execution after a revision, without a gap.
type Changes struct {
	Execution *ExecutionView // as read together with the entries; no steps
	Entries   []ChangeView   // in order; perhaps not yet all up to its revision
}

// ChangeView is a timeline entry, and the step that it is about as read together with it, which
// may be later than the entry.
type ChangeView struct {
	EntryView
	Step *StepView // nil: none. No parents, one attempt at most, no details of failures
}

// LeaseView is what a worker gets.
type LeaseView struct {
	ExecutionID           uuid.UUID
	ExecutionName         string
	StepID                uuid.UUID
	StepName              string
	Capability            string
	AttemptID             uuid.UUID
	AttemptNumber         int
	LeaseVersion          int64
	ExpiresAt             time.Time
	Remaining             time.Duration // until ExpiresAt, when it was granted or replayed
	StartToCloseAt        time.Time
	StartToCloseRemaining time.Duration
	Input                 *task.Payload
	ParentOutputs         map[string]*task.Payload
	ParentBytes           int  // of all that parents put out, or just more than what travels with a lease
	ParentOutputsOmitted  bool // it is more
	Checkpoint            *task.Payload
	PreviousFailure       *task.Failure
	Labels                map[string]string
	TraceContext          map[string]string

	WorkerID  uuid.UUID
	RequestID string // of the poll that it was granted to
	Delivery  int    // which delivery of the grant this is: only the last one can hand it back
}

// MaxStepsAnswered is how many steps an enqueue answers with.
const MaxStepsAnswered = 100

// View is a new execution as it was accepted.
func (n *NewExecution) View(e *task.Execution, now time.Time) *ExecutionView {
	v := &ExecutionView{
		ExecutionData: e.Data(), IdempotencyKey: n.Spec.IdempotencyKey, Priority: n.Spec.Priority,
		Labels: n.Spec.Labels, Now: now,
	}
	if len(n.Spec.Steps) > MaxStepsAnswered {
		return v
	}
	for i, s := range e.Steps() {
		d := s.Data()
		v.Steps = append(v.Steps, StepView{
			ID: d.ID, Ordinal: d.Ordinal, Name: d.Name, Capability: d.Capability, Node: d.Node, Priority: d.Priority,
			State: d.State, DependsOn: n.Spec.Steps[i].DependsOn, NextDue: d.OpenedAt,
		})
	}
	return v
}
