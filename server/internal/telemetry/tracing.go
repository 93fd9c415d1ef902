package telemetry

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var (
	_ scheduler.Tracer = (*Tracing)(nil)
	_ outbox.Tracer    = (*Tracing)(nil)
)

// FlushLimit bounds how long the last spans may take to leave, at the end.
const FlushLimit = 250 * time.Millisecond

// Tracing makes spans and exports them by OTLP. If the environment names no receiver it is off,
// and its methods do nothing.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer // nil: off
	headers  propagation.TextMapPropagator
}

// NewTracing makes the tracing that the environment asks for. It does not wait for the receiver.
func NewTracing(ctx context.Context, version string, log *slog.Logger) (*Tracing, error) {
	to, err := receiverOf(getenv)
	if err != nil || to == "" {
		return &Tracing{}, err
	}
	exporter, err := newExporter(ctx, to, log)
	if err != nil {
		return nil, fmt.Errorf("export of traces: %w", err)
	}
	// What the environment says of this service goes first.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "leasehold"), attribute.String("service.version", version),
		attribute.String("service.instance.id", uuid.NewString()),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return newTracing(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

func newTracing(options ...sdktrace.TracerProviderOption) *Tracing {
	provider := sdktrace.NewTracerProvider(options...)
	return &Tracing{
		provider: provider, tracer: provider.Tracer("github.com/leasehold/leasehold"),
		headers: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
}

// Close exports what is left, for FlushLimit at most.
func (t *Tracing) Close() error {
	if t.provider == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), FlushLimit)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("the last traces were not exported: %w", err)
	}
	return nil
}

// ServerOptions are what a gRPC server is made with, so that its calls have spans: all but
// those of health and reflection.
func (t *Tracing) ServerOptions() []grpc.ServerOption {
	if t.tracer == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider), otelgrpc.WithPropagators(t.headers),
		otelgrpc.WithMeterProvider(metricnoop.NewMeterProvider()),
		otelgrpc.WithFilter(filters.Not(filters.Any(filters.HealthCheck(), filters.ServicePrefix("grpc.reflection.")))),
	))}
}

// Root begins a span that nobody has asked for.
func (t *Tracing) Root(ctx context.Context, name string) (context.Context, scheduler.EndSpan) {
	if t.tracer == nil {
		return ctx, noSpan
	}
	return t.begin(ctx, name, trace.WithNewRoot())
}

// Child begins a span within that of ctx, if there is one.
func (t *Tracing) Child(ctx context.Context, name string) (context.Context, scheduler.EndSpan) {
	if t.tracer == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, noSpan
	}
	return t.begin(ctx, name)
}

// Transaction begins a span within that of ctx, if there is one.
func (t *Tracing) Transaction(ctx context.Context, useCase string) (context.Context, func(error)) {
	if t.tracer == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, noTransaction
	}
	ctx, end := t.begin(ctx, "transaction "+useCase, trace.WithAttributes(attribute.String("db.system.name", "postgresql")))
	return ctx, func(err error) { end(err) }
}

// Gather begins a span within that of the first caller which has one, linked to the others'.
func (t *Tracing) Gather(ctx context.Context, name string, callers iter.Seq[context.Context]) (context.Context, scheduler.EndSpan) {
	if t.tracer == nil {
		return ctx, noSpan
	}
	var first trace.SpanContext
	var others []trace.Link
	for caller := range callers {
		switch sc := trace.SpanContextFromContext(caller); {
		case !sc.IsValid():
		case !first.IsValid():
			first = sc
		default:
			others = append(others, trace.Link{SpanContext: sc})
		}
	}
	if !first.IsValid() {
		return ctx, noSpan
	}
	return t.begin(trace.ContextWithSpanContext(ctx, first), name, trace.WithLinks(others...))
}

// Continue begins a span in the trace that headers carry, linked to the span of ctx.
func (t *Tracing) Continue(ctx context.Context, headers map[string]string, name string) (context.Context, scheduler.EndSpan) {
	if t.tracer == nil {
		return ctx, noSpan
	}
	var options []trace.SpanStartOption
	if here := trace.SpanContextFromContext(ctx); here.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: here}))
	}
	ctx = t.headers.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), propagation.MapCarrier(headers))
	return t.begin(ctx, name, options...)
}

func (t *Tracing) begin(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, scheduler.EndSpan) {
	ctx, span := t.tracer.Start(ctx, name, options...)
	return ctx, func(err error, about ...slog.Attr) {
		for _, a := range about {
			span.SetAttributes(attributeOf(a))
		}
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

func attributeOf(a slog.Attr) attribute.KeyValue {
	key := attribute.Key("leasehold." + a.Key)
	if a.Value.Kind() == slog.KindInt64 {
		return key.Int64(a.Value.Int64())
	}
	return key.String(a.Value.String())
}

func noSpan(error, ...slog.Attr) {}

func noTransaction(error) {}
