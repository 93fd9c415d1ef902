package grpcapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// fakeOperators is what operators call, by hand: what is set answers, and the last call is kept.
type fakeOperators struct {
	workers      []scheduler.WorkerView
	capabilities []scheduler.CapabilityView
	explained    scheduler.StepExplained
	last         any
}

func (f *fakeOperators) SetDrain(_ context.Context, d scheduler.Drain) (scheduler.Drained, error) {
	f.last = d
	return scheduler.Drained{Workers: 2, More: true, Leases: 3}, nil
}

func (f *fakeOperators) Pause(_ context.Context, c scheduler.CapabilityKey, reason string) (scheduler.CapabilityView, error) {
	return scheduler.CapabilityView{Name: c.Name, Pause: &task.Notice{At: time.Unix(1, 0), Reason: reason}}, nil
}

func (f *fakeOperators) Resume(_ context.Context, c scheduler.CapabilityKey, _ string) (scheduler.CapabilityView, error) {
	return scheduler.CapabilityView{Name: c.Name}, nil
}

func (f *fakeOperators) RevokeLease(_ context.Context, r scheduler.Revocation) (scheduler.Revoked, error) {
	f.last = r
	return scheduler.Revoked{StepState: task.StepReady, ExecutionState: task.ExecutionRunning}, nil
}

func (f *fakeOperators) Terminate(context.Context, uuid.UUID, string) (*scheduler.ExecutionView, error) {
	return &scheduler.ExecutionView{ExecutionData: task.ExecutionData{State: task.ExecutionCanceled}}, nil
}

func (f *fakeOperators) ListWorkers(_ context.Context, q scheduler.WorkerQuery) ([]scheduler.WorkerView, error) {
	f.last = q
	return f.workers, nil
}

func (f *fakeOperators) GetWorker(context.Context, uuid.UUID) (scheduler.WorkerView, error) {
	return append(f.workers, scheduler.WorkerView{})[0], nil
}

func (f *fakeOperators) ListCapabilities(_ context.Context, q scheduler.CapabilityQuery) ([]scheduler.CapabilityView, error) {
	f.last = q
	return f.capabilities, nil
}

func (f *fakeOperators) ExplainStep(_ context.Context, q scheduler.StepQuery) (scheduler.StepExplained, error) {
	f.last = q
	return f.explained, nil
}

func operatorRig(t *testing.T, app *fakeApp, config Config) leaseholdv1.OperatorServiceClient {
	t.Helper()
	return leaseholdv1.NewOperatorServiceClient(newRig(t, app, config).conn)
}

func TestSetWorkerDrain_EachTarget(t *testing.T) {
	t.Parallel()
	app := &fakeApp{}
	client := operatorRig(t, app, Config{})
	for _, tt := range []struct {
		r    *leaseholdv1.SetWorkerDrainRequest
		want scheduler.Drain
	}{
		{&leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: strings.ToUpper(someID)}, Draining: true, Reason: "r"},
			scheduler.Drain{Namespace: "default", Kind: scheduler.DrainWorker, Value: someID, Draining: true, Reason: "r"}},
		{&leaseholdv1.SetWorkerDrainRequest{Namespace: "ns", Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: "n"}},
			scheduler.Drain{Namespace: "ns", Kind: scheduler.DrainNode, Value: "n"}},
		{&leaseholdv1.SetWorkerDrainRequest{Target: &leaseholdv1.SetWorkerDrainRequest_Version{Version: "v"}, Draining: true},
			scheduler.Drain{Namespace: "default", Kind: scheduler.DrainVersion, Value: "v", Draining: true}},
	} {
		answer, err := client.SetWorkerDrain(t.Context(), tt.r)
		if err != nil || answer.GetWorkers() != 2 || !answer.GetWorkersCapped() || answer.GetLiveLeases() != 3 {
			t.Errorf("%v: %v, %v", tt.r, answer, err)
		}
		if app.last != tt.want {
			t.Errorf("got %+v, want %+v", app.last, tt.want)
		}
	}
}

// Pages end where an answer is full; the next one begins after the last name, whatever it is.
func TestListWorkers_PagesFitIntoAnAnswer(t *testing.T) {
	t.Parallel()
	app := &fakeApp{}
	for i := range 8 {
		app.workers = append(app.workers, scheduler.WorkerView{
			Name: fmt.Sprintf("%d-ä/ %s", i, strings.Repeat("x", 200)), Capabilities: []string{strings.Repeat("c", 2000)},
		})
	}
	client := operatorRig(t, app, Config{MaxMessageBytes: 10 << 10})
	request := &leaseholdv1.ListWorkersRequest{Node: "n", LiveOnly: true, PageSize: 100}
	answer, err := client.ListWorkers(t.Context(), request)
	if err != nil || len(answer.GetWorkers()) < 2 || len(answer.GetWorkers()) > 4 || answer.GetNextPageToken() == "" {
		t.Fatalf("%d workers, %v", len(answer.GetWorkers()), err)
	}
	request.PageToken = answer.GetNextPageToken()
	if _, err := client.ListWorkers(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	want := scheduler.WorkerQuery{Namespace: "default", Node: "n", LiveOnly: true, Limit: 100, After: app.workers[len(answer.GetWorkers())-1].Name}
	if app.last != want {
		t.Errorf("got %+v, want %+v", app.last, want)
	}
	for _, change := range []func(*leaseholdv1.ListWorkersRequest){
		func(r *leaseholdv1.ListWorkersRequest) { r.LiveOnly = false },
		func(r *leaseholdv1.ListWorkersRequest) { r.Namespace = "other" },
		func(r *leaseholdv1.ListWorkersRequest) { r.PageToken = "AAAA" },
		func(r *leaseholdv1.ListWorkersRequest) { r.PageToken = "%" },
	} {
		r := &leaseholdv1.ListWorkersRequest{Node: "n", LiveOnly: true, PageSize: 100, PageToken: request.GetPageToken()}
		change(r)
		if _, err := client.ListWorkers(t.Context(), r); refusalOf(t, err).code != codes.InvalidArgument {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// Every cause and kind of the domain has its name on the wire, and no other is there.
func TestExplainStep_EveryCauseHasItsName(t *testing.T) {
	t.Parallel()
	app := &fakeApp{}
	client := operatorRig(t, app, Config{})
	causes := []task.Cause{
		task.CauseTerminal, task.CauseCanceling, task.CauseRunning, task.CauseParents, task.CausePaused, task.CauseDueLater,
		task.CauseNoWorker, task.CauseNodeAway, task.CauseWorkersDrained, task.CauseWorkersFull, task.CauseBehindOthers,
	}
	for _, c := range causes {
		app.explained.Explanation.Findings = append(app.explained.Explanation.Findings, task.Finding{Cause: c})
	}
	for _, k := range []task.DueKind{task.DueStart, task.DueBackoff, task.DueRelease} {
		app.explained.Explanation.Findings = append(app.explained.Explanation.Findings, task.Finding{Cause: task.CauseDueLater, DueKind: k})
	}
	answer, err := client.ExplainStep(t.Context(), &leaseholdv1.ExplainStepRequest{StepId: someID})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, r := range answer.GetReasons() {
		if i < len(causes) && r.GetCode().String() != stepReasonPrefix+string(causes[i]) {
			t.Errorf("%s is told as %s", causes[i], r.GetCode())
		}
		if i >= len(causes) && r.GetDueKind() == 0 {
			t.Errorf("reason %d has no kind", i)
		}
		seen[r.GetCode().String()] = true
	}
	if want := len(leaseholdv1.StepReasonCode_name) - 1; len(seen) != want {
		t.Errorf("%d codes, want %d: %v", len(seen), want, seen)
	}
}

func TestRevokeLease_Decodes(t *testing.T) {
	t.Parallel()
	app := &fakeApp{}
	answer, err := operatorRig(t, app, Config{}).RevokeLease(t.Context(), &leaseholdv1.RevokeLeaseRequest{AttemptId: someID, LeaseVersion: 7, Reason: "gone"})
	if err != nil || answer.GetStepState() != leaseholdv1.StepState_STEP_STATE_READY {
		t.Fatalf("%v, %v", answer, err)
	}
	if want := (scheduler.Revocation{AttemptID: uuid.MustParse(someID), LeaseVersion: 7, Reason: "gone"}); app.last != want {
		t.Errorf("got %+v, want %+v", app.last, want)
	}
}
