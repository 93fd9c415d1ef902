package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// worker takes work and mostly does it.
type worker struct {
	load   *load
	client *client
	name   string
	slots  int

	id, session string
	busy        sync.WaitGroup
}

// What becomes of an attempt.
const (
	outcomeSucceeded = "SUCCEEDED"
	outcomeFailed    = "FAILED"
)

// run registers and polls until the context ends, then waits for what it works on.
func (w *worker) run(ctx context.Context) {
	defer w.busy.Wait()
	if !w.register(ctx) {
		return
	}
	free := make(chan struct{}, w.slots)
	for range w.slots {
		free <- struct{}{}
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-free:
		}
		room := 1
		for len(free) > 0 {
			<-free
			room++
		}
		leases := w.poll(ctx, int32(room))
		for range room - len(leases) {
			free <- struct{}{}
		}
		for _, lease := range leases {
			w.busy.Go(func() {
				w.work(ctx, lease)
				free <- struct{}{}
			})
		}
	}
}

func (w *worker) register(ctx context.Context) bool {
	req := &leaseholdv1.RegisterWorkerRequest{
		Name: w.name, Capabilities: capabilities[:], Slots: int32(w.slots), RequestId: uuid.NewString(),
	}
	note := insist(ctx, w.client, w.load.cfg.call, call{kind: kindRegister}, func(ctx context.Context, p *peer, _ *call) error {
		answer, err := p.workers.RegisterWorker(ctx, req)
		w.id, w.session = answer.GetWorkerId(), answer.GetSessionId()
		return err
	})
	return note.code == codes.OK
}

// poll asks for leases; a poll whose answer was lost is repeated with its request id.
func (w *worker) poll(ctx context.Context, room int32) []*leaseholdv1.Lease {
	req := &leaseholdv1.LeaseAttemptRequest{
		WorkerId: w.id, SessionId: w.session, RequestId: uuid.NewString(), MaxLeases: room,
		WaitTimeout: durationpb.New(w.load.cfg.poll), LeaseDuration: durationpb.New(w.load.cfg.lease),
	}
	var leases []*leaseholdv1.Lease
	note := insist(ctx, w.client, w.load.cfg.poll+pollSlack, call{kind: kindPoll}, func(ctx context.Context, p *peer, _ *call) error {
		answer, err := p.workers.LeaseAttempt(ctx, req)
		leases = answer.GetLeases()
		return err
	})
	if note.code != codes.OK {
		if ctx.Err() == nil {
			pause(ctx, time.Second) // it is recorded; the checker tells
		}
		return nil
	}
	for _, lease := range leases {
		grant := noteOf(kindGrant, lease)
		grant.addr, grant.sent, grant.got = note.addr, note.sent, note.got
		w.client.rec.add(&grant)
	}
	return leases
}

// noteOf is a call about a lease.
func noteOf(kind string, lease *leaseholdv1.Lease) call {
	return call{
		kind: kind, execution: lease.GetExecutionId(), step: lease.GetStepId(), attempt: lease.GetAttemptId(),
		number: lease.GetAttemptNumber(), version: lease.GetLeaseVersion(),
	}
}

// work ends an attempt: of six, four succeed, one fails and one lapses. A lease that was
// granted is worked on to its end even when the load is being stopped.
func (w *worker) work(ctx context.Context, lease *leaseholdv1.Lease) {
	switch chance := rand.IntN(6); {
	case chance == 0:
		w.report(ctx, lease, outcomeFailed, false)
	case chance == 1 && !w.load.cfg.tame:
		w.lapse(ctx, lease)
	default:
		if rand.IntN(20) == 0 && !w.hold(ctx, lease, w.load.cfg.lease*3/2) {
			return
		}
		pause(ctx, 10*time.Millisecond)
		w.report(ctx, lease, outcomeSucceeded, false)
	}
}

// hold keeps a lease alive for a while, and tells whether it still is ours as far as we know.
func (w *worker) hold(ctx context.Context, lease *leaseholdv1.Lease, d time.Duration) bool {
	for began := time.Now(); time.Since(began) < d && ctx.Err() == nil; {
		pause(ctx, w.load.cfg.lease/4)
		if w.renew(ctx, lease).code != codes.OK {
			return false
		}
	}
	return ctx.Err() == nil
}

func (w *worker) renew(ctx context.Context, lease *leaseholdv1.Lease) call {
	req := &leaseholdv1.RenewLeaseRequest{
		AttemptId: lease.GetAttemptId(), LeaseVersion: lease.GetLeaseVersion(), SessionId: w.session,
		LeaseDuration: durationpb.New(w.load.cfg.lease),
	}
	return insist(ctx, w.client, w.load.cfg.call, noteOf(kindRenew, lease), func(ctx context.Context, p *peer, _ *call) error {
		_, err := p.workers.RenewLease(ctx, req)
		return err
	})
}

// lapse lets the lease run out, sometimes after a renewal, and reports when another may have
// the step already: that must be refused.
func (w *worker) lapse(ctx context.Context, lease *leaseholdv1.Lease) {
	if rand.IntN(2) == 0 {
		w.renew(ctx, lease)
	}
	req := &leaseholdv1.GetExecutionRequest{ExecutionId: lease.GetExecutionId(), StepNames: []string{lease.GetStepName()}}
	for over := false; !over; {
		pause(ctx, w.load.cfg.lease/4)
		insist(ctx, w.client, w.load.cfg.call, noteOf(kindGet, lease), func(ctx context.Context, p *peer, _ *call) error {
			answer, err := p.executions.GetExecution(ctx, req)
			for _, a := range answer.GetExecution().GetSteps()[0:min(1, len(answer.GetExecution().GetSteps()))] {
				over = attemptOver(a, lease.GetAttemptId())
			}
			return err
		})
		if ctx.Err() != nil {
			return
		}
	}
	w.report(ctx, lease, outcomeSucceeded, true)
}

// attemptOver tells whether an attempt of a step has ended.
func attemptOver(step *leaseholdv1.Step, attempt string) bool {
	for _, a := range step.GetAttempts() {
		if a.GetId() == attempt {
			return a.GetState() != leaseholdv1.AttemptState_ATTEMPT_STATE_LEASED
		}
	}
	return false
}

func (w *worker) report(ctx context.Context, lease *leaseholdv1.Lease, outcome string, late bool) {
	req := &leaseholdv1.ReportAttemptRequest{AttemptId: lease.GetAttemptId(), LeaseVersion: lease.GetLeaseVersion()}
	switch outcome {
	case outcomeFailed:
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Failed_{Failed: &leaseholdv1.ReportAttemptRequest_Failed{
			Failure: &leaseholdv1.Failure{Type: "DRILL", Message: "on purpose"},
		}}
	default:
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{
			Output: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: `{"by":"` + w.name + `"}`}},
		}}
	}
	note := noteOf(kindReport, lease)
	note.outcome, note.late = outcome, late
	insist(ctx, w.client, w.load.cfg.call, note, func(ctx context.Context, p *peer, note *call) error {
		answer, err := p.workers.ReportAttempt(ctx, req)
		note.replayed = answer.GetReplayed()
		return err
	})
}
