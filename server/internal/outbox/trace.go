package outbox

import (
	"context"
	"log/slog"
)

// Tracer makes spans of what is published. A span ends when the function that comes with it is
// called.
type Tracer interface {
	// Continue begins a span in the trace that W3C headers carry; without a trace there it
	// begins one.
	Continue(ctx context.Context, headers map[string]string, name string) (context.Context, func(err error, about ...slog.Attr))
}

// untraced is a tracer where there is none.
type untraced struct{}

// Continue begins nothing.
func (untraced) Continue(ctx context.Context, _ map[string]string, _ string) (context.Context, func(error, ...slog.Attr)) {
	return ctx, func(error, ...slog.Attr) {}
}
