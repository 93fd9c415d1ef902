package grpcapi

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestDecodeSpec_Defaults(t *testing.T) {
	t.Parallel()
	want := &task.ExecutionSpec{
		Namespace: "default", Name: "report", CancelGrace: 30 * time.Second,
		Steps: []task.StepSpec{{
			Name: "a", Capability: "example.echo", StartToClose: time.Hour,
			Retry: task.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 100 * time.Second, MaximumAttempts: 3, Jitter: 0.2},
		}},
	}
	if diff := cmp.Diff(want, decodeSpec(t.Context(), oneStep())); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	empty := oneStep()
	empty.Steps[0].RetryPolicy = &leaseholdv1.RetryPolicy{}
	if diff := cmp.Diff(want, decodeSpec(t.Context(), empty)); diff != "" {
		t.Errorf("an empty policy: -want +got\n%s", diff)
	}
}

func TestDecodeSpec_Everything(t *testing.T) {
	t.Parallel()
	start := time.Date(2030, 1, 2, 3, 4, 5, 123456789, time.UTC)
	kept := start.Truncate(time.Microsecond)
	request := &leaseholdv1.EnqueueExecutionRequest{
		Namespace: "n", IdempotencyKey: "k", Name: "e", Labels: map[string]string{"a": "b"},
		Start:   &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: timestamppb.New(start)},
		Timeout: durationpb.New(1), CancelGrace: durationpb.New(0), FailFast: true, Priority: 7,
		Steps: []*leaseholdv1.StepSpec{
			{
				Name: "a", Capability: "c", Node: "n1", Input: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: []byte{0, 255}}, ContentType: "x/y"},
				ScheduleToStartTimeout: durationpb.New(1), ScheduleToCloseTimeout: durationpb.New(1500), StartToCloseTimeout: durationpb.New(time.Minute),
				StartDelay: durationpb.New(2 * time.Second), Priority: proto.Int32(0),
				RetryPolicy: &leaseholdv1.RetryPolicy{
					InitialInterval: durationpb.New(0), BackoffCoefficient: 1.5, MaximumAttempts: -1, Jitter: proto.Float64(0), NonRetryableErrorTypes: []string{"T"},
				},
			},
			{Name: "b", Capability: "c", DependsOn: []string{"a"}, RetryPolicy: &leaseholdv1.RetryPolicy{
				InitialInterval: durationpb.New(task.MaxDuration), MaximumAttempts: 1,
			}},
			{Name: "c", Capability: "c", Priority: proto.Int32(-3), RetryPolicy: &leaseholdv1.RetryPolicy{
				InitialInterval: durationpb.New(3 * time.Second), MaximumInterval: durationpb.New(0),
			}},
		},
	}
	want := &task.ExecutionSpec{
		Namespace: "n", IdempotencyKey: "k", Name: "e", Labels: map[string]string{"a": "b"}, StartAt: &kept,
		Timeout: time.Microsecond, FailFast: true, Priority: 7,
		Steps: []task.StepSpec{
			{
				Name: "a", Capability: "c", Node: "n1", Input: &task.Payload{Body: []byte{0, 255}, ContentType: "x/y"},
				ScheduleToStart: time.Microsecond, ScheduleToClose: time.Microsecond, StartToClose: time.Minute, StartDelay: 2 * time.Second,
				Retry: task.RetryPolicy{BackoffCoefficient: 1.5, MaximumAttempts: task.Unlimited, NonRetryableTypes: []string{"T"}},
			},
			{Name: "b", Capability: "c", DependsOn: []string{"a"}, StartToClose: time.Hour, Priority: 7, Retry: task.RetryPolicy{
				InitialInterval: task.MaxDuration, MaximumInterval: task.MaxDuration, BackoffCoefficient: 2, MaximumAttempts: 1, Jitter: 0.2,
			}},
			{Name: "c", Capability: "c", StartToClose: time.Hour, Priority: -3, Retry: task.RetryPolicy{
				InitialInterval: 3 * time.Second, BackoffCoefficient: 2, MaximumAttempts: 3, Jitter: 0.2,
			}},
		},
	}
	if diff := cmp.Diff(want, decodeSpec(t.Context(), request)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestDecodePoll(t *testing.T) {
	t.Parallel()
	now := time.Now()
	short, cancel := context.WithDeadline(t.Context(), now.Add(5*time.Second))
	defer cancel()
	shorter, cancel := context.WithDeadline(t.Context(), now.Add(500*time.Millisecond))
	defer cancel()
	for _, tc := range []struct {
		name        string
		ctx         context.Context
		wait, lease *durationpb.Duration
		max         int32
		wantWait    time.Duration
		wantLease   time.Duration
		wantMax     int
	}{
		{"defaults", t.Context(), nil, nil, 0, 20 * time.Second, 30 * time.Second, 1},
		{"at once", t.Context(), durationpb.New(0), durationpb.New(0), 5, 0, 30 * time.Second, 5},
		{"too long", t.Context(), durationpb.New(time.Hour), durationpb.New(24 * time.Hour), 1000, 55 * time.Second, time.Hour, 1000},
		{"too short", t.Context(), durationpb.New(time.Millisecond), durationpb.New(time.Millisecond), 1, time.Millisecond, time.Second, 1},
		{"cut by the call's deadline", short, nil, nil, 1, 4 * time.Second, 30 * time.Second, 1},
		{"the deadline is near", shorter, nil, nil, 1, 0, 30 * time.Second, 1},
		{"beyond int64", t.Context(), &durationpb.Duration{Seconds: 315576000000}, &durationpb.Duration{Seconds: 315576000000}, 1, 55 * time.Second, time.Hour, 1},
	} {
		got := decodePoll(tc.ctx, &leaseholdv1.LeaseAttemptRequest{
			WorkerId: someID, SessionId: otherID, RequestId: "r", WaitTimeout: tc.wait, LeaseDuration: tc.lease, MaxLeases: tc.max,
		}, now)
		want := scheduler.Poll{
			WorkerID: uuid.MustParse(someID), SessionID: uuid.MustParse(otherID), RequestID: "r",
			MaxLeases: tc.wantMax, Wait: tc.wantWait, Duration: tc.wantLease, Received: now,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, diff)
		}
	}
}

// TestDecodeReport_CleansText: what cannot be stored is replaced, never refused.
func TestDecodeReport_CleansText(t *testing.T) {
	t.Parallel()
	var got []scheduler.Report
	var renewed []scheduler.Renewal
	r := newRig(t, &fakeApp{
		report: func(_ context.Context, list []scheduler.Report) []scheduler.Result[scheduler.Reported] {
			got = append(got, list...)
			return make([]scheduler.Result[scheduler.Reported], len(list))
		},
		renew: func(_ context.Context, list []scheduler.Renewal) []scheduler.Result[scheduler.Renewed] {
			renewed = append(renewed, list...)
			return make([]scheduler.Result[scheduler.Renewed], len(list))
		},
	}, Config{})
	released := report()
	released.Outcome = &leaseholdv1.ReportAttemptRequest_Released_{Released: &leaseholdv1.ReportAttemptRequest_Released{
		Reason: "\x00" + strings.Repeat("ä", 1000), NotBeforeDelay: durationpb.New(1500),
	}}
	canceled := report()
	canceled.Outcome = &leaseholdv1.ReportAttemptRequest_Canceled_{Canceled: &leaseholdv1.ReportAttemptRequest_Canceled{}}
	for _, request := range []*leaseholdv1.ReportAttemptRequest{
		failed(&leaseholdv1.Failure{Type: "T\x00" + strings.Repeat("t", 300), Message: "a\x00b" + strings.Repeat("ä", 5000), NextRetryDelay: durationpb.New(0), NonRetryable: true}),
		failed(nil), released, canceled,
	} {
		if _, err := r.workers.ReportAttempt(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	progress := renewal()
	progress.ProgressMessage = "50\x00%"
	if _, err := r.workers.RenewLease(t.Context(), progress); err != nil {
		t.Fatal(err)
	}
	f := got[0].Outcome.Failure
	if !strings.HasPrefix(f.Type, "T\uFFFDt") || len(f.Type) > task.MaxFailureType || !strings.HasPrefix(f.Message, "a\uFFFDb") || len(f.Message) > task.MaxFailureMessage {
		t.Errorf("failure %q %q", f.Type, f.Message)
	}
	if f.NextRetryDelay == nil || *f.NextRetryDelay != 0 || !f.NonRetryable {
		t.Errorf("zero is not missing: %v", f)
	}
	if o := got[1].Outcome; o.State != task.AttemptFailed || o.Failure == nil || o.Failure.NextRetryDelay != nil {
		t.Errorf("got %+v", o)
	}
	if o := got[2].Outcome; o.State != task.AttemptReleased || !strings.HasPrefix(o.Reason, "\uFFFDä") || len(o.Reason) > task.MaxReason || o.NotBefore != time.Microsecond {
		t.Errorf("got %+v", o)
	}
	if o := got[3].Outcome; o.State != task.AttemptCanceled {
		t.Errorf("got %+v", o)
	}
	if m := renewed[0].ProgressMessage; m != "50\uFFFD%" || renewed[0].Duration != 30*time.Second {
		t.Errorf("got %q", m)
	}
}

func TestPayload_KeptByteForByte(t *testing.T) {
	t.Parallel()
	const text = "{\"a\\u0000b\": 1.000000000000000000001e+0,\t\"lone\": \"\\ud800\", \"a\\u0000b\":2 }\n"
	var spec *task.ExecutionSpec
	r := newRig(t, &fakeApp{
		enqueue: func(_ context.Context, s *task.ExecutionSpec) (scheduler.Enqueued, error) {
			spec = s
			return scheduler.Enqueued{}, nil
		},
		get: func(context.Context, scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
			return &scheduler.ExecutionView{Steps: []scheduler.StepView{{Input: spec.Steps[0].Input}}}, false, nil
		},
	}, Config{})
	request := oneStep()
	request.Steps[0].Input = jsonPayload(text)
	if _, err := r.executions.EnqueueExecution(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	answer, err := r.executions.GetExecution(t.Context(), &leaseholdv1.GetExecutionRequest{ExecutionId: someID, IncludePayloads: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.GetExecution().GetSteps()[0].GetInput().GetJson(); got != text {
		t.Errorf("got %q, want %q", got, text)
	}
}

func TestDecodeList(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 1, 0, 0, 0, 1500, time.UTC)
	q, err := decodeList(&leaseholdv1.ListExecutionsRequest{
		States:       []leaseholdv1.ExecutionState{leaseholdv1.ExecutionState_EXECUTION_STATE_CANCELING},
		CreatedAfter: timestamppb.New(at), CreatedBefore: timestamppb.New(time.Time{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := scheduler.ListQuery{
		Namespace: "default", States: []task.ExecutionState{task.ExecutionCanceling}, Limit: 50,
		CreatedAfter: at.Truncate(time.Microsecond).Add(time.Microsecond), CreatedBefore: time.Time{}.Add(time.Microsecond),
	}
	if diff := cmp.Diff(want, q); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestDecodeRegistration_Defaults(t *testing.T) {
	t.Parallel()
	want := scheduler.Registration{Namespace: "default", Slots: 1}
	if diff := cmp.Diff(want, decodeRegistration(&leaseholdv1.RegisterWorkerRequest{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestTraceContext(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tc := range []struct {
		name string
		sent metadata.MD
		want map[string]string
	}{
		{"none", nil, nil},
		{"all", metadata.Pairs("traceparent", parent, "tracestate", "a=1", "tracestate", "b=2", "baggage", "k=v"),
			map[string]string{"traceparent": parent, "tracestate": "a=1,b=2", "baggage": "k=v"}},
		{"state without parent", metadata.Pairs("tracestate", "a=1"), nil},
		{"two parents", metadata.Pairs("traceparent", parent, "traceparent", parent), nil},
		{"all zero", metadata.Pairs("traceparent", "00-00000000000000000000000000000000-b7ad6b7169203331-01"), nil},
		{"upper case", metadata.Pairs("traceparent", strings.ToUpper(parent)), nil},
		{"longer version 00", metadata.Pairs("traceparent", parent+"-x"), nil},
		{"later version", metadata.Pairs("traceparent", "01"+parent[2:]+"-x"), map[string]string{"traceparent": "01" + parent[2:] + "-x"}},
		{"not text", metadata.Pairs("traceparent", parent, "baggage", "k=\x00"), map[string]string{"traceparent": parent}},
		{"too long", metadata.Pairs("traceparent", parent, "tracestate", strings.Repeat("x", 513), "baggage", strings.Repeat("x", 8193)), map[string]string{"traceparent": parent}},
	} {
		got := traceContext(metadata.NewIncomingContext(t.Context(), tc.sent))
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, diff)
		}
	}
}

func TestTimeout_NeverBecomesNone(t *testing.T) {
	t.Parallel()
	if got := timeout(durationpb.New(1), 0); got != time.Microsecond {
		t.Errorf("got %v", got)
	}
	if got := duration(&durationpb.Duration{Seconds: 315576000000}, 0); got != time.Duration(math.MaxInt64).Truncate(time.Microsecond) {
		t.Errorf("got %v", got)
	}
}
