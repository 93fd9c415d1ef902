package grpcapi

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// The wire's names of what is told of a step are the domain's with a prefix.
const (
	stepReasonPrefix = "STEP_REASON_CODE_"
	dueKindPrefix    = "DUE_KIND_"
)

func decodeWorkers(r *leaseholdv1.ListWorkersRequest) (scheduler.WorkerQuery, error) {
	q := scheduler.WorkerQuery{
		Namespace: namespace(r.GetNamespace()), Node: r.GetNode(), Version: r.GetVersion(), Capability: r.GetCapability(),
		LiveOnly: r.GetLiveOnly(), Limit: pageSize(r.GetPageSize()),
	}
	var err error
	q.After, err = workersBinding(q).name(r.GetPageToken())
	return q, err
}

func workersBinding(q scheduler.WorkerQuery) binding {
	return bind("ListWorkers").text(q.Namespace, q.Node, q.Version, q.Capability, strconv.FormatBool(q.LiveOnly))
}

func decodeCapabilities(r *leaseholdv1.ListCapabilitiesRequest) (scheduler.CapabilityQuery, error) {
	q := scheduler.CapabilityQuery{
		Namespace: namespace(r.GetNamespace()), Name: r.GetCapability(), Limit: pageSize(r.GetPageSize()),
	}
	var err error
	q.After, err = capabilitiesBinding(q).name(r.GetPageToken())
	return q, err
}

func capabilitiesBinding(q scheduler.CapabilityQuery) binding {
	return bind("ListCapabilities").text(q.Namespace, q.Name)
}

func capabilityKey(ns, name string) scheduler.CapabilityKey {
	return scheduler.CapabilityKey{Namespace: namespace(ns), Name: name}
}

// decodeDrain reads the one target that validation has seen.
func decodeDrain(r *leaseholdv1.SetWorkerDrainRequest) scheduler.Drain {
	d := scheduler.Drain{Namespace: namespace(r.GetNamespace()), Draining: r.GetDraining(), Reason: r.GetReason()}
	switch target := r.GetTarget().(type) {
	case *leaseholdv1.SetWorkerDrainRequest_WorkerId:
		d.Kind, d.Value = scheduler.DrainWorker, id(target.WorkerId).String()
	case *leaseholdv1.SetWorkerDrainRequest_Node:
		d.Kind, d.Value = scheduler.DrainNode, target.Node
	case *leaseholdv1.SetWorkerDrainRequest_Version:
		d.Kind, d.Value = scheduler.DrainVersion, target.Version
	}
	return d
}

func encodeWorker(v *scheduler.WorkerView) *leaseholdv1.Worker {
	w := &leaseholdv1.Worker{
		Id: v.ID.String(), Namespace: v.Namespace, Name: v.Name, Node: v.Node, Version: v.Version,
		Capabilities: v.Capabilities, Slots: int32(v.Standing.Slots), SlotsInUse: int32(v.Standing.Live), Labels: v.Labels,
		SessionId: text(v.SessionID), Live: v.Standing.Present, LastSeenTime: instant(&v.LastSeenAt),
		LastSeenAge: span(v.Now.Sub(v.LastSeenAt)), RegisterTime: instant(&v.RegisteredAt),
		Drained: v.Standing.Drained, DrainedByItself: v.DrainsItself, AttemptsCapped: v.MoreAttempts,
	}
	for i := range v.Drains {
		w.Drains = append(w.Drains, encodeDrain(&v.Drains[i]))
	}
	for i := range v.Attempts {
		w.Attempts = append(w.Attempts, encodeWorkerAttempt(&v.Attempts[i], v.Now))
	}
	return w
}

func encodeDrain(v *scheduler.DrainView) *leaseholdv1.WorkerDrain {
	d := &leaseholdv1.WorkerDrain{Reason: v.Reason, CreateTime: instant(&v.At)}
	switch v.Kind {
	case scheduler.DrainWorker:
		d.Target = &leaseholdv1.WorkerDrain_WorkerId{WorkerId: v.Value}
	case scheduler.DrainNode:
		d.Target = &leaseholdv1.WorkerDrain_Node{Node: v.Value}
	case scheduler.DrainVersion:
		d.Target = &leaseholdv1.WorkerDrain_Version{Version: v.Value}
	}
	return d
}

func encodeWorkerAttempt(v *scheduler.WorkerAttempt, now time.Time) *leaseholdv1.WorkerAttempt {
	return &leaseholdv1.WorkerAttempt{
		AttemptId: v.AttemptID.String(), AttemptNumber: int32(v.Number), LeaseVersion: v.LeaseVersion,
		ExecutionId: v.ExecutionID.String(), ExecutionName: v.ExecutionName, StepId: v.StepID.String(), StepName: v.StepName,
		Capability: v.Capability, LeaseTime: instant(&v.LeasedAt), LeaseExpireTime: instant(&v.ExpiresAt),
		LeaseRemaining: remaining(&v.ExpiresAt, now), Progress: v.Progress, ProgressMessage: v.ProgressMessage,
	}
}

func encodeCapability(v *scheduler.CapabilityView) *leaseholdv1.Capability {
	c := &leaseholdv1.Capability{
		Name: v.Name, Ready: int32(v.Ready.N), ReadyCapped: v.Ready.More, Delayed: int32(v.Delayed.N), DelayedCapped: v.Delayed.More,
		Running: int32(v.Running.N), RunningCapped: v.Running.More, LiveWorkers: int32(v.LiveWorkers),
		DrainedWorkers: int32(v.DrainedWorkers), FreeSlots: v.FreeSlots, WorkersCapped: v.MoreWorkers,
		LastMinute: encodeOutcomes(v.LastMinute), LastHour: encodeOutcomes(v.LastHour),
	}
	if v.OldestReady != nil {
		c.OldestReadyAge = span(*v.OldestReady)
	}
	if v.Pause != nil {
		c.Paused, c.PauseReason, c.PauseTime = true, v.Pause.Reason, instant(&v.Pause.At)
	}
	return c
}

func encodeOutcomes(n map[task.AttemptState]int64) *leaseholdv1.AttemptOutcomes {
	return &leaseholdv1.AttemptOutcomes{
		Succeeded: n[task.AttemptSucceeded], Failed: n[task.AttemptFailed], TimedOut: n[task.AttemptTimedOut],
		Lost: n[task.AttemptLost], Released: n[task.AttemptReleased], Canceled: n[task.AttemptCanceled],
	}
}

func encodeExplained(v *scheduler.StepExplained) *leaseholdv1.ExplainStepResponse {
	answer := &leaseholdv1.ExplainStepResponse{
		StepId: v.Step.ID.String(), StepName: v.Step.Name, ExecutionId: v.Execution.ID.String(), Capability: v.Step.Capability,
		Node: v.Step.Node, StepState: encodeStepState(v.Step.State), ExecutionState: encodeExecutionState(v.Execution.State),
		Summary: v.Explanation.Summary, ReadTime: timestamppb.New(v.At),
	}
	for i := range v.Explanation.Findings {
		answer.Reasons = append(answer.Reasons, encodeFinding(&v.Explanation.Findings[i], v.At))
	}
	return answer
}

func encodeFinding(f *task.Finding, now time.Time) *leaseholdv1.StepReason {
	r := &leaseholdv1.StepReason{
		Code:  leaseholdv1.StepReasonCode(leaseholdv1.StepReasonCode_value[stepReasonPrefix+string(f.Cause)]),
		Since: instant(&f.Since), Message: f.Message, Change: f.Change, GivenReason: f.Given, ParentCount: int32(f.ParentCount),
		Ahead: int32(f.Ahead), AheadCapped: f.AheadCapped, CapableWorkers: int32(f.Capable), FreeSlots: int32(f.Free),
	}
	for _, p := range f.Parents {
		r.Parents = append(r.Parents, &leaseholdv1.WaitingParent{StepId: p.ID.String(), Name: p.Name, State: encodeStepState(p.State)})
	}
	if f.Cause == task.CauseDueLater {
		r.DueTime, r.DueRemaining = instant(&f.Due), remaining(&f.Due, now)
		r.DueKind = leaseholdv1.DueKind(leaseholdv1.DueKind_value[dueKindPrefix+string(f.DueKind)])
	}
	if a := f.Attempt; a != nil {
		r.Attempt = &leaseholdv1.Attempt{
			Id: a.ID.String(), Number: int32(a.Number), Round: int32(a.Round), State: encodeAttemptState(a.State),
			WorkerId: text(a.WorkerID), WorkerName: a.WorkerName, Node: a.Node, LeaseVersion: a.LeaseVersion,
			LeaseTime: instant(&a.LeasedAt), LeaseExpireTime: instant(&f.ExpiresAt), LeaseRemaining: remaining(&f.ExpiresAt, now),
		}
	}
	return r
}
