package scheduler

import (
	"context"
	"iter"
	"log/slog"
)

// Tracer makes spans of what the application does. A span ends when the function that comes
// with it is called.
type Tracer interface {
	// Root begins a span that nobody has asked for.
	Root(ctx context.Context, name string) (context.Context, EndSpan)
	// Child begins a span within that of ctx; if ctx has none it begins none.
	Child(ctx context.Context, name string) (context.Context, EndSpan)
	// Gather begins a span within that of the first caller which has one, and links it to those of
	// all others; if none has one it begins none.
	Gather(ctx context.Context, name string, callers iter.Seq[context.Context]) (context.Context, EndSpan)
	// Continue begins a span in the trace that W3C headers carry, linked to that of ctx; without
	// a trace there it begins one.
	Continue(ctx context.Context, headers map[string]string, name string) (context.Context, EndSpan)
}

// EndSpan ends a span, with what came of it.
type EndSpan = func(err error, about ...slog.Attr)

// untraced is a tracer where there is none.
type untraced struct{}

// Root begins nothing.
func (untraced) Root(ctx context.Context, _ string) (context.Context, EndSpan) { return ctx, noSpan }

// Child begins nothing.
func (untraced) Child(ctx context.Context, _ string) (context.Context, EndSpan) { return ctx, noSpan }

// Gather begins nothing.
func (untraced) Gather(ctx context.Context, _ string, _ iter.Seq[context.Context]) (context.Context, EndSpan) {
	return ctx, noSpan
}

// Continue begins nothing.
func (untraced) Continue(ctx context.Context, _ map[string]string, _ string) (context.Context, EndSpan) {
	return ctx, noSpan
}

func noSpan(error, ...slog.Attr) {}
