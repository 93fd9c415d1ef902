package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

// Bounds of what is kept of a producer's trace context, from the W3C's recommendations
// Trace Context (tracestate: 512) and Baggage (8192).
const (
	maxTraceparent = 128
	maxTracestate  = 512
	maxBaggage     = 8192
)

// traceContext is the W3C trace context of the call, or nil: the caller's own, as it came, also
// where this server makes spans, so that leases and events tell the same with tracing on or off.
// What is malformed or too long is left out: a tracer's mistake is no reason to refuse work.
func traceContext(ctx context.Context) map[string]string {
	md, _ := metadata.FromIncomingContext(ctx)
	kept := map[string]string{}
	if parent := md.Get("traceparent"); len(parent) == 1 && isTraceparent(parent[0]) {
		kept["traceparent"] = parent[0]
		keep(kept, md, "tracestate", maxTracestate)
	}
	keep(kept, md, "baggage", maxBaggage)
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// keep takes a list header, whose several values are one list.
func keep(kept map[string]string, md metadata.MD, name string, limit int) {
	if value := strings.Join(md.Get(name), ","); value != "" && len(value) <= limit && isPrintable(value) {
		kept[name] = value
	}
}

// isTraceparent checks version-traceid-parentid-flags; later versions may add to it.
func isTraceparent(s string) bool {
	if len(s) > maxTraceparent || !isPrintable(s) {
		return false
	}
	parts := strings.SplitN(s, "-", 5)
	if len(parts) < 4 || (len(parts) == 5 && parts[0] == "00") || parts[0] == "ff" {
		return false
	}
	for i, length := range [...]int{2, 32, 16, 2} {
		if len(parts[i]) != length || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if (s[i] < ' ' && s[i] != '\t') || s[i] > '~' {
			return false
		}
	}
	return true
}
