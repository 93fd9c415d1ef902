package grpcapi

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestValidate_ReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{MaxPayloadBytes: 16})
	request := &leaseholdv1.EnqueueExecutionRequest{
		Name: strings.Repeat("a\x00", 200), Namespace: "no spaces", Priority: 101,
		Labels: map[string]string{"k": "v\x00"},
		Start:  &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}},
		Steps: []*leaseholdv1.StepSpec{
			{Name: "a", Capability: "echo", DependsOn: []string{"b", "nobody"}, Input: jsonPayload(`{"a":`)},
			{Name: "b", Capability: "no spaces", DependsOn: []string{"b", "a", "a"}},
			{Name: "a", Capability: "echo", Input: jsonPayload(`"this is too long"`)},
			{Name: "c", Capability: "echo", StartToCloseTimeout: &durationpb.Duration{}, RetryPolicy: &leaseholdv1.RetryPolicy{
				Jitter: proto.Float64(math.NaN()), BackoffCoefficient: math.NaN(), MaximumAttempts: -2,
				InitialInterval: &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -1},
			}},
		},
	}
	want := map[string]string{
		"name": "INVALID_FIELD", "namespace": "INVALID_FIELD", "priority": "INVALID_FIELD", `labels["k"]`: "INVALID_FIELD",
		"start_at":               "INVALID_FIELD",
		"steps[0].depends_on":    "STEP_CYCLE", // a waits for b, and b for a
		"steps[0].depends_on[1]": "STEP_UNKNOWN_PARENT", "steps[0].input": "INVALID_JSON",
		"steps[1].capability": "INVALID_FIELD", "steps[1].depends_on[0]": "STEP_SELF_PARENT", "steps[1].depends_on[2]": "STEP_DUPLICATE_PARENT",
		"steps[2].name": "STEP_DUPLICATE_NAME", "steps[2].input": "PAYLOAD_TOO_LARGE",
		"steps[3].start_to_close_timeout": "INVALID_FIELD", "steps[3].retry_policy.jitter": "INVALID_FIELD",
		"steps[3].retry_policy.backoff_coefficient": "INVALID_FIELD", "steps[3].retry_policy.maximum_attempts": "INVALID_FIELD",
		"steps[3].retry_policy.initial_interval": "INVALID_FIELD",
	}
	_, err := r.executions.EnqueueExecution(t.Context(), request)
	got := refusalOf(t, err)
	if got.code != codes.InvalidArgument || !maps.Equal(got.fields, want) || got.count != len(want) {
		t.Errorf("got %v\n%v\nwant\n%v", got.code, sorted(got.fields), sorted(want))
	}

	inBatch := map[string]string{}
	for k, v := range want {
		inBatch["requests[1]."+k] = v
	}
	_, err = r.executions.BatchEnqueueExecutions(t.Context(), &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{oneStep(), request},
	})
	if got := refusalOf(t, err); !maps.Equal(got.fields, inBatch) {
		t.Errorf("in a batch: got\n%v\nwant\n%v", sorted(got.fields), sorted(inBatch))
	}
}

func sorted(m map[string]string) string {
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+": "+m[k])
	}
	return strings.Join(lines, "\n")
}

// badCall is a call with one thing wrong.
type badCall struct {
	name          string
	call          func(context.Context) error
	field, reason string
}

func badCalls(r *rig) []badCall {
	with := func(change func(*leaseholdv1.EnqueueExecutionRequest)) *leaseholdv1.EnqueueExecutionRequest {
		request := oneStep()
		change(request)
		return request
	}
	enqueue := func(request *leaseholdv1.EnqueueExecutionRequest) func(context.Context) error {
		return func(ctx context.Context) error { _, err := r.executions.EnqueueExecution(ctx, request); return err }
	}
	return []badCall{
		{"no steps", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) { r.Steps = nil })), "steps", "NO_STEPS"},
		{"cycle", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) {
			r.Steps = []*leaseholdv1.StepSpec{{Name: "a", Capability: "x", DependsOn: []string{"b"}}, {Name: "b", Capability: "x", DependsOn: []string{"a"}}}
		})), "steps[0].depends_on", "STEP_CYCLE"},
		{"NUL in a step's name", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) { r.Steps[0].Name = "a\x00" })), "steps[0].name", "INVALID_FIELD"},
		{"NUL in a key", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) { r.IdempotencyKey = "\x00" })), "idempotency_key", "INVALID_FIELD"},
		{"empty JSON", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) { r.Steps[0].Input = jsonPayload("") })), "steps[0].input", "INVALID_JSON"},
		{"start far away", enqueue(with(func(r *leaseholdv1.EnqueueExecutionRequest) {
			r.Start = &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: timestamppb.New(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))}
		})), "start_at", "INVALID_FIELD"},
		{"not a UUID", func(ctx context.Context) error {
			_, err := r.executions.CancelExecution(ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: "x"})
			return err
		}, "execution_id", "INVALID_FIELD"},
		{"no id", func(ctx context.Context) error {
			_, err := r.executions.ListTimeline(ctx, &leaseholdv1.ListTimelineRequest{})
			return err
		}, "execution_id", "INVALID_FIELD"},
		{"id and key", func(ctx context.Context) error {
			_, err := r.executions.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: someID, IdempotencyKey: "k"})
			return err
		}, "execution_id", "INVALID_FIELD"},
		{"no outcome", func(ctx context.Context) error {
			_, err := r.workers.ReportAttempt(ctx, &leaseholdv1.ReportAttemptRequest{AttemptId: someID, LeaseVersion: 1})
			return err
		}, "outcome", "INVALID_FIELD"},
		{"unknown state", func(ctx context.Context) error {
			_, err := r.executions.ListExecutions(ctx, &leaseholdv1.ListExecutionsRequest{States: []leaseholdv1.ExecutionState{99}})
			return err
		}, "states[0]", "INVALID_FIELD"},
		{"instant out of range", func(ctx context.Context) error {
			_, err := r.executions.ListExecutions(ctx, &leaseholdv1.ListExecutionsRequest{CreatedAfter: &timestamppb.Timestamp{Nanos: -5}})
			return err
		}, "created_after", "INVALID_FIELD"},
		{"duration out of range", func(ctx context.Context) error {
			request := poll()
			request.LeaseDuration = &durationpb.Duration{Seconds: 1, Nanos: -1}
			_, err := r.workers.LeaseAttempt(ctx, request)
			return err
		}, "lease_duration", "INVALID_FIELD"},
		{"empty batch", func(ctx context.Context) error {
			_, err := r.workers.BatchRenewLeases(ctx, &leaseholdv1.BatchRenewLeasesRequest{})
			return err
		}, "renewals", "INVALID_FIELD"},
		{"batch too long", func(ctx context.Context) error {
			_, err := r.workers.BatchReportAttempts(ctx, &leaseholdv1.BatchReportAttemptsRequest{Reports: make([]*leaseholdv1.ReportAttemptRequest, 501)})
			return err
		}, "reports", "INVALID_FIELD"},
	}
}

func TestValidate_OneViolation(t *testing.T) {
	t.Parallel()
	for _, tc := range badCalls(newRig(t, &fakeApp{}, Config{})) {
		t.Run(tc.name, func(t *testing.T) {
			got := refusalOf(t, tc.call(t.Context()))
			if got.code != codes.InvalidArgument || got.info.GetReason() != tc.reason || len(got.fields) != 1 || got.fields[tc.field] != tc.reason {
				t.Errorf("got %v %s %v, want %s %s", got.code, got.info.GetReason(), got.fields, tc.field, tc.reason)
			}
		})
	}
}

// TestPayload_Limits reports outputs around the limit, alone and in a batch.
func TestPayload_Limits(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	r := newRig(t, &fakeApp{}, Config{})
	for _, size := range []int{limit - 1, limit, limit + 1, 2 * limit} {
		for name, payload := range map[string]*leaseholdv1.Payload{
			"json": jsonPayload(`"` + strings.Repeat("x", size-2) + `"`),
			"data": {Body: &leaseholdv1.Payload_Data{Data: make([]byte, size)}},
		} {
			request := report()
			request.GetSucceeded().Output = payload
			_, err := r.workers.ReportAttempt(t.Context(), request)
			checkLimit(t, fmt.Sprint(name, size), err, size > limit, "succeeded.output", limit)
			request = report()
			request.Checkpoint = payload
			_, err = r.workers.ReportAttempt(t.Context(), request)
			checkLimit(t, fmt.Sprint(name, size), err, size > limit, "checkpoint", limit)
		}
	}
	for _, size := range []int{task.MaxFailureDetails - 1, task.MaxFailureDetails, task.MaxFailureDetails + 1} {
		request := failed(&leaseholdv1.Failure{Details: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, size)}}})
		_, err := r.workers.ReportAttempt(t.Context(), request)
		checkLimit(t, fmt.Sprint("details", size), err, size > task.MaxFailureDetails, "failed.failure.details", task.MaxFailureDetails)
	}
}

func checkLimit(t *testing.T, name string, err error, over bool, field string, limit int) {
	t.Helper()
	if !over {
		if err != nil {
			t.Errorf("%s %s: %v", name, field, err)
		}
		return
	}
	got := refusalOf(t, err)
	if got.code != codes.InvalidArgument || got.info.GetReason() != "PAYLOAD_TOO_LARGE" || got.fields[field] != "PAYLOAD_TOO_LARGE" ||
		got.info.GetMetadata()["limit_bytes"] != fmt.Sprint(limit) {
		t.Errorf("%s %s: got %v %v %v", name, field, got.code, got.info, got.fields)
	}
}

func TestMessageLimit_IsGRPCsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{}, Config{})
	request := report()
	request.GetSucceeded().Output = &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 5<<20)}}
	_, err := r.workers.ReportAttempt(t.Context(), request)
	if got := refusalOf(t, err); got.code != codes.ResourceExhausted {
		t.Errorf("got %v", got.code)
	}
}

func failed(f *leaseholdv1.Failure) *leaseholdv1.ReportAttemptRequest {
	r := report()
	r.Outcome = &leaseholdv1.ReportAttemptRequest_Failed_{Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: f}}
	return r
}

// TestBatch_BadItemsFailAlone mixes bad and good items, and items that the application refuses.
func TestBatch_BadItemsFailAlone(t *testing.T) {
	t.Parallel()
	var reported []scheduler.Report
	var renewed []scheduler.Renewal
	r := newRig(t, &fakeApp{
		report: func(_ context.Context, list []scheduler.Report) []scheduler.Result[scheduler.Reported] {
			reported = list
			results := make([]scheduler.Result[scheduler.Reported], len(list))
			results[1].Err = &scheduler.RefusedError{Reason: task.ReasonLeaseExpired}
			results[0].Value.Replayed = true
			return results
		},
		renew: func(_ context.Context, list []scheduler.Renewal) []scheduler.Result[scheduler.Renewed] {
			renewed = list
			return []scheduler.Result[scheduler.Renewed]{{Value: scheduler.Renewed{Remaining: 30 * time.Second}}}
		},
	}, Config{})
	bad, refused := report(), report()
	bad.AttemptId, bad.Checkpoint = "x", jsonPayload("{")
	refused.LeaseVersion, refused.AttemptId = 8, uuid.NewString()
	answer, err := r.workers.BatchReportAttempts(t.Context(), &leaseholdv1.BatchReportAttemptsRequest{
		Reports: []*leaseholdv1.ReportAttemptRequest{bad, report(), bad, refused, report()},
	})
	if err != nil {
		t.Fatal(err)
	}
	results := answer.GetResults()
	if len(results) != 5 || !results[1].GetResponse().GetReplayed() || len(reported) != 2 || reported[1].LeaseVersion != 8 {
		t.Fatalf("results %v, reported %v", results, reported)
	}
	for _, i := range []int{0, 2} {
		got := refusalOfItem(results[i].GetError())
		if got.code != codes.InvalidArgument || got.fields["attempt_id"] != "INVALID_FIELD" || got.fields["checkpoint"] != "INVALID_JSON" {
			t.Errorf("item %d: %v", i, got)
		}
	}
	if got := refusalOfItem(results[3].GetError()); got.code != codes.FailedPrecondition || got.info.GetReason() != "LEASE_EXPIRED" {
		t.Errorf("item 3: %v", got)
	}
	if got := refusalOfItem(results[4].GetError()); got.code != codes.InvalidArgument || got.fields["attempt_id"] != "INVALID_FIELD" {
		t.Errorf("an attempt that is there twice: %v", got)
	}

	badRenewal := renewal()
	badRenewal.Progress = ptr(2.0)
	kept, err := r.workers.BatchRenewLeases(t.Context(), &leaseholdv1.BatchRenewLeasesRequest{Renewals: []*leaseholdv1.RenewLeaseRequest{badRenewal, renewal()}})
	if err != nil {
		t.Fatal(err)
	}
	if got := refusalOfItem(kept.GetResults()[0].GetError()); got.fields["progress"] != "INVALID_FIELD" {
		t.Errorf("got %v", got)
	}
	if got := kept.GetResults()[1].GetResponse(); got.GetLeaseDuration().AsDuration() != 30*time.Second || len(renewed) != 1 {
		t.Errorf("got %v of %v", got, renewed)
	}
}

// TestValidate_LargestGraphIsCheap guards against rules whose cost grows faster than a request:
// ten times the steps cost about ten times as much, never a hundred times.
func TestValidate_LargestGraphIsCheap(t *testing.T) {
	t.Parallel()
	check, err := newValidator(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	cost := func(steps int) time.Duration {
		request := &leaseholdv1.EnqueueExecutionRequest{Name: "large"}
		for i := range steps {
			step := &leaseholdv1.StepSpec{
				Name: fmt.Sprint("step-", i), Capability: "example.echo", Input: jsonPayload(`{}`),
				StartToCloseTimeout: durationpb.New(time.Minute), RetryPolicy: &leaseholdv1.RetryPolicy{BackoffCoefficient: 2, InitialInterval: durationpb.New(time.Second)},
			}
			for j := max(0, i-5); j < i; j++ {
				step.DependsOn = append(step.DependsOn, fmt.Sprint("step-", j))
			}
			request.Steps = append(request.Steps, step)
		}
		start := time.Now()
		if err := check.Validate(request); err != nil {
			t.Fatal(err)
		}
		return time.Since(start)
	}
	small, large := max(cost(task.MaxSteps/10), cost(task.MaxSteps/10)), cost(task.MaxSteps)
	if large > 40*small {
		t.Errorf("%d steps took %v, a tenth of them %v", task.MaxSteps, large, small)
	} else {
		t.Log(large, small)
	}
}
