package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// tour is clients that together make use of everything that one server has, again and again.
// They repeat what is not answered as a careful client does: with the same key or request id.
type tour struct {
	t     *testing.T
	p     *peer
	end   context.CancelFunc
	parts sync.WaitGroup
}

// startTour starts one, which goes on until it is stopped.
func startTour(t *testing.T, p *peer) *tour {
	ctx, cancel := context.WithCancel(t.Context())
	v := &tour{t: t, p: p, end: cancel}
	for _, part := range []func(context.Context) error{v.produce, v.steer, v.lookAround, v.intervene, v.leave} {
		v.parts.Go(func() {
			for ctx.Err() == nil {
				if err := part(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("the tour: %v", err)
					return
				}
			}
		})
	}
	for range 2 {
		v.parts.Go(func() { v.work(ctx) })
	}
	t.Cleanup(v.stop)
	return v
}

// stop ends it, wherever it is.
func (v *tour) stop() {
	v.end()
	v.parts.Wait()
}

// ask calls until there is an answer: a server that dies leaves none.
func ask[Req, Resp any](ctx context.Context, call func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	for {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		resp, err := call(limited, req)
		cancel()
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded || ctx.Err() != nil {
			return resp, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// answered drops the answers by which a call may be refused here: what it speaks of has moved on.
func answered(err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.NotFound, codes.Aborted:
		return nil
	default:
		return err
	}
}

// spec asks for a step that the workers of the tour do as its input says.
func spec(name, input string, parents ...string) *leaseholdv1.StepSpec {
	return &leaseholdv1.StepSpec{
		Name: name, Capability: "tour.work", DependsOn: parents,
		Input:       &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: fmt.Sprintf("%q", input)}},
		RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: 2, InitialInterval: durationpb.New(time.Millisecond)},
	}
}

func request(name string, steps ...*leaseholdv1.StepSpec) *leaseholdv1.EnqueueExecutionRequest {
	return &leaseholdv1.EnqueueExecutionRequest{Name: name, IdempotencyKey: uuid.NewString(), Steps: steps}
}

func (v *tour) enqueue(ctx context.Context, req *leaseholdv1.EnqueueExecutionRequest) (*leaseholdv1.Execution, error) {
	answer, err := ask(ctx, v.p.executions.EnqueueExecution, req)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	return answer.GetExecution(), nil
}

// produce is a producer: it enqueues, cancels, watches and retries.
func (v *tour) produce(ctx context.Context) error {
	graph := request("graph", spec("a", "ok"), spec("b", "renew", "a"), spec("c", "release", "a"), spec("d", "parents", "b", "c"))
	e, err := v.enqueue(ctx, graph)
	if err != nil {
		return err
	}
	if _, err := v.enqueue(ctx, graph); err != nil { // once more, under the same key
		return err
	}
	fails, lost := request("fails", spec("a", "fail")), request("lost", spec("a", "lose"))
	batch, err := ask(ctx, v.p.executions.BatchEnqueueExecutions, &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{fails, lost},
	})
	if err != nil {
		return fmt.Errorf("enqueue in a batch: %w", err)
	}
	later := request("later", spec("a", "ok"))
	later.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(time.Hour)}
	canceled, err := v.enqueue(ctx, later)
	if err != nil {
		return err
	}
	if _, err := ask(ctx, v.p.executions.CancelExecution, &leaseholdv1.CancelExecutionRequest{ExecutionId: canceled.GetId(), Reason: "tour"}); answered(err) != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	timed := request("timed", spec("a", "ok"))
	timed.Steps[0].Capability, timed.Timeout = "tour.nobody."+uuid.NewString()[:3], durationpb.New(time.Second) // a new capability
	if _, err := v.enqueue(ctx, timed); err != nil {
		return err
	}
	failed := batch.GetResults()[0].GetResponse().GetExecution().GetId()
	for _, id := range []string{e.GetId(), failed} {
		if err := v.awaitEnd(ctx, id); err != nil {
			return err
		}
	}
	again := &leaseholdv1.RetryExecutionRequest{ExecutionId: failed, RequestId: uuid.NewString(), Reason: "tour"}
	if _, err := ask(ctx, v.p.executions.RetryExecution, again); answered(err) != nil {
		return fmt.Errorf("retry: %w", err)
	}
	return nil
}

// awaitEnd watches an execution, from where the last stream has ended, until it is over.
func (v *tour) awaitEnd(ctx context.Context, id string) error {
	var revision int64
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		stream, err := v.p.executions.WatchExecution(limited, &leaseholdv1.WatchExecutionRequest{ExecutionId: id, AfterRevision: revision})
		for err == nil {
			var update *leaseholdv1.WatchExecutionResponse
			if update, err = stream.Recv(); err == nil {
				revision = update.GetRevision()
			}
		}
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			time.Sleep(10 * time.Millisecond)
		default:
			if errors.Is(err, io.EOF) || answered(err) == nil {
				return nil
			}
			return fmt.Errorf("watch: %w", err)
		}
	}
	return nil
}

// work is a worker that does as the steps' inputs say, and now and then leaves.
func (v *tour) work(ctx context.Context) {
	for ctx.Err() == nil {
		h, err := ask(ctx, v.p.workers.RegisterWorker, &leaseholdv1.RegisterWorkerRequest{
			Capabilities: []string{"tour.work"}, Slots: 20, RequestId: uuid.NewString(), Node: "tour-node",
		})
		for range 8 {
			if err == nil {
				err = v.workOnce(ctx, h.GetWorkerId(), h.GetSessionId())
			}
		}
		if err == nil {
			_, err = ask(ctx, v.p.workers.DrainWorker, &leaseholdv1.DrainWorkerRequest{WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId()})
		}
		if answered(err) == nil {
			_, err = ask(ctx, v.p.workers.DeregisterWorker, &leaseholdv1.DeregisterWorkerRequest{WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId(), Force: true})
		}
		if answered(err) != nil && ctx.Err() == nil {
			v.t.Errorf("the tour's worker: %v", err)
			return
		}
	}
}

// workOnce polls, twice under the same request id, and does what it got.
func (v *tour) workOnce(ctx context.Context, worker, session string) error {
	poll := &leaseholdv1.LeaseAttemptRequest{
		WorkerId: worker, SessionId: session, RequestId: uuid.NewString(), MaxLeases: 10,
		WaitTimeout: durationpb.New(200 * time.Millisecond), LeaseDuration: durationpb.New(time.Second),
	}
	if _, err := ask(ctx, v.p.workers.LeaseAttempt, poll); err != nil {
		return answered(err)
	}
	granted, err := ask(ctx, v.p.workers.LeaseAttempt, poll) // its answer was lost, say
	if err != nil {
		return answered(err)
	}
	reports := &leaseholdv1.BatchReportAttemptsRequest{}
	for _, l := range granted.GetLeases() {
		report := reportFor(l)
		switch {
		case report == nil: // it is lost
		case rand.IntN(2) == 0:
			reports.Reports = append(reports.Reports, report)
		default:
			if err := v.doAlone(ctx, l, session, report); err != nil {
				return err
			}
		}
	}
	if len(reports.GetReports()) == 0 {
		return nil
	}
	_, err = ask(ctx, v.p.workers.BatchReportAttempts, reports)
	return answered(err)
}

// doAlone reads the parents' outputs of an attempt, renews it alone and in a batch, and reports it.
func (v *tour) doAlone(ctx context.Context, l *leaseholdv1.Lease, session string, report *leaseholdv1.ReportAttemptRequest) error {
	renewal := &leaseholdv1.RenewLeaseRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: session}
	_, err := ask(ctx, v.p.workers.GetStepInputs, &leaseholdv1.GetStepInputsRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion()})
	if answered(err) == nil {
		_, err = ask(ctx, v.p.workers.RenewLease, renewal)
	}
	if answered(err) == nil {
		_, err = ask(ctx, v.p.workers.BatchRenewLeases, &leaseholdv1.BatchRenewLeasesRequest{Renewals: []*leaseholdv1.RenewLeaseRequest{renewal}})
	}
	if answered(err) == nil {
		_, err = ask(ctx, v.p.workers.ReportAttempt, report)
	}
	return answered(err)
}

// reportFor is what the step's input asks for, nil for nothing.
func reportFor(l *leaseholdv1.Lease) *leaseholdv1.ReportAttemptRequest {
	r := &leaseholdv1.ReportAttemptRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion()}
	switch l.GetInput().GetJson() {
	case `"fail"`:
		r.Outcome = &leaseholdv1.ReportAttemptRequest_Failed_{Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: &leaseholdv1.Failure{Type: "TOUR", Message: "as told"}}}
	case `"lose"`:
		return nil
	case `"release"`:
		if l.GetAttemptNumber() == 1 {
			r.Outcome = &leaseholdv1.ReportAttemptRequest_Released_{Released: &leaseholdv1.ReportAttemptRequest_Released{Reason: "tour"}}
			return r
		}
		fallthrough
	default:
		r.Outcome = &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{
			Output: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: `{"done": true}`}},
		}}
	}
	return r
}

// leave is a worker that goes away while it waits, and gives nothing back.
func (v *tour) leave(ctx context.Context) error {
	h, err := ask(ctx, v.p.workers.RegisterWorker, &leaseholdv1.RegisterWorkerRequest{
		Capabilities: []string{"tour.leave"}, RequestId: uuid.NewString(), Slots: 1,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	req := request("left", spec("a", "ok"))
	req.Steps[0].Capability, req.Timeout = "tour.leave", durationpb.New(2*time.Second)
	waiting, hangUp := context.WithCancel(ctx)
	defer hangUp()
	var polling sync.WaitGroup
	polling.Go(func() {
		_, _ = v.p.workers.LeaseAttempt(waiting, &leaseholdv1.LeaseAttemptRequest{ // nobody hears the answer
			WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId(), RequestId: uuid.NewString(), WaitTimeout: durationpb.New(time.Second),
		})
	})
	_, err = v.enqueue(ctx, req)
	time.Sleep(rand.N(8 * time.Millisecond))
	hangUp()
	polling.Wait()
	if err != nil {
		return err
	}
	_, err = ask(ctx, v.p.workers.DeregisterWorker, &leaseholdv1.DeregisterWorkerRequest{WorkerId: h.GetWorkerId(), SessionId: h.GetSessionId(), Force: true})
	return answered(err)
}
