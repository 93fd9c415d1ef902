package history

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// asked is what a request asks for: an op for each thing that may be done.
func asked(req any) []Op {
	switch r := req.(type) {
	case *leaseholdv1.EnqueueExecutionRequest:
		return each([]*leaseholdv1.EnqueueExecutionRequest{r}, askedEnqueue)
	case *leaseholdv1.BatchEnqueueExecutionsRequest:
		return each(r.GetRequests(), askedEnqueue)
	case *leaseholdv1.RenewLeaseRequest:
		return each([]*leaseholdv1.RenewLeaseRequest{r}, askedRenew)
	case *leaseholdv1.BatchRenewLeasesRequest:
		return each(r.GetRenewals(), askedRenew)
	case *leaseholdv1.ReportAttemptRequest:
		return each([]*leaseholdv1.ReportAttemptRequest{r}, askedReport)
	case *leaseholdv1.BatchReportAttemptsRequest:
		return each(r.GetReports(), askedReport)
	default:
		return []Op{askedOne(req)}
	}
}

func each[T any](list []*T, asked func(*T) Op) []Op {
	ops := make([]Op, len(list))
	for i, r := range list {
		ops[i] = asked(r)
		ops[i].Outcome = Unknown
	}
	return ops
}

func askedOne(req any) Op {
	op := Op{Kind: Other, Outcome: Unknown}
	switch r := req.(type) {
	case *leaseholdv1.LeaseAttemptRequest:
		op.Kind, op.Session, op.Key = Poll, parse(r.GetSessionId()), r.GetRequestId()
	case *leaseholdv1.CancelExecutionRequest:
		op.Kind, op.Execution = Cancel, parse(r.GetExecutionId())
	case *leaseholdv1.TerminateExecutionRequest:
		op.Kind, op.Execution = Terminate, parse(r.GetExecutionId())
	case *leaseholdv1.RetryExecutionRequest:
		op.Kind, op.Execution, op.Key = Retry, parse(r.GetExecutionId()), r.GetRequestId()
	case *leaseholdv1.RevokeLeaseRequest:
		op.Kind, op.Attempt, op.Version = Revoke, parse(r.GetAttemptId()), r.GetLeaseVersion()
	case *leaseholdv1.GetExecutionRequest:
		op.Kind, op.Execution = Get, parse(r.GetExecutionId())
		if op.Key = r.GetIdempotencyKey(); op.Key != "" {
			op.Namespace = namespaceOf(r.GetNamespace())
		}
	}
	return op
}

func askedEnqueue(r *leaseholdv1.EnqueueExecutionRequest) Op {
	op := Op{Kind: Enqueue, Namespace: namespaceOf(r.GetNamespace()), Key: r.GetIdempotencyKey(), Number: int32(len(r.GetSteps()))}
	if r.GetValidateOnly() {
		op.Kind = Other
	}
	return op
}

func askedRenew(r *leaseholdv1.RenewLeaseRequest) Op {
	op := Op{
		Kind: Renew, Attempt: parse(r.GetAttemptId()), Version: r.GetLeaseVersion(), Session: parse(r.GetSessionId()),
		Checkpoint: digestPayload(r.GetCheckpoint()), Message: digestMessage(r.GetProgressMessage()),
	}
	if r.Progress != nil {
		value := r.GetProgress()
		op.Progress = &value
	}
	return op
}

// Bounds of texts that the service cuts, by its contract.
const (
	maxProgressMessage = 1 << 10
	maxFailureType     = 256
)

// digestMessage is the digest of what the service keeps of a progress message.
func digestMessage(s string) Digest {
	switch {
	case s == "":
		return 0
	case len(s) > maxProgressMessage || strings.Contains(s, "\x00"):
		return Altered
	default:
		return DigestOf([]byte(s))
	}
}

func askedReport(r *leaseholdv1.ReportAttemptRequest) Op {
	op := Op{Kind: Report, Attempt: parse(r.GetAttemptId()), Version: r.GetLeaseVersion(), Checkpoint: digestPayload(r.GetCheckpoint())}
	switch o := r.GetOutcome().(type) {
	case *leaseholdv1.ReportAttemptRequest_Succeeded_:
		op.Result, op.Output = succeeded, digestPayload(o.Succeeded.GetOutput())
	case *leaseholdv1.ReportAttemptRequest_Failed_:
		op.Result = failed
		if t := o.Failed.GetFailure().GetType(); len(t) <= maxFailureType && !strings.Contains(t, "\x00") {
			op.FailureType = t
		}
	case *leaseholdv1.ReportAttemptRequest_Released_:
		op.Result = released
	case *leaseholdv1.ReportAttemptRequest_Canceled_:
		op.Result = canceled
	}
	return op
}

func namespaceOf(s string) string {
	if s == "" {
		return "default"
	}
	return s
}

// answered completes the ops of a call by its answer. Of what nothing is decided by, nothing is
// left.
func answered(ops []Op, reply any, err error) []Op {
	done := make([]Op, 0, len(ops))
	if err != nil {
		for _, op := range ops {
			op.fail(err)
			done = append(done, op)
		}
		return withoutIdle(done)
	}
	for _, op := range ops {
		op.Outcome = OK
		done = append(done, op)
	}
	return withoutIdle(answeredOK(done, reply))
}

func withoutIdle(ops []Op) []Op {
	kept := ops[:0]
	for _, op := range ops {
		idle := op.Kind == Other && !op.bug() ||
			op.Kind == Poll && op.Outcome != Unknown && (op.Key == "" || op.Outcome == Refused) ||
			op.Kind == Get && op.Outcome == Unknown && !op.bug()
		if !idle {
			kept = append(kept, op)
		}
	}
	return kept
}

// fail notes an error. Only one of the service's own is a refusal: what comes of gRPC, or tells
// that nobody knows, leaves the outcome open.
func (o *Op) fail(err error) {
	st := status.Convert(err)
	o.Outcome, o.Code = Unknown, st.Code()
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != "leasehold" {
			continue
		}
		o.Reason = info.GetReason()
		if id := info.GetMetadata()["existing_execution_id"]; id != "" && (info.GetMetadata()["idempotency_key"] == o.Key) {
			o.Execution = parse(id)
		}
		switch o.Code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Internal, codes.Unknown, codes.DataLoss:
		default:
			o.Outcome = Refused
		}
	}
}
