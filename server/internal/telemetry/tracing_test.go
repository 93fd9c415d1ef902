package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// recorded is tracing whose spans are kept in memory.
func recorded(t *testing.T) (*Tracing, *tracetest.InMemoryExporter) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	tracing := newTracing(sdktrace.WithSyncer(kept))
	t.Cleanup(func() { _ = tracing.Close() })
	return tracing, kept
}

// only is the one span that was kept.
func only(t *testing.T, kept *tracetest.InMemoryExporter) tracetest.SpanStub {
	t.Helper()
	spans := kept.GetSpans()
	if len(spans) != 1 {
		t.Fatalf("%d spans, want 1", len(spans))
	}
	kept.Reset()
	return spans[0]
}

func TestTracing_SpansBelongWhereTheyAreAsked(t *testing.T) {
	t.Parallel()
	tracing, kept := recorded(t)
	ctx := t.Context()

	none, end := tracing.Child(ctx, "child")
	end(nil)
	_, endTx := tracing.Transaction(none, "claim")
	endTx(nil)
	_, end = tracing.Gather(ctx, "gathered", slices.Values([]context.Context{ctx, ctx}))
	end(nil)
	if n := len(kept.GetSpans()); n != 0 {
		t.Fatalf("%d spans that nothing has asked for", n)
	}

	a, endA := tracing.Root(ctx, "a")
	b, endB := tracing.Root(a, "b")
	_, endTx = tracing.Transaction(a, "claim")
	endTx(errors.New("locked"))
	inA, inB := trace.SpanContextFromContext(a), trace.SpanContextFromContext(b)
	if inA.TraceID() == inB.TraceID() {
		t.Error("a root within a trace is no root")
	}
	tx := only(t, kept)
	if tx.Name != "transaction claim" || tx.Parent.SpanID() != inA.SpanID() || len(tx.Events) != 1 || tx.Status.Description != "locked" {
		t.Errorf("the transaction: %+v", tx)
	}

	_, end = tracing.Gather(ctx, "gathered", slices.Values([]context.Context{ctx, b, a}))
	end(nil, slog.Int("calls", 3), slog.String("kind", "reports"))
	gathered := only(t, kept)
	if gathered.Parent.SpanID() != inB.SpanID() || len(gathered.Links) != 1 || gathered.Links[0].SpanContext.SpanID() != inA.SpanID() {
		t.Errorf("gathered: parent %v, links %v", gathered.Parent, gathered.Links)
	}
	if v := gathered.Attributes; len(v) != 2 || v[0].Key != "leasehold.calls" || v[0].Value.AsInt64() != 3 || v[1].Value.AsString() != "reports" {
		t.Errorf("gathered: %v", v)
	}
	endA(nil)
	endB(nil)
}

func TestTracing_ContinuesTheProducersTrace(t *testing.T) {
	t.Parallel()
	tracing, kept := recorded(t)
	here, endHere := tracing.Root(t.Context(), "here")
	defer endHere(nil)
	for headers, want := range map[string]string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": "4bf92f3577b34da6a3ce929d0e0e4736",
		"":        "", // a trace of its own
		"garbage": "",
	} {
		_, end := tracing.Continue(here, map[string]string{"traceparent": headers}, "publish")
		end(nil)
		span := only(t, kept)
		own := span.SpanContext.TraceID().String()
		if want != "" && own != want || own == trace.SpanContextFromContext(here).TraceID().String() {
			t.Errorf("%q: the span is in trace %s", headers, own)
		}
		if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != trace.SpanContextFromContext(here).SpanID() {
			t.Errorf("%q: linked to %v", headers, span.Links)
		}
	}
	// What the producer does not sample is not recorded.
	_, end := tracing.Continue(here, map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"}, "publish")
	end(nil)
	if n := len(kept.GetSpans()); n != 0 {
		t.Errorf("%d spans of a trace that is not sampled", n)
	}
}

// TestTracing_OffCostsNothing, on the path of every transaction.
func TestTracing_OffCostsNothing(t *testing.T) {
	off := &Tracing{}
	ctx := t.Context()
	callers := slices.Values([]context.Context{ctx})
	n := testing.AllocsPerRun(100, func() {
		_, end := off.Root(ctx, "a")
		end(nil)
		_, end = off.Child(ctx, "a")
		end(nil)
		_, end = off.Gather(ctx, "a", callers)
		end(nil)
		_, end = off.Continue(ctx, nil, "a")
		end(nil)
		_, endTx := off.Transaction(ctx, "a")
		endTx(nil)
	})
	if n > 0 || off.ServerOptions() != nil || off.Close() != nil {
		t.Errorf("%v allocations", n)
	}
}

func TestReceiverOf_FollowsTheEnvironment(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, c := range []struct {
		env  map[string]string
		want string // "error", or over what
	}{
		{nil, ""},
		{map[string]string{endpoint: "http://c:4318"}, overHTTP},
		{map[string]string{endpoint: "https://c"}, overHTTP},
		{map[string]string{endpoint: "http://c:4317"}, overGRPC},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:1/v1/traces"}, overHTTP},
		{map[string]string{endpoint: "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, overGRPC},
		{map[string]string{endpoint: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, overHTTP},
		{map[string]string{endpoint: "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "error"},
		{map[string]string{endpoint: "c:4317"}, "error"},
		{map[string]string{endpoint: "http://"}, "error"},
		{map[string]string{endpoint: "http://c:1", "OTEL_SDK_DISABLED": "true"}, ""},
		{map[string]string{endpoint: "http://c:1", "OTEL_TRACES_EXPORTER": "none"}, ""},
		{map[string]string{endpoint: "http://c:1", "OTEL_TRACES_EXPORTER": "otlp"}, overHTTP},
		{map[string]string{endpoint: "http://c:1", "OTEL_TRACES_EXPORTER": "zipkin"}, "error"},
	} {
		got, err := receiverOf(func(name string) string { return c.env[name] })
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%v: %q (%v), want %q", c.env, got, err, c.want)
		}
	}
}
