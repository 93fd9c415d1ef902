package worker

import (
	"context"
	"errors"
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
		for len(due) > 0 {
			batch := due[:fitting(due)]
			due = due[len(batch):]
			calls.Go(func() { r.renewBatch(ctx, batch) })
		}
		timer.Reset(time.Until(next))
	}
}

// fitting is how many of the first renewals go into one call, one at least.
func fitting(due []renewal) int {
	bytes := 0
	for i, rn := range due {
		if bytes += rn.note.size(); i > 0 && bytes > rn.session.maxBatch || i == maxRenewals {
			return i
		}
	}
	return len(due)
}

// renewBatch renews leases in one call. Everything is taken in before anything is logged,
// for a host program's logger may be slow.
func (r *run) renewBatch(ctx context.Context, batch []renewal) {
	defer signal(r.leases.wake)
	req := &leaseholdv1.BatchRenewLeasesRequest{Renewals: make([]*leaseholdv1.RenewLeaseRequest, len(batch))}
	session := batch[0].session
	for i, rn := range batch {
		req.Renewals[i] = &leaseholdv1.RenewLeaseRequest{
			AttemptId:     rn.pb.GetAttemptId(),
			LeaseVersion:  rn.pb.GetLeaseVersion(),
			SessionId:     rn.session.id,
			LeaseDuration: durationpb.New(rn.session.lease),
		}
		rn.note.writeTo(req.Renewals[i])
	}
	// Renewals begin with two thirds of the lease left: there is time for five calls or more
	// to be sent one after the other, each through another server if there is one, before the
	// lease is over. The answer to a slow one still counts.
	b := bounds{limit: min(session.lease, callTimeout), patience: session.lease / 10, slow: func() { r.overdue(batch) }}
	var resp *leaseholdv1.BatchRenewLeasesResponse
	sent := time.Now()
	err := r.servers.call(ctx, b, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) (err error) {
		resp, err = c.BatchRenewLeases(ctx, req, session.opts...)
		return err
	})
	if err != nil {
		r.renewalFailed(ctx, batch, err)
		return
	}
	refusals := make([]error, len(batch))
	for i, rn := range batch {
		refusals[i] = r.renewalResult(rn, sent, resp.GetResults(), i)
	}
	for i, err := range refusals {
		if err != nil {
			r.log.Warn("lease not renewed", append(batch[i].attrs(), "error", err)...)
		}
	}
}

// overdue has the leases renewed by another call, while the one that takes long goes on.
func (r *run) overdue(batch []renewal) {
	for _, rn := range batch {
		r.leases.overdue(rn)
	}
	signal(r.leases.wake)
}

// renewalResult takes in the ith result and returns why it was refused, if it was.
func (r *run) renewalResult(rn renewal, sent time.Time, results []*leaseholdv1.BatchRenewLeasesResult, i int) error {
	err := errNoResult
	if i < len(results) {
		switch result := results[i].GetResult().(type) {
		case *leaseholdv1.BatchRenewLeasesResult_Response:
			r.leases.renewed(rn, sent, result.Response)
			r.counts.renewed.Add(1)
			return nil
		case *leaseholdv1.BatchRenewLeasesResult_Error:
			err = fromStatus(result.Error)
		}
	}
	r.counts.notRenewed.Add(1)
	if !r.leases.refused(rn, err) {
		return nil
	}
	return err
}

// renewalFailed takes in that a whole call failed. That is no word about any lease: each is
// tried again until it runs out.
func (r *run) renewalFailed(ctx context.Context, batch []renewal, err error) {
	for _, rn := range batch {
		r.leases.unanswered(rn, err)
	}
	if ctx.Err() == nil {
		r.counts.notRenewed.Add(int64(len(batch)))
		r.log.Warn("renewals failed, trying again", "leases", len(batch), "error", err)
	}
}
