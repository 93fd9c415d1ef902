package grpcapi

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// A lease is renewed after a third of what is left, so that two renewals may be lost; never
// after less than minRenewAfter, so that a lease at its end makes no worker spin.
const (
	renewShare    = 3
	minRenewAfter = 10 * time.Millisecond
)

func encodeSession(s scheduler.Session, c Config) *leaseholdv1.RegisterWorkerResponse {
	return &leaseholdv1.RegisterWorkerResponse{
		WorkerId:         s.WorkerID.String(),
		SessionId:        s.SessionID.String(),
		Name:             s.Name,
		MaxWaitTimeout:   durationpb.New(scheduler.MaxWait),
		MinLeaseDuration: durationpb.New(scheduler.MinLeaseDuration),
		MaxLeaseDuration: durationpb.New(scheduler.MaxLeaseDuration),
		MaxPayloadBytes:  int64(c.MaxPayloadBytes),
		MaxMessageBytes:  int64(c.MaxMessageBytes),
		SessionTimeout:   durationpb.New(c.SessionTimeout),
	}
}

// encodePollAnswer leaves parents' outputs out should the answer be too large: an answer that
// cannot be sent would lose the grants.
func encodePollAnswer(a scheduler.PollAnswer, maxMessage int) *leaseholdv1.LeaseAttemptResponse {
	answer := &leaseholdv1.LeaseAttemptResponse{
		Directive:    directive(false, a.Draining),
		HeldDuration: span(a.Held),
		Leases:       make([]*leaseholdv1.Lease, len(a.Leases)),
	}
	for i := range a.Leases {
		answer.Leases[i] = encodeLease(&a.Leases[i])
	}
	if len(answer.Leases) > 0 && proto.Size(answer) > maxMessage {
		for _, l := range answer.Leases {
			l.ParentOutputsOmitted = l.ParentOutputsOmitted || len(l.ParentOutputs) > 0
			l.ParentOutputs = nil
		}
	}
	return answer
}

func encodeLease(v *scheduler.LeaseView) *leaseholdv1.Lease {
	return &leaseholdv1.Lease{
		ExecutionId: v.ExecutionID.String(), ExecutionName: v.ExecutionName,
		StepId: v.StepID.String(), StepName: v.StepName, Capability: v.Capability,
		AttemptId: v.AttemptID.String(), AttemptNumber: int32(v.AttemptNumber), LeaseVersion: v.LeaseVersion,
		ExpireTime: instant(&v.ExpiresAt), LeaseDuration: span(v.Remaining), RenewAfter: renewAfter(v.Remaining),
		StartToCloseDeadline: instant(&v.StartToCloseAt), StartToCloseRemaining: span(v.StartToCloseRemaining),
		Input: encodePayload(v.Input), ParentOutputs: encodePayloads(v.ParentOutputs),
		ParentOutputsOmitted: v.ParentOutputsOmitted, Checkpoint: encodePayload(v.Checkpoint),
		PreviousFailure: encodeFailure(v.PreviousFailure), Labels: v.Labels, TraceContext: v.TraceContext,
	}
}

func encodeRenewed(r scheduler.Renewed) *leaseholdv1.RenewLeaseResponse {
	answer := &leaseholdv1.RenewLeaseResponse{
		ExpireTime: instant(&r.ExpiresAt), LeaseDuration: span(r.Remaining), RenewAfter: renewAfter(r.Remaining),
		Directive: directive(r.Cancel, r.Draining),
	}
	if r.Cancel && r.CancelAt != nil {
		answer.CancelDeadline, answer.CancelRemaining = instant(r.CancelAt), span(r.CancelRemaining)
	}
	return answer
}

func encodeReported(r scheduler.Reported) *leaseholdv1.ReportAttemptResponse {
	return &leaseholdv1.ReportAttemptResponse{
		Replayed: r.Replayed, StepState: encodeStepState(r.StepState),
		ExecutionState: encodeExecutionState(r.ExecutionState), NextAttemptTime: instant(r.NextDue),
	}
}

// directive is the one that matters most.
func directive(cancel, draining bool) leaseholdv1.Directive {
	switch {
	case cancel:
		return leaseholdv1.Directive_DIRECTIVE_CANCEL
	case draining:
		return leaseholdv1.Directive_DIRECTIVE_DRAIN
	default:
		return leaseholdv1.Directive_DIRECTIVE_CONTINUE
	}
}

func renewAfter(left time.Duration) *durationpb.Duration {
	return durationpb.New(max(left/renewShare, minRenewAfter))
}
