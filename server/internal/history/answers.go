package history

import (
	"strings"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// answeredOK completes the ops of a call that was answered OK, item by item.
func answeredOK(ops []Op, reply any) []Op {
	switch r := reply.(type) {
	case *leaseholdv1.LeaseAttemptResponse:
		return grants(ops[0], r)
	case *leaseholdv1.EnqueueExecutionResponse:
		ops[0].enqueued(r)
	case *leaseholdv1.BatchEnqueueExecutionsResponse:
		for i, one := range r.GetResults()[:min(len(r.GetResults()), len(ops))] {
			ops[i].item(one.GetError(), func(o *Op) { o.enqueued(one.GetResponse()) })
		}
	case *leaseholdv1.RenewLeaseResponse:
		ops[0].renewed(r)
	case *leaseholdv1.BatchRenewLeasesResponse:
		for i, one := range r.GetResults()[:min(len(r.GetResults()), len(ops))] {
			ops[i].item(one.GetError(), func(o *Op) { o.renewed(one.GetResponse()) })
		}
	case *leaseholdv1.ReportAttemptResponse:
		ops[0].reported(r)
	case *leaseholdv1.BatchReportAttemptsResponse:
		for i, one := range r.GetResults()[:min(len(r.GetResults()), len(ops))] {
			ops[i].item(one.GetError(), func(o *Op) { o.reported(one.GetResponse()) })
		}
	case *leaseholdv1.CancelExecutionResponse:
		ops[0].shown(r.GetExecution())
	case *leaseholdv1.TerminateExecutionResponse:
		ops[0].shown(r.GetExecution())
	case *leaseholdv1.GetExecutionResponse:
		ops[0].shown(r.GetExecution())
	case *leaseholdv1.RetryExecutionResponse:
		ops[0].Replayed, ops[0].Round = r.GetReplayed(), r.GetRound()
	case *leaseholdv1.RevokeLeaseResponse:
		ops[0].Replayed = r.GetReplayed()
	}
	return ops
}

// item completes an op by its own result within a batch.
func (o *Op) item(failure *rpcstatus.Status, done func(*Op)) {
	if failure != nil {
		o.fail(status.ErrorProto(failure))
		return
	}
	done(o)
}

func (o *Op) enqueued(r *leaseholdv1.EnqueueExecutionResponse) {
	o.Created = r.GetCreated()
	o.shown(r.GetExecution())
}

func (o *Op) shown(e *leaseholdv1.Execution) {
	if e == nil {
		return
	}
	o.Execution, o.Round, o.Revision = parse(e.GetId()), e.GetRound(), e.GetRevision()
	o.State = strings.TrimPrefix(e.GetState().String(), "EXECUTION_STATE_")
}

// renewed keeps what is left of the lease, counted from before the call: it lasts longer than that.
func (o *Op) renewed(r *leaseholdv1.RenewLeaseResponse) {
	o.Lasts = int64(r.GetLeaseDuration().AsDuration())
}

func (o *Op) reported(r *leaseholdv1.ReportAttemptResponse) {
	o.Replayed = r.GetReplayed()
	o.State = strings.TrimPrefix(r.GetExecutionState().String(), "EXECUTION_STATE_")
	o.StepState = strings.TrimPrefix(r.GetStepState().String(), "STEP_STATE_")
}

// grants are the leases of an answer; without any it stays a poll.
func grants(poll Op, r *leaseholdv1.LeaseAttemptResponse) []Op {
	if len(r.GetLeases()) == 0 {
		return []Op{poll}
	}
	ops := make([]Op, len(r.GetLeases()))
	for i, l := range r.GetLeases() {
		ops[i] = poll
		ops[i].Kind, ops[i].Execution, ops[i].Step = Grant, parse(l.GetExecutionId()), parse(l.GetStepId())
		ops[i].Attempt, ops[i].Version, ops[i].Number = parse(l.GetAttemptId()), l.GetLeaseVersion(), l.GetAttemptNumber()
		ops[i].Lasts = int64(r.GetHeldDuration().AsDuration() + l.GetLeaseDuration().AsDuration())
	}
	return ops
}
