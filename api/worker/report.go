package worker

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// A RESOURCE_EXHAUSTED without the service's reason is gRPC's own word that a message is
	// too large, or that of something on the way that limits rates. A limit of rates lets a
	// call through before long, and no limit of sizes is as low as this.
	largeReportBytes = 64 << 10
	largeReportTries = 3
	// fewer is by how much smaller the next call of a report is after one that failed as a
	// whole, until it is alone: some report in it may be the cause.
	fewer = 8
)

// report tells the server how an attempt ended, and tries until it is answered, the lease is
// over, or ctx ends. One try is made in any case, and as many as there are servers while none of them
// answers: the service's row decides, not this clock.
func (r *run) report(ctx context.Context, l *lease, req *leaseholdv1.ReportAttemptRequest) {
	exhausted, most := 0, maxReports
	for try := 0; ; try++ {
		answer := r.reports.send(ctx, l.session, req, most)
		err := answer.err
		if err == nil {
			r.counts.reported(req)
			return
		}
		if answer.with > 1 {
			most = max(answer.with/fewer, 1)
			if !isAway(err) {
				continue // it says nothing of this report
			}
		}
		if status.Code(err) == codes.ResourceExhausted && !hasReason(err) {
			exhausted++
		}
		if other := substitute(req, err, exhausted); other != nil {
			r.log.Warn("report refused, reporting less instead", append(l.attrs(), "error", err)...)
			req = other
			continue
		}
		if isFinal(err) {
			r.counts.unreported.Add(1)
			r.log.Warn("report refused, result dropped", append(l.attrs(), "error", err)...)
			return
		}
		left := r.leases.left(l)
		over := left <= 0 && (!isAway(err) || try+1 >= r.servers.count())
		if over || !r.servers.pause(ctx, min(retryWait(try, retryCap), max(left, 0)), err) {
			r.counts.unreported.Add(1)
			r.log.Warn("report not answered in time, result dropped", append(l.attrs(), "tries", try+1, "error", err)...)
			return
		}
	}
}

// substitute is what is reported instead of something that the server will never take, or nil
// if there is no need: a refused report leaves the attempt alive until its lease runs out.
func substitute(req *leaseholdv1.ReportAttemptRequest, err error, exhausted int) *leaseholdv1.ReportAttemptRequest {
	invalid := status.Code(err) == codes.InvalidArgument
	tooLarge := invalid && errors.Is(err, ErrPayloadTooLarge) ||
		exhausted >= largeReportTries && proto.Size(req) >= largeReportBytes
	if !invalid && !tooLarge {
		return nil
	}
	var failure *leaseholdv1.Failure
	switch {
	case req.GetCheckpoint() != nil: // the least of what is told
		other := proto.CloneOf(req)
		other.Checkpoint = nil
		return other
	case req.GetSucceeded() != nil && tooLarge:
		failure = finalFailure(TypeResultTooLarge, fmt.Sprintf("the server refused the output as too large: %v", err)).failure
	case req.GetSucceeded() != nil:
		failure = finalFailure(TypeInvalidResult, fmt.Sprintf("the server refused the output: %v", err)).failure
	case req.GetFailed().GetFailure().GetDetails() != nil:
		failure = proto.CloneOf(req.GetFailed().GetFailure())
		failure.Details = nil
	default:
		return nil
	}
	return &leaseholdv1.ReportAttemptRequest{
		AttemptId:    req.GetAttemptId(),
		LeaseVersion: req.GetLeaseVersion(),
		Outcome:      &leaseholdv1.ReportAttemptRequest_Failed_{Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: failure}},
	}
}
