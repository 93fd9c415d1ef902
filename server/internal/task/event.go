package task

import (
	"time"

	"github.com/google/uuid"
)

// EventType is the type of a fact that other systems can hear of.
type EventType string

// Every event type.
const (
	EventExecutionEnqueued  EventType = "leasehold.execution.v1.enqueued"
	EventExecutionStarted   EventType = "leasehold.execution.v1.started"
	EventExecutionSucceeded EventType = "leasehold.execution.v1.succeeded"
	EventExecutionFailed    EventType = "leasehold.execution.v1.failed"
	EventExecutionCanceled  EventType = "leasehold.execution.v1.canceled"
	EventExecutionReopened  EventType = "leasehold.execution.v1.reopened"
	EventStepSucceeded      EventType = "leasehold.step.v1.succeeded"
	EventStepFailed         EventType = "leasehold.step.v1.failed"
	EventStepSkipped        EventType = "leasehold.step.v1.skipped"
	EventStepCanceled       EventType = "leasehold.step.v1.canceled"
	EventStepRetryScheduled EventType = "leasehold.step.v1.retry_scheduled"
	EventAttemptLeased      EventType = "leasehold.attempt.v1.leased"
	EventAttemptSucceeded   EventType = "leasehold.attempt.v1.succeeded"
	EventAttemptFailed      EventType = "leasehold.attempt.v1.failed"
	EventAttemptTimedOut    EventType = "leasehold.attempt.v1.timed_out"
	EventAttemptLost        EventType = "leasehold.attempt.v1.lost"
	EventAttemptReleased    EventType = "leasehold.attempt.v1.released"
	EventAttemptCanceled    EventType = "leasehold.attempt.v1.canceled"
)

// AllEventTypes lists every type, in the order of their declaration.
func AllEventTypes() []EventType {
	return []EventType{
		EventExecutionEnqueued, EventExecutionStarted, EventExecutionSucceeded, EventExecutionFailed,
		EventExecutionCanceled, EventExecutionReopened, EventStepSucceeded, EventStepFailed,
		EventStepSkipped, EventStepCanceled, EventStepRetryScheduled, EventAttemptLeased,
		EventAttemptSucceeded, EventAttemptFailed, EventAttemptTimedOut, EventAttemptLost,
		EventAttemptReleased, EventAttemptCanceled,
	}
}

// DefaultEventTypes are those written unless settings say otherwise: what ends an execution
// or a step, and reopened.
func DefaultEventTypes() []EventType {
	return []EventType{
		EventExecutionSucceeded, EventExecutionFailed, EventExecutionCanceled, EventExecutionReopened,
		EventStepSucceeded, EventStepFailed, EventStepSkipped, EventStepCanceled,
	}
}

func (s AttemptState) event() EventType {
	switch s {
	case AttemptSucceeded:
		return EventAttemptSucceeded
	case AttemptFailed:
		return EventAttemptFailed
	case AttemptTimedOut:
		return EventAttemptTimedOut
	case AttemptLost:
		return EventAttemptLost
	case AttemptReleased:
		return EventAttemptReleased
	case AttemptCanceled:
		return EventAttemptCanceled
	default:
		return EventAttemptLeased
	}
}

func (s StepState) event() EventType {
	switch s {
	case StepSucceeded:
		return EventStepSucceeded
	case StepFailed:
		return EventStepFailed
	case StepSkipped:
		return EventStepSkipped
	case StepCanceled:
		return EventStepCanceled
	default:
		return EventStepRetryScheduled
	}
}

// Event is a committed fact. Its JSON form is the data that consumers get.
type Event struct {
	Type     EventType `json:"-"`
	Sequence int64     `json:"-"` // without gaps within the execution, of the selected types
	At       time.Time `json:"time"`

	ExecutionID   uuid.UUID  `json:"execution_id"`
	ExecutionName string     `json:"execution_name"`
	Namespace     string     `json:"namespace"`
	Round         int        `json:"round"`
	StepID        *uuid.UUID `json:"step_id,omitempty"`
	StepName      string     `json:"step_name,omitempty"`
	AttemptID     *uuid.UUID `json:"attempt_id,omitempty"`
	AttemptNumber int        `json:"attempt_number,omitempty"`
	LeaseVersion  int64      `json:"lease_version,omitempty,string"`
	WorkerID      *uuid.UUID `json:"worker_id,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	FailureType   string     `json:"failure_type,omitempty"`
	Failure       string     `json:"failure_message,omitempty"`
	NextAttempt   *time.Time `json:"next_attempt_time,omitempty"`
}

// Stage groups timeline entries.
type Stage string

// The stages of a timeline.
const (
	StageEnqueue    Stage = "ENQUEUE"
	StageScheduling Stage = "SCHEDULING"
	StageExecution  Stage = "EXECUTION"
	StageRecovery   Stage = "RECOVERY"
	StageControl    Stage = "CONTROL"
)

// Entry is a timeline entry that stands in no other row. Those of leases, ends of attempts,
// the enqueue and the execution's end are derived from their rows when the timeline is read;
// only their numbers are given out here.
type Entry struct {
	Sequence      int64
	Milestone     string // unique within the execution
	Stage         Stage
	Component     string
	Title         string
	StepName      string
	AttemptNumber int
	LeaseVersion  int64
	WorkerID      *uuid.UUID
	At            time.Time
	Details       map[string]string
}
