package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Client calls one replica.
type Client struct {
	Executions leaseholdv1.ExecutionServiceClient
	Workers    leaseholdv1.WorkerServiceClient
	Operators  leaseholdv1.OperatorServiceClient
}

// Get reads an execution with all its steps and payloads.
func (c *Client) Get(ctx context.Context, id string) (*leaseholdv1.Execution, error) {
	var whole *leaseholdv1.Execution
	req := &leaseholdv1.GetExecutionRequest{ExecutionId: id, IncludePayloads: true}
	for {
		answer, err := c.Executions.GetExecution(ctx, req)
		if err != nil {
			return nil, err
		}
		if whole == nil {
			whole = answer.GetExecution()
		} else {
			whole.Steps = append(whole.Steps, answer.GetExecution().GetSteps()...)
		}
		if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
			return whole, nil
		}
	}
}

// Timeline reads what happened to an execution, from the first entry to the last.
func (c *Client) Timeline(ctx context.Context, id string) ([]*leaseholdv1.TimelineEntry, error) {
	var all []*leaseholdv1.TimelineEntry
	req := &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageSize: 1000}
	for {
		answer, err := c.Executions.ListTimeline(ctx, req)
		if err != nil {
			return nil, err
		}
		all = append(all, answer.GetEntries()...)
		if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
			return all, nil
		}
	}
}

// Register opens a worker's session.
func (c *Client) Register(ctx context.Context, r *leaseholdv1.RegisterWorkerRequest) (*Worker, error) {
	answer, err := c.Workers.RegisterWorker(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Worker{ID: answer.GetWorkerId(), Session: answer.GetSessionId(), Welcome: answer, via: c}, nil
}

// Worker is a worker's session, through the client that it was opened with.
type Worker struct {
	ID      string
	Session string
	Welcome *leaseholdv1.RegisterWorkerResponse
	via     *Client
}

// Via is the same session through another replica.
func (w *Worker) Via(c *Client) *Worker {
	other := *w
	other.via = c
	return &other
}

// Poll is how a worker asks for leases.
type Poll struct {
	Max     int           // default 1
	Wait    time.Duration // 0: answered at once
	TTL     time.Duration // of the leases; 0: the server's default
	Request string        // request id; empty: a repeat may get others
}

// Lease polls once.
func (w *Worker) Lease(ctx context.Context, p Poll) (*leaseholdv1.LeaseAttemptResponse, error) {
	req := &leaseholdv1.LeaseAttemptRequest{
		WorkerId: w.ID, SessionId: w.Session, RequestId: p.Request, MaxLeases: int32(p.Max), WaitTimeout: durationpb.New(p.Wait),
	}
	if p.TTL > 0 {
		req.LeaseDuration = durationpb.New(p.TTL)
	}
	return w.via.Workers.LeaseAttempt(ctx, req)
}

// Renew keeps a lease.
func (w *Worker) Renew(ctx context.Context, l *leaseholdv1.Lease, ttl time.Duration) (*leaseholdv1.RenewLeaseResponse, error) {
	return w.via.Workers.RenewLease(ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: w.Session, LeaseDuration: durationpb.New(ttl),
	})
}

// Report ends an attempt; the request's attempt and version are those of the lease.
func (w *Worker) Report(ctx context.Context, l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) (*leaseholdv1.ReportAttemptResponse, error) {
	r.AttemptId, r.LeaseVersion = l.GetAttemptId(), l.GetLeaseVersion()
	return w.via.Workers.ReportAttempt(ctx, r)
}

// Succeeded is the report of a success; output may be nil.
func Succeeded(output *leaseholdv1.Payload) *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Succeeded_{
		Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{Output: output},
	}}
}

// Failed is the report of a failure.
func Failed(f *leaseholdv1.Failure) *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Failed_{
		Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: f},
	}}
}

// Released is the report of a hand-back, due again after notBefore.
func Released(reason string, notBefore time.Duration) *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Released_{
		Released: &leaseholdv1.ReportAttemptRequest_Released{Reason: reason, NotBeforeDelay: durationpb.New(notBefore)},
	}}
}

// Canceled is the report that the work was stopped because of a cancel.
func Canceled() *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Canceled_{
		Canceled: &leaseholdv1.ReportAttemptRequest_Canceled{},
	}}
}

// JSON is a payload of JSON text.
func JSON(text string) *leaseholdv1.Payload {
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: text}}
}

// Data is a payload of bytes.
func Data(body []byte) *leaseholdv1.Payload {
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: body}}
}

// Reason is the reason in an error's ErrorInfo, or nothing.
func Reason(err error) string {
	if info := Info(err); info != nil {
		return info.GetReason()
	}
	return ""
}

// Info is an error's ErrorInfo, or nil.
func Info(err error) *errdetails.ErrorInfo {
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

// pollEvery is how often Await looks.
const pollEvery = 20 * time.Millisecond

// ErrAwait says that what was awaited did not come in time.
var ErrAwait = errors.New("did not come")

// Await looks until a condition holds or the time is over. A condition's error ends it.
func Await(ctx context.Context, limit time.Duration, what string, holds func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		ok, err := holds(ctx)
		switch {
		case ctx.Err() != nil: // an error then only tells of it
		case err != nil:
			return fmt.Errorf("await %s: %w", what, err)
		case ok:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w within %s", what, ErrAwait, limit)
		case <-ticker.C:
		}
	}
}
