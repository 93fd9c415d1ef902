package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Kind names what an id was looked up as.
type Kind string

// The kinds of things that can be missing.
const (
	KindExecution  Kind = "EXECUTION"
	KindStep       Kind = "STEP"
	KindAttempt    Kind = "ATTEMPT"
	KindWorker     Kind = "WORKER"
	KindSession    Kind = "SESSION"
	KindCapability Kind = "CAPABILITY"
	KindEvent      Kind = "EVENT"
)

// NotFoundError says that an id is unknown. For a session it means: register again.
type NotFoundError struct {
	Kind Kind
	ID   string
}

func (e *NotFoundError) Error() string { return fmt.Sprintf("%s %q was not found", e.Kind, e.ID) }

// InvalidError says what is wrong with an input.
type InvalidError struct{ Violations []task.Violation }

func (e *InvalidError) Error() string {
	if len(e.Violations) == 0 {
		return "invalid request"
	}
	return fmt.Sprintf("%s: %s", e.Violations[0].Field, e.Violations[0].Message)
}

// KeyReusedError says that an idempotency key was used before with other content.
type KeyReusedError struct {
	Namespace, Key string
	ExistingID     string
	Index          int // of the request in a batch, else 0
}

func (e *KeyReusedError) Error() string {
	return fmt.Sprintf("idempotency key %q was used with other content by execution %s", e.Key, e.ExistingID)
}

// RefusedError says that a call came too late, or for something that is not so. Versions are
// 0 where they do not apply.
type RefusedError struct {
	Reason         task.Reason
	Subject        string // what it is about: an attempt's, worker's or execution's id
	HeldVersion    int64
	CurrentVersion int64
	Message        string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

// Further reasons of refusals, those of the application.
const (
	ReasonLeasesLive     task.Reason = "LEASES_LIVE"
	ReasonTooManyPolls   task.Reason = "TOO_MANY_POLLS"
	ReasonTooManyStreams task.Reason = "TOO_MANY_STREAMS"
)

// Reasons of limits of a namespace.
const (
	ReasonTooManyCapabilities task.Reason = "TOO_MANY_CAPABILITIES"
	ReasonTooManyWorkers      task.Reason = "TOO_MANY_WORKERS"
	ReasonTooManyDrains       task.Reason = "TOO_MANY_DRAINS"
)

// What a namespace can have at most, so that callers who name ever new things fill no table. Calls
// at the same moment may overshoot by as many as they are.
const (
	MaxCapabilities = 10_000  // with a row: needed by a step, offered or paused, ever
	MaxWorkers      = 100_000 // those that are gone too, until retention removes them
	MaxDrains       = 10_000
)

// ExhaustedError says that a limit of this replica, or of a namespace, is reached.
type ExhaustedError struct {
	Reason     task.Reason
	Message    string
	Limit      int
	RetryAfter time.Duration
}

func (e *ExhaustedError) Error() string { return e.Message }

// UnavailableError says that the store could not be reached, or not in time. The cause is for
// the log, never for a client.
type UnavailableError struct {
	Cause      error
	RetryAfter time.Duration
	Locked     bool // a lock did not come in time: others may well get through
}

func (e *UnavailableError) Error() string { return fmt.Sprintf("storage is unavailable: %v", e.Cause) }

func (e *UnavailableError) Unwrap() error { return e.Cause }

// ErrBusy says that another transaction holds what an item needs. It does not reach callers:
// the item is tried again.
var ErrBusy = errors.New("another transaction holds the rows")
