package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
)

// Event is a committed fact about an execution.
type Event struct {
	ID          uuid.UUID // unique, and the same in every delivery
	Source      string    // the server's --outbox-source
	Type        string    // such as leasehold.execution.v1.succeeded
	Namespace   string
	ExecutionID uuid.UUID
	// Sequence is 1, 2, ... within the execution, without gaps over the types that the server
	// publishes.
	Sequence int64
	// Time is when it happened, by the server's PostgreSQL. It is no order: sequence is.
	Time time.Time
	// TraceParent and TraceState are the producer's W3C trace context; empty if it had none.
	TraceParent, TraceState string
	Data                    Data
}

// Data is what an event tells. What does not apply to its type is zero. Further fields may
// come with later servers.
type Data struct {
	ExecutionName string    `json:"execution_name"`
	Round         int       `json:"round"` // 1, and one more with each retry of the execution
	StepID        uuid.UUID `json:"step_id"`
	StepName      string    `json:"step_name"`
	AttemptID     uuid.UUID `json:"attempt_id"`
	AttemptNumber int       `json:"attempt_number"` // of the step, from 1
	LeaseVersion  int64     `json:"lease_version,string"`
	WorkerID      uuid.UUID `json:"worker_id"`
	// Reason is why it ended so, where the type alone does not say it.
	Reason         string    `json:"reason"`
	FailureType    string    `json:"failure_type"`
	FailureMessage string    `json:"failure_message"`
	NextAttempt    time.Time `json:"next_attempt_time"` // of a retry
}

// ParseEvent reads the body of a message in NATS, or of a webhook's request: a CloudEvent 1.0
// in structured mode (content type application/cloudevents+json), which is the only mode that
// the server sends. Errors are ErrMalformed.
func ParseEvent(body []byte) (*Event, error) {
	var c event.Event
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	e, err := convert(&c)
	if err != nil {
		return nil, fmt.Errorf("%w: event %q: %w", ErrMalformed, c.ID(), err)
	}
	return e, nil
}

func convert(c *event.Event) (*Event, error) {
	e := &Event{
		Source: c.Source(), Type: c.Type(), Time: c.Time(),
		Namespace: extension(c, "namespace"), TraceParent: extension(c, "traceparent"), TraceState: extension(c, "tracestate"),
	}
	var err error
	if e.ID, err = uuid.Parse(c.ID()); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	if e.ExecutionID, err = uuid.Parse(c.Subject()); err != nil {
		return nil, fmt.Errorf("subject: %w", err)
	}
	if e.Sequence, err = strconv.ParseInt(extension(c, "sequence"), 10, 64); err != nil {
		return nil, fmt.Errorf("sequence: %w", err)
	}
	if e.Sequence < 1 {
		return nil, fmt.Errorf("sequence %d: must be 1 or more", e.Sequence)
	}
	if len(c.Data()) == 0 {
		return nil, errors.New("it has no data")
	}
	if err := json.Unmarshal(c.Data(), &e.Data); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	return e, nil
}

// extension is an attribute as text, whether it came as text or as a number.
func extension(c *event.Event, name string) string {
	if value, ok := c.Extensions()[name]; ok {
		return fmt.Sprint(value)
	}
	return ""
}
