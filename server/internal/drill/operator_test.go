package drill

import (
	"strings"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// What operators do, in the tests; an error fails the test.

func (w *world) pause(replica int, capability, reason string) *leaseholdv1.Capability {
	w.t.Helper()
	answer, err := w.Client(replica).Operators.PauseCapability(w.ctx, &leaseholdv1.PauseCapabilityRequest{Capability: capability, Reason: reason})
	if err != nil {
		w.t.Fatalf("pause %s: %v", capability, err)
	}
	return answer.GetCapability()
}

func (w *world) resume(replica int, capability string) *leaseholdv1.Capability {
	w.t.Helper()
	answer, err := w.Client(replica).Operators.ResumeCapability(w.ctx, &leaseholdv1.ResumeCapabilityRequest{Capability: capability})
	if err != nil {
		w.t.Fatalf("resume %s: %v", capability, err)
	}
	return answer.GetCapability()
}

func (w *world) capability(name string) *leaseholdv1.Capability {
	w.t.Helper()
	answer, err := w.Client(1).Operators.ListCapabilities(w.ctx, &leaseholdv1.ListCapabilitiesRequest{Capability: name})
	if err != nil || len(answer.GetCapabilities()) != 1 {
		w.t.Fatalf("capability %s: %v, %v", name, answer, err)
	}
	return answer.GetCapabilities()[0]
}

// drain drains, or ends the drain.
func (w *world) drain(replica int, r *leaseholdv1.SetWorkerDrainRequest) *leaseholdv1.SetWorkerDrainResponse {
	w.t.Helper()
	answer, err := w.Client(replica).Operators.SetWorkerDrain(w.ctx, r)
	if err != nil {
		w.t.Fatalf("drain: %v", err)
	}
	return answer
}

func drainOf(draining bool, target any) *leaseholdv1.SetWorkerDrainRequest {
	r := &leaseholdv1.SetWorkerDrainRequest{Draining: draining, Reason: "maintenance"}
	switch t := target.(type) {
	case *hand:
		r.Target = &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: t.ID}
	case nodeName:
		r.Target = &leaseholdv1.SetWorkerDrainRequest_Node{Node: string(t)}
	case versionName:
		r.Target = &leaseholdv1.SetWorkerDrainRequest_Version{Version: string(t)}
	}
	return r
}

type (
	nodeName    string
	versionName string
)

func (w *world) workerOf(h *hand) *leaseholdv1.Worker {
	w.t.Helper()
	answer, err := w.Client(2).Operators.GetWorker(w.ctx, &leaseholdv1.GetWorkerRequest{WorkerId: h.ID})
	if err != nil {
		w.t.Fatalf("worker: %v", err)
	}
	return answer.GetWorker()
}

// explain explains a step of an execution, by its name.
func (w *world) explain(id, name string) *leaseholdv1.ExplainStepResponse {
	w.t.Helper()
	answer, err := w.Client(1).Operators.ExplainStep(w.ctx, &leaseholdv1.ExplainStepRequest{ExecutionId: id, StepName: name})
	if err != nil {
		w.t.Fatalf("explain %s: %v", name, err)
	}
	return answer
}

// codes are the reasons of an explanation in their order.
func codesOf(x *leaseholdv1.ExplainStepResponse) string {
	var list []string
	for _, r := range x.GetReasons() {
		list = append(list, strings.TrimPrefix(r.GetCode().String(), "STEP_REASON_CODE_"))
	}
	return strings.Join(list, " ")
}

// explained fails unless these are the reasons of a step, and returns the first.
func (w *world) explained(id, name, codes string) *leaseholdv1.StepReason {
	w.t.Helper()
	x := w.explain(id, name)
	want(w.t, "reasons of "+name, codesOf(x), codes)
	if codes == "" {
		return nil
	}
	if len(x.GetReasons()) == 0 {
		w.t.FailNow()
	}
	for _, r := range x.GetReasons() {
		if r.GetMessage() == "" || r.GetChange() == "" || r.GetSince() == nil {
			w.t.Errorf("a reason without words or time: %v", r)
		}
		if r.GetSince().AsTime().After(x.GetReadTime().AsTime()) {
			w.t.Errorf("%v: since %v, read %v", r.GetCode(), r.GetSince().AsTime(), x.GetReadTime().AsTime())
		}
	}
	want(w.t, "summary begins with the first reason", strings.HasPrefix(x.GetSummary(), x.GetReasons()[0].GetMessage()), true)
	return x.GetReasons()[0]
}

// revoke takes a lease away.
func (w *world) revoke(replica int, l *leaseholdv1.Lease, reason string) (*leaseholdv1.RevokeLeaseResponse, error) {
	w.t.Helper()
	return w.Client(replica).Operators.RevokeLease(w.ctx, &leaseholdv1.RevokeLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), Reason: reason,
	})
}

func (w *world) terminate(replica int, id, reason string) (*leaseholdv1.Execution, error) {
	w.t.Helper()
	answer, err := w.Client(replica).Operators.TerminateExecution(w.ctx, &leaseholdv1.TerminateExecutionRequest{ExecutionId: id, Reason: reason})
	return answer.GetExecution(), err
}
