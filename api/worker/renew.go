package worker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// maxRenewals is how many leases one call renews; the server takes twice as many.
const maxRenewals = 500

// errNoResult stands for a renewal that a batch's answer does not mention.
var errNoResult = errors.New("no result in the answer")

// renewLoop keeps the leases of all attempts until ctx ends. It only looks what is due and
// starts calls: neither a handler nor a call that hangs can hold it up.
func (r *run) renewLoop(ctx context.Context) {
	var calls sync.WaitGroup
	defer calls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	// A thirtieth of the lease: a tenth of the usual time between renewals.
	slack := r.cfg.LeaseDuration / 30
	for {
		select {
		case <-timer.C:
		case <-r.leases.wake:
		case <-ctx.Done():
			return
		}
		due, next := r.leases.due(time.Now(), slack)
		for batch := range slices.Chunk(due, maxRenewals) {
			calls.Go(func() { r.renewBatch(ctx, batch) })
		}
		timer.Reset(time.Until(next))
	}
}

// renewBatch renews leases in one call. Everything is taken in before anything is logged,
// for a host program's logger may be slow.
func (r *run) renewBatch(ctx context.Context, batch []*lease) {
	defer signal(r.leases.wake)
	req := &leaseholdv1.BatchRenewLeasesRequest{Renewals: make([]*leaseholdv1.RenewLeaseRequest, len(batch))}
	timeout := time.Duration(0)
	for i, l := range batch {
		req.Renewals[i] = &leaseholdv1.RenewLeaseRequest{
			AttemptId:     l.pb.GetAttemptId(),
			LeaseVersion:  l.pb.GetLeaseVersion(),
			SessionId:     l.session.id,
			LeaseDuration: durationpb.New(l.session.lease),
		}
		timeout = max(timeout, l.session.lease/5)
	}
	// Renewals begin with two thirds of the lease left: that is room for three tries or more.
	callCtx, cancel := context.WithTimeout(ctx, min(timeout, callTimeout))
	defer cancel()
	sent := time.Now()
	resp, err := r.client.BatchRenewLeases(callCtx, req, batch[0].session.opts...)
	if err != nil {
		r.renewalFailed(ctx, batch, fromWire(err))
		return
	}
	refusals := make([]error, len(batch))
	for i, l := range batch {
		refusals[i] = r.renewalResult(l, sent, resp.GetResults(), i)
	}
	for i, err := range refusals {
		if err != nil {
			r.log.Warn("lease not renewed", append(batch[i].attrs(), "error", err)...)
		}
	}
}

// renewalResult takes in the ith result and returns why it was refused, if it was.
func (r *run) renewalResult(l *lease, sent time.Time, results []*leaseholdv1.BatchRenewLeasesResult, i int) error {
	if i >= len(results) {
		r.leases.refused(l, errNoResult)
		return errNoResult
	}
	switch result := results[i].GetResult().(type) {
	case *leaseholdv1.BatchRenewLeasesResult_Response:
		r.leases.renewed(l, sent, result.Response)
		return nil
	case *leaseholdv1.BatchRenewLeasesResult_Error:
		err := fromStatus(result.Error)
		if !r.leases.refused(l, err) {
			return nil
		}
		return err
	default:
		r.leases.refused(l, errNoResult)
		return errNoResult
	}
}

// renewalFailed takes in that a whole call failed. That is no word about any lease: each is
// tried again until it runs out.
func (r *run) renewalFailed(ctx context.Context, batch []*lease, err error) {
	for _, l := range batch {
		r.leases.unanswered(l)
	}
	if ctx.Err() == nil {
		r.log.Warn("renewals failed, trying again", "leases", len(batch), "error", err)
	}
}
