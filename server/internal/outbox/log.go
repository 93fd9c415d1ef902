package outbox

import (
	"context"
	"log/slog"
)

// LogPublisher writes events to a log: the sink to look at things with.
type LogPublisher struct{ log *slog.Logger }

var _ Publisher = (*LogPublisher)(nil)

// NewLogPublisher makes one.
func NewLogPublisher(log *slog.Logger) *LogPublisher { return &LogPublisher{log} }

// Publish writes a line. It never fails.
func (p *LogPublisher) Publish(_ context.Context, e *Event) error {
	p.log.Info("event", "event_id", e.ID, "type", e.Type, "aggregate_id", e.AggregateID, "sequence", e.Sequence, "data", string(e.Data))
	return nil
}

// Close does nothing.
func (p *LogPublisher) Close() error { return nil }
