package outbox

import (
	"encoding/json"
	"fmt"

	"github.com/cloudevents/sdk-go/v2/event"
)

// CloudEvent is an event as it travels: CloudEvents 1.0 with JSON data, and the extensions
// partitionkey (the execution), sequence (a number without leading zeros), traceparent and
// tracestate. source is a URI reference that names this installation.
func CloudEvent(e *Event, source string) (*event.Event, error) {
	c := event.New(event.CloudEventsVersionV1)
	c.SetID(e.ID.String())
	c.SetSource(source)
	c.SetType(e.Type)
	c.SetSubject(e.AggregateID.String())
	c.SetTime(e.CreatedAt)
	c.SetExtension("partitionkey", e.AggregateID.String())
	c.SetExtension("sequence", fmt.Sprint(e.Sequence))
	c.SetExtension("namespace", e.Namespace)
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := e.TraceContext[name]; value != "" {
			c.SetExtension(name, value)
		}
	}
	// As plain bytes the data would travel in base64; as this it is JSON within JSON, and checked.
	if err := c.SetData(event.ApplicationJSON, json.RawMessage(e.Data)); err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID, err)
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("event %s: %w", e.ID, err)
	}
	return &c, nil
}
