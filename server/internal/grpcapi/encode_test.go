package grpcapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// TestEncode_EveryStateHasItsName guards the names that domain and wire share.
func TestEncode_EveryStateHasItsName(t *testing.T) {
	t.Parallel()
	for _, s := range []task.ExecutionState{
		task.ExecutionCreated, task.ExecutionQueued, task.ExecutionRunning, task.ExecutionCanceling,
		task.ExecutionSucceeded, task.ExecutionFailed, task.ExecutionCanceled,
	} {
		if got := encodeExecutionState(s); got == 0 || decodeExecutionState(got) != s {
			t.Errorf("%s became %v", s, got)
		}
	}
	for _, s := range []task.StepState{
		task.StepBlocked, task.StepReady, task.StepRunning, task.StepSucceeded, task.StepFailed, task.StepCanceled, task.StepSkipped,
	} {
		if encodeStepState(s) == 0 {
			t.Errorf("%s has no name", s)
		}
	}
	for _, s := range []task.AttemptState{
		task.AttemptLeased, task.AttemptSucceeded, task.AttemptFailed, task.AttemptTimedOut,
		task.AttemptLost, task.AttemptReleased, task.AttemptCanceled,
	} {
		if encodeAttemptState(s) == 0 {
			t.Errorf("%s has no name", s)
		}
	}
	for _, s := range []task.Stage{task.StageEnqueue, task.StageScheduling, task.StageExecution, task.StageRecovery, task.StageControl} {
		if encodeStage(s) == 0 {
			t.Errorf("%s has no name", s)
		}
	}
}

func TestEncodeExecution(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { t := now.Add(d); return &t }
	worker := uuid.MustParse(otherID)
	view := &scheduler.ExecutionView{
		ExecutionData: task.ExecutionData{
			ID: uuid.MustParse(someID), Namespace: "n", Name: "e", State: task.ExecutionCanceling, Round: 2, FailFast: true,
			CreatedAt: *at(-time.Hour), DueAt: *at(-time.Minute), StartedAt: at(-time.Second), Deadline: at(time.Minute),
			CancelDeadline: at(-time.Second), CancelReason: "why", Revision: 9, StepCount: 1,
		},
		IdempotencyKey: "k", Priority: -5, Labels: map[string]string{"a": "b"}, Now: now,
		Steps: []scheduler.StepView{{
			ID: worker, Ordinal: 0, Name: "s", Capability: "c", Node: "n1", Priority: 3, State: task.StepReady, DependsOn: []string{"p"},
			AttemptCount: 2, Counted: 1, NextDue: at(time.Second), StoppedBecause: "",
			Failure: &task.Failure{Type: "T", Message: "m", NonRetryable: true, NextRetryDelay: ptr(time.Second), Details: &task.Payload{JSON: true, Body: []byte("1")}},
			Attempts: []scheduler.AttemptView{{
				ID: worker, Number: 2, Round: 2, State: task.AttemptLeased, WorkerID: worker, WorkerName: "w", Node: "n1", LeaseVersion: 8,
				LeasedAt: now, ExpiresAt: at(5 * time.Second), Progress: ptr(0.0), ProgressMessage: "p",
			}, {ID: worker, Number: 1, State: task.AttemptLost, Reason: "lease_expired", ExpiresAt: at(time.Second), EndedAt: &now}},
		}},
	}
	want := &leaseholdv1.Execution{
		Id: someID, Namespace: "n", Name: "e", IdempotencyKey: "k", State: leaseholdv1.ExecutionState_EXECUTION_STATE_CANCELING,
		Round: 2, Labels: map[string]string{"a": "b"}, Priority: -5, Revision: 9, StepCount: 1, FailFast: true,
		CreateTime: timestamppb.New(*at(-time.Hour)), DueTime: timestamppb.New(*at(-time.Minute)), StartTime: timestamppb.New(*at(-time.Second)),
		Deadline: timestamppb.New(*at(time.Minute)), DeadlineRemaining: durationpb.New(time.Minute),
		CancelDeadline: timestamppb.New(*at(-time.Second)), CancelRemaining: durationpb.New(0), CancelReason: "why",
		Steps: []*leaseholdv1.Step{{
			Id: otherID, Name: "s", Capability: "c", Node: "n1", Priority: 3, State: leaseholdv1.StepState_STEP_STATE_READY, DependsOn: []string{"p"},
			AttemptCount: 2, CountedAttempts: 1, NextAttemptTime: timestamppb.New(*at(time.Second)),
			Failure: &leaseholdv1.Failure{Type: "T", Message: "m", NonRetryable: true, NextRetryDelay: durationpb.New(time.Second), Details: jsonPayload("1")},
			Attempts: []*leaseholdv1.Attempt{{
				Id: otherID, Number: 2, Round: 2, State: leaseholdv1.AttemptState_ATTEMPT_STATE_LEASED, WorkerId: otherID, WorkerName: "w", Node: "n1",
				LeaseVersion: 8, LeaseTime: timestamppb.New(now), LeaseExpireTime: timestamppb.New(*at(5 * time.Second)),
				LeaseRemaining: durationpb.New(5 * time.Second), Progress: proto.Float64(0), ProgressMessage: "p",
			}, {Id: otherID, Number: 1, State: leaseholdv1.AttemptState_ATTEMPT_STATE_LOST, Reason: "lease_expired", EndTime: timestamppb.New(now)}},
		}},
	}
	got := encodeEnqueued(scheduler.Enqueued{Execution: view, Created: true})
	if diff := cmp.Diff(want, got.GetExecution(), protocmp.Transform()); diff != "" || !got.GetCreated() {
		t.Errorf("-want +got\n%s", diff)
	}
	view.Steps = make([]scheduler.StepView, 101)
	if got := encodeEnqueued(scheduler.Enqueued{Execution: view}); len(got.GetExecution().GetSteps()) != 0 {
		t.Error("more than 100 steps were listed")
	}
}

func TestEncode_LeasesAndRenewals(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	lease := encodeLease(&scheduler.LeaseView{
		ExpiresAt: now, Remaining: 30 * time.Second, StartToCloseAt: now, StartToCloseRemaining: -time.Second,
		Input: &task.Payload{}, ParentOutputs: map[string]*task.Payload{"p": {Body: []byte("x")}, "none": nil},
		Checkpoint: &task.Payload{JSON: true, Body: []byte("{}")}, PreviousFailure: &task.Failure{Type: "T"}, TraceContext: map[string]string{"traceparent": "x"},
	})
	if lease.GetRenewAfter().AsDuration() != 10*time.Second || lease.GetLeaseDuration().AsDuration() != 30*time.Second ||
		lease.GetStartToCloseRemaining().AsDuration() != 0 || string(lease.GetParentOutputs()["p"].GetData()) != "x" ||
		lease.GetParentOutputs()["none"] == nil || lease.GetCheckpoint().GetJson() != "{}" || lease.GetPreviousFailure().GetType() != "T" {
		t.Errorf("got %v", lease)
	}
	if got := renewAfter(0).AsDuration(); got < time.Millisecond {
		t.Errorf("a worker would spin: %v", got)
	}
	for _, tc := range []struct {
		in   scheduler.Renewed
		want leaseholdv1.Directive
	}{
		{scheduler.Renewed{}, leaseholdv1.Directive_DIRECTIVE_CONTINUE},
		{scheduler.Renewed{Draining: true}, leaseholdv1.Directive_DIRECTIVE_DRAIN},
		{scheduler.Renewed{Draining: true, Cancel: true, CancelAt: &now, CancelRemaining: time.Second}, leaseholdv1.Directive_DIRECTIVE_CANCEL},
	} {
		got := encodeRenewed(tc.in)
		if got.GetDirective() != tc.want || (got.GetCancelDeadline() != nil) != tc.in.Cancel || (got.GetCancelRemaining() != nil) != tc.in.Cancel {
			t.Errorf("%+v became %v", tc.in, got)
		}
	}
	answer := encodePollAnswer(scheduler.PollAnswer{Draining: true, Held: time.Second}, 4<<20)
	if answer.GetDirective() != leaseholdv1.Directive_DIRECTIVE_DRAIN || answer.GetHeldDuration().AsDuration() != time.Second {
		t.Errorf("got %v", answer)
	}
}

const smallMessage, manyItems = 64 << 10, 40

func bigPayload() *task.Payload { return &task.Payload{Body: []byte(strings.Repeat("x", 20<<10))} }

// TestGetExecution_StaysBelowTheMessageLimit pages through steps that do not fit into one message.
func TestGetExecution_StaysBelowTheMessageLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{get: func(_ context.Context, q scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
		view := &scheduler.ExecutionView{}
		for i := q.AfterOrdinal + 1; i < manyItems && len(view.Steps) < q.StepLimit; i++ {
			view.Steps = append(view.Steps, scheduler.StepView{Ordinal: i, Name: fmt.Sprint(i), Input: bigPayload()})
		}
		return view, q.AfterOrdinal+len(view.Steps)+1 < manyItems, nil
	}}, Config{MaxMessageBytes: smallMessage})
	var names []string
	request := &leaseholdv1.GetExecutionRequest{ExecutionId: someID, IncludePayloads: true}
	for {
		answer, err := r.executions.GetExecution(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(answer); n > smallMessage {
			t.Errorf("%d bytes", n)
		}
		for _, s := range answer.GetExecution().GetSteps() {
			names = append(names, s.GetName())
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(names) != manyItems || names[manyItems-1] != fmt.Sprint(manyItems-1) {
		t.Errorf("steps %v", names)
	}
}

func TestListExecutions_StaysBelowTheMessageLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{list: func(_ context.Context, q scheduler.ListQuery) (page scheduler.ExecutionPage, err error) {
		first := int64(1)
		if q.Before != nil {
			first = q.Before.CreatedAt.UnixMicro() + 1
		}
		for i := first; i <= manyItems && len(page.Executions) < q.Limit; i++ {
			page.Executions = append(page.Executions, scheduler.ExecutionView{ExecutionData: task.ExecutionData{
				Name: fmt.Sprint(i), CreatedAt: time.UnixMicro(i), Failure: &task.Failure{Details: bigPayload()},
			}})
		}
		return page, nil
	}}, Config{MaxMessageBytes: smallMessage})
	seen, request := map[string]bool{}, &leaseholdv1.ListExecutionsRequest{}
	for {
		answer, err := r.executions.ListExecutions(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.GetExecutions() {
			seen[e.GetName()] = true
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if len(seen) != manyItems {
		t.Errorf("%d executions were listed, want %d", len(seen), manyItems)
	}
}

func TestLeaseAttempt_StaysBelowTheMessageLimit(t *testing.T) {
	t.Parallel()
	big := bigPayload()
	r := newRig(t, &fakeApp{poll: func(context.Context, scheduler.Poll) (scheduler.PollAnswer, error) {
		return scheduler.PollAnswer{Leases: []scheduler.LeaseView{{ParentOutputs: map[string]*task.Payload{"a": big, "b": big, "c": big, "d": big}}}}, nil
	}}, Config{MaxMessageBytes: smallMessage})
	leases, err := r.workers.LeaseAttempt(t.Context(), poll())
	if err != nil || !leases.GetLeases()[0].GetParentOutputsOmitted() {
		t.Errorf("got %v, %v", leases, err)
	}
}

// TestGetExecution_ReadsManySmallPayloadsAtOnce: pages are cut by size, not by caution, and
// are of one revision.
func TestGetExecution_ReadsManySmallPayloadsAtOnce(t *testing.T) {
	t.Parallel()
	reads, changedAt := 0, -1
	r := newRig(t, &fakeApp{get: func(_ context.Context, q scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
		reads++
		view := &scheduler.ExecutionView{}
		if reads == changedAt {
			view.Revision++
		}
		for i := q.AfterOrdinal + 1; i < 3000 && len(view.Steps) < q.StepLimit; i++ {
			view.Steps = append(view.Steps, scheduler.StepView{Ordinal: i})
		}
		return view, true, nil
	}}, Config{})
	request := &leaseholdv1.GetExecutionRequest{ExecutionId: someID, IncludePayloads: true}
	answer, err := r.executions.GetExecution(t.Context(), request)
	if err != nil || len(answer.GetExecution().GetSteps()) != 1000 || answer.GetNextPageToken() == "" || reads > 8 {
		t.Errorf("%d steps in %d reads, %v", len(answer.GetExecution().GetSteps()), reads, err)
	}
	reads, changedAt = 0, 2
	answer, err = r.executions.GetExecution(t.Context(), request)
	if err != nil || len(answer.GetExecution().GetSteps()) != firstPayloadSteps || answer.GetNextPageToken() == "" {
		t.Errorf("%d steps of two revisions, %v", len(answer.GetExecution().GetSteps()), err)
	}
}

func TestShrink_KeepsWhatMattersMost(t *testing.T) {
	t.Parallel()
	payload := &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 1000)}}
	large := func() *leaseholdv1.Step {
		return &leaseholdv1.Step{Name: "s", Input: payload, Attempts: []*leaseholdv1.Attempt{{}, {Failure: &leaseholdv1.Failure{Message: strings.Repeat("m", 1000), Details: payload}}}}
	}
	for _, tc := range []struct {
		limit                   int
		details, message, input bool
	}{{4000, true, true, true}, {2500, false, true, true}, {1500, false, false, true}, {500, false, false, false}} {
		s := large()
		shrink(s, tc.limit)
		f := s.GetAttempts()[1].GetFailure()
		if (f.GetDetails() != nil) != tc.details || (f.GetMessage() != "") != tc.message || (s.GetInput() != nil) != tc.input || proto.Size(s) > tc.limit {
			t.Errorf("limit %d: %d bytes, %v", tc.limit, proto.Size(s), s)
		}
	}
}

func TestBatchEnqueue(t *testing.T) {
	t.Parallel()
	var got []*task.ExecutionSpec
	r := newRig(t, &fakeApp{enqueueAll: func(_ context.Context, specs []*task.ExecutionSpec) ([]scheduler.Enqueued, error) {
		got = specs
		results := make([]scheduler.Enqueued, len(specs))
		for i, s := range specs {
			results[i] = scheduler.Enqueued{Created: true, Execution: &scheduler.ExecutionView{ExecutionData: task.ExecutionData{Name: s.Name}, Labels: map[string]string{"l": strings.Repeat("x", 200)}}}
		}
		return results, nil
	}}, Config{MaxMessageBytes: 1100})
	named := func(name string, check bool) *leaseholdv1.EnqueueExecutionRequest {
		request := oneStep()
		request.Name, request.ValidateOnly = name, check
		return request
	}
	answer, err := r.executions.BatchEnqueueExecutions(t.Context(), &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{named("a", false), named("b", true), named("c", false), named("d", false), named("e", false), named("f", false)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, result := range answer.GetResults() {
		names = append(names, result.GetResponse().GetExecution().GetName())
		if created := result.GetResponse().GetCreated(); created == (i == 1) {
			t.Errorf("%d created: %v", i, created)
		}
	}
	if fmt.Sprint(names) != "[a b c d e f]" || len(got) != 5 {
		t.Errorf("got %v of %d", names, len(got))
	}
	one, err := r.executions.EnqueueExecution(t.Context(), named("x", true))
	if err != nil || one.GetCreated() || one.GetExecution().GetName() != "x" || one.GetExecution().GetNamespace() != "default" {
		t.Errorf("got %v, %v", one, err)
	}
}
