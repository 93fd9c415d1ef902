package grpcapi

import (
	"context"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// answerMargin is how long before the call's own deadline a poll is answered: an empty answer
// in time is better for the client than an error.
const answerMargin = time.Second

func decodeRegistration(r *leaseholdv1.RegisterWorkerRequest) scheduler.Registration {
	return scheduler.Registration{
		Namespace:    namespace(r.GetNamespace()),
		Name:         r.GetName(),
		Node:         r.GetNode(),
		Version:      r.GetVersion(),
		Capabilities: r.GetCapabilities(),
		Slots:        orDefault(int(r.GetSlots()), 1),
		Labels:       r.GetLabels(),
		RequestID:    r.GetRequestId(),
	}
}

func decodePoll(ctx context.Context, r *leaseholdv1.LeaseAttemptRequest, received time.Time) scheduler.Poll {
	return scheduler.Poll{
		WorkerID:  id(r.GetWorkerId()),
		SessionID: id(r.GetSessionId()),
		RequestID: r.GetRequestId(),
		MaxLeases: orDefault(int(r.GetMaxLeases()), 1),
		Wait:      wait(ctx, duration(r.GetWaitTimeout(), scheduler.DefaultWait), received),
		Duration:  leaseDuration(r.GetLeaseDuration().AsDuration()),
		Received:  received,
	}
}

// wait is cut to the longest wait, and to end before the call's own deadline.
func wait(ctx context.Context, asked time.Duration, received time.Time) time.Duration {
	asked = min(asked, scheduler.MaxWait)
	if deadline, ok := ctx.Deadline(); ok {
		asked = min(asked, deadline.Sub(received)-answerMargin)
	}
	return max(asked, 0)
}

// leaseDuration is held to its bounds; zero, which makes no sense, is the default.
func leaseDuration(d time.Duration) time.Duration {
	d = orDefault(d.Truncate(precision), scheduler.DefaultLeaseDuration)
	return min(max(d, scheduler.MinLeaseDuration), scheduler.MaxLeaseDuration)
}

func decodeRenewal(r *leaseholdv1.RenewLeaseRequest) scheduler.Renewal {
	return scheduler.Renewal{
		AttemptID:       id(r.GetAttemptId()),
		LeaseVersion:    r.GetLeaseVersion(),
		SessionID:       id(r.GetSessionId()),
		Duration:        leaseDuration(r.GetLeaseDuration().AsDuration()),
		Checkpoint:      decodePayload(r.GetCheckpoint()),
		Progress:        r.Progress,
		ProgressMessage: task.CleanText(r.GetProgressMessage(), task.MaxReason),
	}
}

func decodeReport(r *leaseholdv1.ReportAttemptRequest) scheduler.Report {
	outcome := decodeOutcome(r)
	outcome.Checkpoint = decodePayload(r.GetCheckpoint())
	return scheduler.Report{AttemptID: id(r.GetAttemptId()), LeaseVersion: r.GetLeaseVersion(), Outcome: outcome}
}

// decodeOutcome is what the report says; validation has seen that it says something.
func decodeOutcome(r *leaseholdv1.ReportAttemptRequest) task.Outcome {
	switch outcome := r.GetOutcome().(type) {
	case *leaseholdv1.ReportAttemptRequest_Succeeded_:
		return task.Outcome{State: task.AttemptSucceeded, Output: decodePayload(outcome.Succeeded.GetOutput())}
	case *leaseholdv1.ReportAttemptRequest_Failed_:
		return task.Outcome{State: task.AttemptFailed, Failure: decodeFailure(outcome.Failed.GetFailure())}
	case *leaseholdv1.ReportAttemptRequest_Released_:
		return task.Outcome{
			State:     task.AttemptReleased,
			Reason:    task.CleanText(outcome.Released.GetReason(), task.MaxReason),
			NotBefore: duration(outcome.Released.GetNotBeforeDelay(), 0),
		}
	default:
		return task.Outcome{State: task.AttemptCanceled}
	}
}

func decodeFailure(f *leaseholdv1.Failure) *task.Failure {
	failure := task.Failure{
		Type:         f.GetType(),
		Message:      f.GetMessage(),
		NonRetryable: f.GetNonRetryable(),
		Details:      decodePayload(f.GetDetails()),
	}
	if f.GetNextRetryDelay() != nil {
		delay := duration(f.GetNextRetryDelay(), 0)
		failure.NextRetryDelay = &delay
	}
	return failure.Clean()
}

func inputsBinding(r *leaseholdv1.GetStepInputsRequest) binding {
	return bind("GetStepInputs").text(id(r.GetAttemptId()).String())
}
