package faults

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// steer is an operator who drains and pauses, and takes it back.
func (v *tour) steer(ctx context.Context) error {
	const capability, node = "tour.paused", "tour-other-node"
	for _, draining := range []bool{true, false} {
		_, err := ask(ctx, v.p.operators.SetWorkerDrain, &leaseholdv1.SetWorkerDrainRequest{
			Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: node}, Draining: draining, Reason: "tour",
		})
		if err != nil {
			return fmt.Errorf("drain: %w", err)
		}
	}
	if _, err := ask(ctx, v.p.operators.PauseCapability, &leaseholdv1.PauseCapabilityRequest{Capability: capability, Reason: "tour"}); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	if _, err := ask(ctx, v.p.operators.ResumeCapability, &leaseholdv1.ResumeCapabilityRequest{Capability: capability}); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	time.Sleep(20 * time.Millisecond) // an operator is not that quick
	return nil
}

// lookAround reads everything that there is to read, and settles events that nobody takes.
func (v *tour) lookAround(ctx context.Context) error {
	list, err := ask(ctx, v.p.executions.ListExecutions, &leaseholdv1.ListExecutionsRequest{PageSize: 5})
	if err != nil {
		return fmt.Errorf("list executions: %w", err)
	}
	for _, e := range list.GetExecutions() {
		if _, err := ask(ctx, v.p.executions.GetExecution, &leaseholdv1.GetExecutionRequest{ExecutionId: e.GetId(), IncludePayloads: true}); answered(err) != nil {
			return fmt.Errorf("get execution: %w", err)
		}
		if _, err := ask(ctx, v.p.executions.ListTimeline, &leaseholdv1.ListTimelineRequest{ExecutionId: e.GetId()}); answered(err) != nil {
			return fmt.Errorf("list timeline: %w", err)
		}
		if _, err := ask(ctx, v.p.operators.ExplainStep, &leaseholdv1.ExplainStepRequest{ExecutionId: e.GetId(), StepName: "a"}); answered(err) != nil {
			return fmt.Errorf("explain: %w", err)
		}
	}
	workers, err := ask(ctx, v.p.operators.ListWorkers, &leaseholdv1.ListWorkersRequest{PageSize: 5, LiveOnly: true})
	if err != nil {
		return fmt.Errorf("list workers: %w", err)
	}
	for _, w := range workers.GetWorkers() {
		if _, err := ask(ctx, v.p.operators.GetWorker, &leaseholdv1.GetWorkerRequest{WorkerId: w.GetId()}); answered(err) != nil {
			return fmt.Errorf("get worker: %w", err)
		}
	}
	if _, err := ask(ctx, v.p.operators.ListCapabilities, &leaseholdv1.ListCapabilitiesRequest{PageSize: 5}); err != nil {
		return fmt.Errorf("list capabilities: %w", err)
	}
	return v.settle(ctx)
}

// settle redrives the dead events, and then skips what died again.
func (v *tour) settle(ctx context.Context) error {
	dead, err := ask(ctx, v.p.operators.ListOutboxEvents, &leaseholdv1.ListOutboxEventsRequest{
		Statuses: []leaseholdv1.OutboxEventStatus{leaseholdv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD}, PageSize: 2,
	})
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	var ids []string
	for _, e := range dead.GetEvents() {
		ids = append(ids, e.GetId())
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := ask(ctx, v.p.operators.RedriveOutboxEvents, &leaseholdv1.RedriveOutboxEventsRequest{EventIds: ids[:1], Reason: "tour"}); answered(err) != nil {
		return fmt.Errorf("redrive: %w", err)
	}
	if _, err := ask(ctx, v.p.operators.SkipOutboxEvents, &leaseholdv1.SkipOutboxEventsRequest{EventIds: ids[len(ids)-1:], Reason: "tour"}); answered(err) != nil {
		return fmt.Errorf("skip: %w", err)
	}
	return nil
}

// intervene takes a lease from a worker, ends an execution, and lets a lease be ended with its worker.
func (v *tour) intervene(ctx context.Context) error {
	h, err := ask(ctx, v.p.workers.RegisterWorker, &leaseholdv1.RegisterWorkerRequest{
		Capabilities: []string{"tour.stuck"}, Slots: 4, RequestId: uuid.NewString(),
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	for range 4 {
		req := request("stuck", spec("a", "ok"))
		req.Steps[0].Capability, req.Timeout = "tour.stuck", durationpb.New(2*time.Second)
		if _, err := v.enqueue(ctx, req); err != nil {
			return err
		}
	}
	granted, err := ask(ctx, v.p.workers.LeaseAttempt, &leaseholdv1.LeaseAttemptRequest{
		WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId(), RequestId: uuid.NewString(), MaxLeases: 4, WaitTimeout: durationpb.New(time.Second),
	})
	if err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	for i, l := range granted.GetLeases() {
		switch i {
		case 0:
			_, err = ask(ctx, v.p.operators.RevokeLease, &leaseholdv1.RevokeLeaseRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), Reason: "tour"})
		case 1:
			_, err = ask(ctx, v.p.operators.TerminateExecution, &leaseholdv1.TerminateExecutionRequest{ExecutionId: l.GetExecutionId(), Reason: "tour"})
		case 2:
			if _, err = ask(ctx, v.p.executions.CancelExecution, &leaseholdv1.CancelExecutionRequest{ExecutionId: l.GetExecutionId(), Reason: "tour"}); err == nil {
				_, err = ask(ctx, v.p.workers.ReportAttempt, &leaseholdv1.ReportAttemptRequest{
					AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), Outcome: &leaseholdv1.ReportAttemptRequest_Canceled_{},
				})
			}
		}
		if answered(err) != nil {
			return fmt.Errorf("intervene: %w", err)
		}
	}
	_, err = ask(ctx, v.p.workers.DeregisterWorker, &leaseholdv1.DeregisterWorkerRequest{WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId(), Force: true})
	return answered(err)
}
