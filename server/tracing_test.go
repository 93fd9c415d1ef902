package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// spans is a receiver of OTLP, over gRPC and HTTP.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu  sync.Mutex
	all []*tracepb.Span
	of  map[string]string // the last resource's attributes
}

// Export takes spans in over gRPC.
func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		s.of = map[string]string{}
		for _, a := range resource.GetResource().GetAttributes() {
			s.of[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range resource.GetScopeSpans() {
			s.all = append(s.all, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP takes spans in over HTTP.
func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	request := &collector.ExportTraceServiceRequest{}
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = s.Export(r.Context(), request)
}

// serveGRPC listens, and returns the receiver's endpoint.
func (s *spans) serveGRPC(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return "http://" + listener.Addr().String()
}

// resource is what the spans say of where they come from.
func (s *spans) resource(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[name]
}

// named are the spans of a name, of one trace if it is given.
func (s *spans) named(trace, name string) []*tracepb.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*tracepb.Span
	for _, span := range s.all {
		if span.GetName() == name && (trace == "" || hex.EncodeToString(span.GetTraceId()) == trace) {
			list = append(list, span)
		}
	}
	return list
}

const (
	producersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	producersSpan  = "00f067aa0ba902b7"
	traceparent    = "00-" + producersTrace + "-" + producersSpan + "-01"
)

// tracedWork has a step enqueued in a producer's trace and done by a worker; it returns what
// the worker was told of the trace.
func tracedWork(t *testing.T, p *process) map[string]string {
	t.Helper()
	conn := p.dial()
	executions, workers := leaseholdv1.NewExecutionServiceClient(conn), leaseholdv1.NewWorkerServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(testTime(t), "traceparent", traceparent)
	if _, err := executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{
		Name: "traced", Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "work"}},
	}); err != nil {
		t.Fatal(err)
	}
	worker, err := workers.RegisterWorker(testTime(t), &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := workers.LeaseAttempt(testTime(t), &leaseholdv1.LeaseAttemptRequest{
		WorkerId: worker.GetWorkerId(), SessionId: worker.GetSessionId(), WaitTimeout: durationpb.New(30 * time.Second),
	})
	if err != nil || len(answer.GetLeases()) != 1 {
		t.Fatalf("LeaseAttempt: %v, %v", answer, err)
	}
	report := success()
	report.AttemptId, report.LeaseVersion = answer.GetLeases()[0].GetAttemptId(), answer.GetLeases()[0].GetLeaseVersion()
	if _, err := workers.ReportAttempt(testTime(t), report); err != nil {
		t.Fatal(err)
	}
	return answer.GetLeases()[0].GetTraceContext()
}

// idlePoll waits for work that does not come; the dispatcher looks for it each second.
func idlePoll(t *testing.T, p *process) {
	t.Helper()
	workers := leaseholdv1.NewWorkerServiceClient(p.dial())
	worker, err := workers.RegisterWorker(testTime(t), &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"nothing"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := workers.LeaseAttempt(testTime(t), &leaseholdv1.LeaseAttemptRequest{
		WorkerId: worker.GetWorkerId(), SessionId: worker.GetSessionId(), WaitTimeout: durationpb.New(3 * time.Second),
	})
	if err != nil || len(answer.GetLeases()) != 0 {
		t.Fatalf("LeaseAttempt: %v, %v", answer, err)
	}
}

// eventTraces is a sink that keeps the events' traceparent.
type eventTraces struct {
	mu   sync.Mutex
	seen []string
}

func (e *eventTraces) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event struct {
		Traceparent string `json:"traceparent"`
	}
	_ = json.NewDecoder(r.Body).Decode(&event)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen = append(e.seen, event.Traceparent)
	w.WriteHeader(http.StatusNoContent)
}

func (e *eventTraces) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.seen)
}

// TestTracing_OneTraceFromTheProducerToTheEvent: the producer's trace context reaches the lease
// and the events, and its trace has our spans of the enqueue, the lease and the publishing.
func TestTracing_OneTraceFromTheProducerToTheEvent(t *testing.T) {
	t.Parallel()
	got, events := &spans{}, &eventTraces{}
	sink := httptest.NewServer(events)
	t.Cleanup(sink.Close)
	p := launchWith(t, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + got.serveGRPC(t), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_BSP_SCHEDULE_DELAY=100",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test",
	}, "serve", "--migrate", "--database-url", startPostgres(t).URL(), "--listen", "127.0.0.1:0", "--http-listen", "off", "--sink", sink.URL).awaitReady()
	if lease := tracedWork(t, p); lease["traceparent"] != traceparent {
		t.Errorf("the lease says %v, want %s", lease, traceparent)
	}
	eventually(t, "both events", func() bool { return len(events.list()) == 2 })
	for _, told := range events.list() {
		if told != traceparent {
			t.Errorf("an event says %q, want %s", told, traceparent)
		}
	}
	for name, n := range map[string]int{
		"leasehold.v1.ExecutionService/EnqueueExecution": 1, "group commit": 1, "transaction enqueue": 1, "lease": 1, "publish": 2,
	} {
		eventually(t, "span "+name, func() bool { return len(got.named(producersTrace, name)) == n })
	}
	call := got.named(producersTrace, "leasehold.v1.ExecutionService/EnqueueExecution")[0]
	if hex.EncodeToString(call.GetParentSpanId()) != producersSpan {
		t.Errorf("the call's parent is %x, want the producer's span", call.GetParentSpanId())
	}
	commit := got.named(producersTrace, "group commit")[0]
	if string(commit.GetParentSpanId()) != string(call.GetSpanId()) {
		t.Error("the group commit is not within the call")
	}
	round := got.roundOfDispatch(t)
	if links := got.named(producersTrace, "lease")[0].GetLinks(); len(links) != 1 || string(links[0].GetTraceId()) != string(round.GetTraceId()) {
		t.Errorf("the lease is linked to %v, want the round that made it", links)
	}
	if got.resource("service.name") != "leasehold" || got.resource("deployment.environment.name") != "test" {
		t.Error("the spans do not say whose they are")
	}
	rounds := len(got.named("", "dispatch round"))
	idlePoll(t, p)
	eventually(t, "the span of the idle poll", func() bool { return len(got.named("", "leasehold.v1.WorkerService/LeaseAttempt")) == 2 })
	if n := len(got.named("", "dispatch round")); n != rounds {
		t.Errorf("%d rounds that gave nothing have spans", n-rounds)
	}
	p.stop(syscall.SIGTERM)
}

// roundOfDispatch returns the span of the one round that gave something, which has all its parts.
func (s *spans) roundOfDispatch(t *testing.T) *tracepb.Span {
	t.Helper()
	var round *tracepb.Span
	eventually(t, "a round with all its parts", func() bool {
		for _, round = range s.named("", "dispatch round") {
			trace := hex.EncodeToString(round.GetTraceId())
			parts := 0
			for _, name := range []string{"transaction claim", "place", "transaction dispatch", "deliver"} {
				for _, part := range s.named(trace, name) {
					if string(part.GetParentSpanId()) == string(round.GetSpanId()) {
						parts++
					}
				}
			}
			if parts == 4 {
				return true
			}
		}
		return false
	})
	return round
}

// TestTracing_OverHTTP: without a protocol the endpoint is one of HTTP, as the standard has it.
func TestTracing_OverHTTP(t *testing.T) {
	t.Parallel()
	got := &spans{}
	receiver := httptest.NewServer(got)
	t.Cleanup(receiver.Close)
	p := launchWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL, "OTEL_SERVICE_NAME=ours"},
		"serve", "--migrate", "--database-url", startPostgres(t).URL(), "--listen", "127.0.0.1:0", "--http-listen", "off").awaitReady()
	tracedWork(t, p)
	p.stop(syscall.SIGTERM) // what was not exported yet is then
	if len(got.named(producersTrace, "leasehold.v1.ExecutionService/EnqueueExecution")) != 1 || len(got.named(producersTrace, "lease")) != 1 {
		t.Error("the spans of the producer's trace did not come")
	}
	if name := got.resource("service.name"); name != "ours" {
		t.Errorf("the spans are of %q", name)
	}
}

// TestTracing_Off: without a receiver the trace context travels all the same. With one that is
// away all goes on.
func TestTracing_Off(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	for name, env := range map[string][]string{
		"no receiver": nil, "receiver is away": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_EXPORTER_OTLP_TIMEOUT=200"},
	} {
		p := launchWith(t, env, "serve", "--migrate", "--database-url", server.URL(), "--listen", "127.0.0.1:0", "--http-listen", "off").awaitReady()
		if lease := tracedWork(t, p); lease["traceparent"] != traceparent {
			t.Errorf("%s: the lease says %v, want %s", name, lease, traceparent)
		}
		if env != nil {
			eventually(t, "a word in the log", func() bool { return strings.Contains(p.stderr.String(), "traces are not exported") })
		}
		p.stop(syscall.SIGTERM)
		if n := strings.Count(p.stderr.String(), "traces are not exported"); n > 1 {
			t.Errorf("%s: it is logged %d times", name, n)
		}
	}
}

// TestTracing_BadSettingsAreTold, before anything is served.
func TestTracing_BadSettingsAreTold(t *testing.T) {
	t.Parallel()
	p := launchWith(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317"},
		"serve", "--migrate", "--database-url", startPostgres(t).URL(), "--listen", "127.0.0.1:0", "--http-listen", "off")
	if status := p.wait(60 * time.Second); status != 1 || !strings.Contains(p.stderr.String(), "must be a URL such as http://collector:4317") {
		t.Errorf("status %d, said %s", status, p.stderr)
	}
}
