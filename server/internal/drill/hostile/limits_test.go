package hostile

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
)

// limitRow is a limit: a request that is just within it, and one that is just beyond.
type limitRow struct {
	name   string
	make   func(n int) proto.Message
	most   int
	field  string // where the refusal points
	reason string // default INVALID_FIELD
}

// TestLimits_OfRequests: everything in a request that a client can make larger has a limit. Just
// within it a request is not refused for that, just beyond it is: INVALID_ARGUMENT, the field is
// named, and nothing changes.
func TestLimits_OfRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.end(t)
	methods := map[protoreflect.FullName]protoreflect.MethodDescriptor{}
	for _, file := range []protoreflect.FileDescriptor{
		leaseholdv1.File_leasehold_v1_execution_service_proto, leaseholdv1.File_leasehold_v1_worker_service_proto, leaseholdv1.File_leasehold_v1_operator_service_proto,
	} {
		for _, m := range methodsOf(file) {
			methods[m.Input().FullName()] = m
		}
	}
	for _, row := range requestLimits() {
		within := w.ask(t, methods, row.make(row.most))
		if f := violated(within); f[row.field] != "" || within.Code() == codes.ResourceExhausted {
			t.Errorf("%s of %d is refused: %v", row.name, row.most, within)
		}
		before := w.digest(t)
		beyond := w.ask(t, methods, row.make(row.most+1))
		reason := row.reason
		if reason == "" {
			reason = "INVALID_FIELD"
		}
		if got := violated(beyond); beyond.Code() != codes.InvalidArgument || got[row.field] != reason {
			t.Errorf("%s of %d: got %v %v, want %s at %s", row.name, row.most+1, beyond.Code(), got, reason, row.field)
		}
		if after := w.digest(t); after != before {
			t.Errorf("%s of %d is refused, and yet something changed", row.name, row.most+1)
		}
	}
}

func (w *world) ask(t *testing.T, methods map[protoreflect.FullName]protoreflect.MethodDescriptor, message proto.Message) *status.Status {
	t.Helper()
	wire, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := w.invoke(methods[message.ProtoReflect().Descriptor().FullName()], wire)
	for _, a := range answers {
		for _, item := range itemsOf(a) {
			if item.Code() == codes.InvalidArgument {
				return item
			}
		}
	}
	return status.Convert(err)
}

// violated are the reasons of an answer's violations, by field.
func violated(st *status.Status) map[string]string {
	fields := map[string]string{}
	for _, d := range st.Details() {
		if bad, isBad := d.(*errdetails.BadRequest); isBad {
			for _, v := range bad.GetFieldViolations() {
				fields[v.GetField()] = v.GetReason()
			}
		}
	}
	return fields
}

func xs(n int) string { return strings.Repeat("x", n) }

// many makes a list of n.
func many[T any](n int, one func(i int) T) []T {
	list := make([]T, n)
	for i := range list {
		list[i] = one(i)
	}
	return list
}

func pairs(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

func fan(parents, children int) []*leaseholdv1.StepSpec {
	names := many(parents, func(i int) string { return fmt.Sprint("p", i) })
	steps := many(parents, func(i int) *leaseholdv1.StepSpec { return &leaseholdv1.StepSpec{Name: names[i], Capability: "run"} })
	for i := range children {
		steps = append(steps, &leaseholdv1.StepSpec{Name: fmt.Sprint("c", i), Capability: "run", DependsOn: names})
	}
	return steps
}

// enqueue is a request that is checked only, with a change.
func enqueueWith(change func(r *leaseholdv1.EnqueueExecutionRequest, s *leaseholdv1.StepSpec, n int)) func(int) proto.Message {
	return func(n int) proto.Message {
		s := &leaseholdv1.StepSpec{Name: "s0", Capability: "run"}
		r := &leaseholdv1.EnqueueExecutionRequest{Name: "job", Steps: []*leaseholdv1.StepSpec{s}, ValidateOnly: true}
		change(r, s, n)
		return r
	}
}

func registerWith(change func(r *leaseholdv1.RegisterWorkerRequest, n int)) func(int) proto.Message {
	return func(n int) proto.Message {
		r := &leaseholdv1.RegisterWorkerRequest{Name: "limits", Capabilities: []string{"run"}}
		change(r, n)
		return r
	}
}

func batchOf(n int, steps func(i int) []*leaseholdv1.StepSpec) *leaseholdv1.BatchEnqueueExecutionsRequest {
	return &leaseholdv1.BatchEnqueueExecutionsRequest{Requests: many(n, func(i int) *leaseholdv1.EnqueueExecutionRequest {
		return &leaseholdv1.EnqueueExecutionRequest{Name: "job", Steps: steps(i), ValidateOnly: true}
	})}
}

func renewal(int) *leaseholdv1.RenewLeaseRequest {
	return &leaseholdv1.RenewLeaseRequest{AttemptId: nobody, LeaseVersion: 1, SessionId: nobody}
}

func reportOf(r *leaseholdv1.ReportAttemptRequest) *leaseholdv1.ReportAttemptRequest {
	r.AttemptId, r.LeaseVersion = nobody, 1
	return r
}

func requestLimits() []limitRow {
	return append(executionLimits(), append(workerLimits(), operatorLimits()...)...)
}

func executionLimits() []limitRow {
	type enqueue = leaseholdv1.EnqueueExecutionRequest
	type spec = leaseholdv1.StepSpec
	one := func(int) []*spec { return fan(1, 0) }
	return []limitRow{
		{"steps", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Steps = fan(n, 0) }), 10_000, "steps", "TOO_MANY_STEPS"},
		{"edges", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Steps = fan(250, 200); more(r, n) }), 50_000, "steps", "TOO_MANY_EDGES"},
		{"requests of a batch", func(n int) proto.Message { return batchOf(n, one) }, 500, "requests", ""},
		{"steps of a batch", func(n int) proto.Message {
			return batchOf(2, func(i int) []*spec { return fan(5000+i*(n-10_000), 0) })
		}, 10_000, "requests", "TOO_MANY_STEPS"},
		{"edges of a batch", func(n int) proto.Message {
			return batchOf(3, func(i int) []*spec { return fan([]int{250, 250, 1}[i], []int{100, 100, n - 50_000}[i]) })
		}, 50_000, "requests", "TOO_MANY_EDGES"},
		{"namespace", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Namespace = xs(n) }), 63, "namespace", ""},
		{"name", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Name = xs(n) }), 256, "name", ""},
		{"idempotency key", enqueueWith(func(r *enqueue, _ *spec, n int) { r.IdempotencyKey = xs(n) }), 256, "idempotency_key", ""},
		{"labels", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Labels = pairs(n) }), 64, "labels", ""},
		{"label's key", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Labels = map[string]string{xs(n): ""} }), 63, `labels["` + xs(64) + `"]`, ""},
		{"label's value", enqueueWith(func(r *enqueue, _ *spec, n int) { r.Labels = map[string]string{"k": xs(n)} }), 256, `labels["k"]`, ""},
		{"step's name", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Name = xs(n) }), 256, "steps[0].name", ""},
		{"capability", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Capability = xs(n) }), 128, "steps[0].capability", ""},
		{"node", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Node = xs(n) }), 256, "steps[0].node", ""},
		{"payload", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Input = drill.Data(make([]byte, n)) }), 1 << 20, "steps[0].input", "PAYLOAD_TOO_LARGE"},
		{"JSON payload", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Input = drill.JSON(`"` + xs(n-2) + `"`) }), 1 << 20, "steps[0].input", "PAYLOAD_TOO_LARGE"},
		{"content type", enqueueWith(func(_ *enqueue, s *spec, n int) { s.Input = &leaseholdv1.Payload{ContentType: xs(n)} }), 256, "steps[0].input.content_type", ""},
		{"error types", enqueueWith(func(_ *enqueue, s *spec, n int) {
			s.RetryPolicy = &leaseholdv1.RetryPolicy{NonRetryableErrorTypes: many(n, func(int) string { return "t" })}
		}), 100, "steps[0].retry_policy.non_retryable_error_types", ""},
		{"error type", enqueueWith(func(_ *enqueue, s *spec, n int) {
			s.RetryPolicy = &leaseholdv1.RetryPolicy{NonRetryableErrorTypes: []string{xs(n)}}
		}), 256, "steps[0].retry_policy.non_retryable_error_types[0]", ""},
		{"attempts", enqueueWith(func(_ *enqueue, s *spec, n int) { s.RetryPolicy = &leaseholdv1.RetryPolicy{MaximumAttempts: int32(n)} }), 1_000_000, "steps[0].retry_policy.maximum_attempts", ""},
		{"steps to read", func(n int) proto.Message {
			return &leaseholdv1.GetExecutionRequest{ExecutionId: nobody, StepNames: many(n, func(int) string { return "s" })}
		}, 1000, "step_names", ""},
		{"steps to retry", func(n int) proto.Message {
			return &leaseholdv1.RetryExecutionRequest{ExecutionId: nobody, StepNames: many(n, func(int) string { return "s" })}
		}, 1000, "step_names", ""},
		{"page", func(n int) proto.Message { return &leaseholdv1.ListExecutionsRequest{PageSize: int32(n)} }, 1000, "page_size", ""},
		{"states", func(n int) proto.Message {
			return &leaseholdv1.ListExecutionsRequest{States: many(n, func(int) leaseholdv1.ExecutionState { return 1 })}
		}, 16, "states", ""},
		{"label selector", func(n int) proto.Message { return &leaseholdv1.ListExecutionsRequest{LabelSelector: pairs(n)} }, 64, "label_selector", ""},
		{"reason of a cancel", func(n int) proto.Message {
			return &leaseholdv1.CancelExecutionRequest{ExecutionId: nobody, Reason: xs(n)}
		}, 1024, "reason", ""},
		{"request id of a retry", func(n int) proto.Message {
			return &leaseholdv1.RetryExecutionRequest{ExecutionId: nobody, RequestId: xs(n)}
		}, 128, "request_id", ""},
	}
}

// more adds an edge for what is beyond the limit.
func more(r *leaseholdv1.EnqueueExecutionRequest, n int) {
	for i := range n - 50_000 {
		r.Steps = append(r.Steps, &leaseholdv1.StepSpec{Name: fmt.Sprint("more", i), Capability: "run", DependsOn: []string{"p0"}})
	}
}

func workerLimits() []limitRow {
	type register = leaseholdv1.RegisterWorkerRequest
	failed := func(f *leaseholdv1.Failure) proto.Message { return reportOf(drill.Failed(f)) }
	return []limitRow{
		{"worker's name", registerWith(func(r *register, n int) { r.Name = xs(n) }), 256, "name", ""},
		{"worker's node", registerWith(func(r *register, n int) { r.Node = xs(n) }), 256, "node", ""},
		{"worker's version", registerWith(func(r *register, n int) { r.Version = xs(n) }), 256, "version", ""},
		{"worker's labels", registerWith(func(r *register, n int) { r.Labels = pairs(n) }), 64, "labels", ""},
		{"worker's capabilities", registerWith(func(r *register, n int) {
			r.Capabilities = many(n, func(i int) string { return fmt.Sprint("c", i) })
		}), 256, "capabilities", ""},
		{"worker's capability", registerWith(func(r *register, n int) { r.Capabilities = []string{xs(n)} }), 128, "capabilities[0]", ""},
		{"slots", registerWith(func(r *register, n int) { r.Slots = int32(n) }), 10_000, "slots", ""},
		{"request id of a registration", registerWith(func(r *register, n int) { r.RequestId = xs(n) }), 128, "request_id", ""},
		{"leases of a poll", func(n int) proto.Message {
			return &leaseholdv1.LeaseAttemptRequest{WorkerId: nobody, SessionId: nobody, MaxLeases: int32(n)}
		}, 1000, "max_leases", ""},
		{"request id of a poll", func(n int) proto.Message {
			return &leaseholdv1.LeaseAttemptRequest{WorkerId: nobody, SessionId: nobody, RequestId: xs(n)}
		}, 128, "request_id", ""},
		{"renewals", func(n int) proto.Message { return &leaseholdv1.BatchRenewLeasesRequest{Renewals: many(n, renewal)} }, 1000, "renewals", ""},
		{"checkpoint", func(n int) proto.Message {
			r := renewal(0)
			r.Checkpoint = drill.Data(make([]byte, n))
			return r
		}, 1 << 20, "checkpoint", "PAYLOAD_TOO_LARGE"},
		{"checkpoint in a batch", func(n int) proto.Message {
			r := renewal(0)
			r.Checkpoint = drill.Data(make([]byte, n))
			return &leaseholdv1.BatchRenewLeasesRequest{Renewals: []*leaseholdv1.RenewLeaseRequest{r}}
		}, 1 << 20, "checkpoint", "PAYLOAD_TOO_LARGE"},
		{"reports", func(n int) proto.Message {
			return &leaseholdv1.BatchReportAttemptsRequest{Reports: many(n, func(int) *leaseholdv1.ReportAttemptRequest { return reportOf(drill.Canceled()) })}
		}, 500, "reports", ""},
		{"output", func(n int) proto.Message { return reportOf(drill.Succeeded(drill.Data(make([]byte, n)))) }, 1 << 20, "succeeded.output", "PAYLOAD_TOO_LARGE"},
		{"details of a failure", func(n int) proto.Message { return failed(&leaseholdv1.Failure{Details: drill.Data(make([]byte, n))}) }, 64 << 10, "failed.failure.details", "PAYLOAD_TOO_LARGE"},
	}
}

func operatorLimits() []limitRow {
	id := func(int) string { return nobody }
	return []limitRow{
		{"page of workers", func(n int) proto.Message { return &leaseholdv1.ListWorkersRequest{PageSize: int32(n)} }, 1000, "page_size", ""},
		{"page of capabilities", func(n int) proto.Message { return &leaseholdv1.ListCapabilitiesRequest{PageSize: int32(n)} }, 1000, "page_size", ""},
		{"page of events", func(n int) proto.Message { return &leaseholdv1.ListOutboxEventsRequest{PageSize: int32(n)} }, 1000, "page_size", ""},
		{"paused capability", func(n int) proto.Message { return &leaseholdv1.PauseCapabilityRequest{Capability: xs(n)} }, 128, "capability", ""},
		{"reason of a pause", func(n int) proto.Message {
			return &leaseholdv1.PauseCapabilityRequest{Capability: "run", Reason: xs(n)}
		}, 1024, "reason", ""},
		{"drained node", func(n int) proto.Message {
			return &leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: xs(n)}}
		}, 256, "node", ""},
		{"drained version", func(n int) proto.Message {
			return &leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_Version{Version: xs(n)}}
		}, 256, "version", ""},
		{"reason of a drain", func(n int) proto.Message {
			return &leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: "n"}, Reason: xs(n)}
		}, 1024, "reason", ""},
		{"reason of a revocation", func(n int) proto.Message {
			return &leaseholdv1.RevokeLeaseRequest{AttemptId: nobody, LeaseVersion: 1, Reason: xs(n)}
		}, 1024, "reason", ""},
		{"reason of a termination", func(n int) proto.Message {
			return &leaseholdv1.TerminateExecutionRequest{ExecutionId: nobody, Reason: xs(n)}
		}, 1024, "reason", ""},
		{"events to redrive", func(n int) proto.Message { return &leaseholdv1.RedriveOutboxEventsRequest{EventIds: many(n, id)} }, 1000, "event_ids", ""},
		{"events to skip", func(n int) proto.Message { return &leaseholdv1.SkipOutboxEventsRequest{EventIds: many(n, id)} }, 1000, "event_ids", ""},
	}
}

// TestLimits_OfMessages: a message of more than 4 MiB is refused, and the server takes the next.
func TestLimits_OfMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.end(t)
	methods := methodsOf(leaseholdv1.File_leasehold_v1_execution_service_proto)
	for n, want := range map[int]codes.Code{4 << 20: codes.InvalidArgument, 4<<20 + 1: codes.ResourceExhausted, 64 << 20: codes.ResourceExhausted} {
		if _, err := w.invoke(methods[0], make([]byte, n)); status.Code(err) != want {
			t.Errorf("%d bytes: got %v, want %v", n, err, want)
		}
	}
	if _, err := w.cluster.Client(0).Executions.ListExecutions(context.Background(), &leaseholdv1.ListExecutionsRequest{}); err != nil {
		t.Error(err)
	}
}
