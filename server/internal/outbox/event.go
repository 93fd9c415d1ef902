package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Status is how an event stands.
type Status string

// The states of an event. PUBLISHED and SKIPPED are settled.
const (
	Pending    Status = "PENDING"
	Publishing Status = "PUBLISHING"
	Published  Status = "PUBLISHED"
	Failed     Status = "FAILED"
	Dead       Status = "DEAD"
	Skipped    Status = "SKIPPED"
)

// Event is a committed fact on its way.
type Event struct {
	ID          uuid.UUID // the consumer's key for repeats
	Namespace   string
	AggregateID uuid.UUID // the execution
	Type        string    // such as leasehold.execution.v1.succeeded
	Sequence    int64     // without gaps within the aggregate
	Data        []byte    // JSON
	CreatedAt   time.Time
	Attempts    int // tries before this one

	// TraceContext is the producer's W3C trace context (traceparent, tracestate), if any.
	TraceContext map[string]string
}

// Publisher brings an event to a sink.
type Publisher interface {
	// Publish returns nil only after the sink itself has acknowledged the event. An error that
	// is a *RefusedError means never again; a *RetryLaterError says when. It returns soon
	// after ctx ends, and is safe for concurrent use.
	Publish(ctx context.Context, e *Event) error
	// Close ends it; nothing is published any more.
	Close() error
}

// RefusedError says that the sink will never take the event.
type RefusedError struct{ Cause error }

func (e *RefusedError) Error() string { return fmt.Sprintf("refused for good: %v", e.Cause) }

func (e *RefusedError) Unwrap() error { return e.Cause }

// AwayError says that the sink cannot be reached at all. It is no event's fault: it does not
// count against the limit of tries, and other events are not tried for some time either.
type AwayError struct{ Cause error }

func (e *AwayError) Error() string { return fmt.Sprintf("sink is away: %v", e.Cause) }

func (e *AwayError) Unwrap() error { return e.Cause }

// RetryLaterError says that the sink asked to wait at least so long.
type RetryLaterError struct {
	Cause error
	After time.Duration
}

func (e *RetryLaterError) Error() string { return fmt.Sprintf("%v (again after %s)", e.Cause, e.After) }

func (e *RetryLaterError) Unwrap() error { return e.Cause }

func isAway(err error) bool {
	var away *AwayError
	return errors.As(err, &away)
}

func isRefused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// askedFor is how long the sink asked to wait, or 0.
func askedFor(err error) time.Duration {
	var later *RetryLaterError
	if errors.As(err, &later) {
		return later.After
	}
	return 0
}

// clean makes an error's text storable: no NUL, valid UTF-8, not long.
func clean(s string) string { return task.CleanText(s, maxReason) }
