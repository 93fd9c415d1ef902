package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync/atomic"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The ways of OTLP, as the environment names them.
const (
	overGRPC = "grpc"
	overHTTP = "http/protobuf"
)

// portOfGRPC is where receivers of OTLP over gRPC listen by custom; that of HTTP is 4318.
const portOfGRPC = "4317"

func getenv(name string) string { return os.Getenv(name) }

// receiverOf tells over what spans are exported; empty: they are not. The variables are those
// of OpenTelemetry; the exporters read further ones (headers, certificates, timeouts), and so do
// sampler and batches.
func receiverOf(env func(string) string) (over string, err error) {
	endpoint := firstOf(env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), env("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || env("OTEL_SDK_DISABLED") == "true" {
		return "", nil
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "none":
		return "", nil
	case "", "otlp":
	default:
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q, and must be otlp or none", exporter)
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT is %q, and must be a URL such as http://collector:4317", endpoint)
	}
	switch over = firstOf(env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), env("OTEL_EXPORTER_OTLP_PROTOCOL")); over {
	case overGRPC, overHTTP:
		return over, nil
	case "":
		if u.Port() == portOfGRPC {
			return overGRPC, nil
		}
		return overHTTP, nil
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q, and must be %s or %s", over, overGRPC, overHTTP)
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func newExporter(ctx context.Context, over string, log *slog.Logger) (sdktrace.SpanExporter, error) {
	var to sdktrace.SpanExporter
	var err error
	if over == overGRPC {
		to, err = otlptracegrpc.New(ctx)
	} else {
		to, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &quietExporter{SpanExporter: to, log: log}, nil
}

// quietExporter has one line in the log for each loss of the receiver, and for each return.
type quietExporter struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	away atomic.Bool
}

// ExportSpans exports. Spans that the receiver did not take are lost: nobody waits for it.
func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.away.Swap(true):
		e.log.Warn("traces are not exported", "error", err)
	case err == nil && e.away.Swap(false):
		e.log.Info("traces are exported again")
	}
	return nil
}
