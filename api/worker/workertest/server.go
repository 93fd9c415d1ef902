package workertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

const (
	leaseDuration = 30 * time.Second
	// renewAfter is short, so that what happens to an attempt is heard soon.
	renewAfter = 100 * time.Millisecond
	// defaultMaxPayload is the server's own default.
	defaultMaxPayload = 1 << 20
	maxMessage        = 4 << 20
)

// server answers as a server does that has one attempt to give out. It stands in for the
// connection to one.
type server struct {
	attempt Attempt
	lease   *leaseholdv1.Lease

	mu         sync.Mutex
	granted    time.Time // zero: not yet
	checkpoint *leaseholdv1.Payload
	progress   float64
	message    string
	report     *leaseholdv1.ReportAttemptRequest // nil: none yet
	cause      error                             // of the end of the handler's context
}

var _ grpc.ClientConnInterface = (*server)(nil)

var errNoStreams = errors.New("workertest: workers use no streams")

func newServer(input any, a Attempt) (*server, error) {
	l := &leaseholdv1.Lease{
		ExecutionId: uuid.NewString(), StepId: uuid.NewString(), AttemptId: uuid.NewString(),
		ExecutionName: "test", StepName: "test", Capability: "test", AttemptNumber: 1, LeaseVersion: 1,
	}
	if a.Lease != nil {
		proto.Merge(l, a.Lease)
	}
	if a.Number > 0 {
		l.AttemptNumber = int32(a.Number)
	}
	if a.MaxPayloadBytes <= 0 {
		a.MaxPayloadBytes = defaultMaxPayload
	}
	l.LeaseDuration, l.RenewAfter = durationpb.New(leaseDuration), durationpb.New(renewAfter)
	if a.Timeout > 0 {
		l.StartToCloseRemaining = durationpb.New(a.Timeout)
	}
	var err error
	if l.Input, err = payload("input", input); err != nil {
		return nil, err
	}
	if a.Checkpoint != nil {
		if l.Checkpoint, err = payload("checkpoint", a.Checkpoint); err != nil {
			return nil, err
		}
	}
	for name, output := range a.ParentOutputs {
		p, err := payload("output of "+name, output)
		if err != nil {
			return nil, err
		}
		if l.ParentOutputs == nil {
			l.ParentOutputs = make(map[string]*leaseholdv1.Payload)
		}
		l.ParentOutputs[name] = p
	}
	return &server{attempt: a, lease: l, checkpoint: l.GetCheckpoint()}, nil
}

func payload(what string, v any) (*leaseholdv1.Payload, error) {
	if p, raw := v.(*leaseholdv1.Payload); raw {
		return p, nil
	}
	p, err := worker.EncodePayload(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	return p, nil
}

// Invoke answers one call.
func (s *server) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	var answer proto.Message
	var err error
	switch req := args.(type) {
	case *leaseholdv1.RegisterWorkerRequest:
		answer = &leaseholdv1.RegisterWorkerResponse{
			WorkerId: uuid.NewString(), SessionId: uuid.NewString(), Name: "test",
			MaxPayloadBytes: int64(s.attempt.MaxPayloadBytes), MaxMessageBytes: maxMessage,
		}
	case *leaseholdv1.LeaseAttemptRequest:
		answer, err = s.poll(ctx, req)
	case *leaseholdv1.BatchRenewLeasesRequest:
		answer = s.renew(req)
	case *leaseholdv1.ReportAttemptRequest:
		answer, err = s.end(req)
	case *leaseholdv1.DrainWorkerRequest:
		answer = &leaseholdv1.DrainWorkerResponse{}
	case *leaseholdv1.DeregisterWorkerRequest:
		answer = &leaseholdv1.DeregisterWorkerResponse{}
	default:
		err = status.Errorf(codes.Unimplemented, "workertest: no answer to %s", method)
	}
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), answer)
	return nil
}

// NewStream refuses: no method of a worker is a stream.
func (s *server) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errNoStreams
}

// poll gives the attempt to who asks first.
func (s *server) poll(ctx context.Context, req *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error) {
	s.mu.Lock()
	first := s.granted.IsZero()
	if first {
		s.granted = time.Now()
	}
	s.mu.Unlock()
	if first {
		return &leaseholdv1.LeaseAttemptResponse{Leases: []*leaseholdv1.Lease{s.lease}}, nil
	}
	timer := time.NewTimer(req.GetWaitTimeout().AsDuration())
	defer timer.Stop()
	select {
	case <-timer.C:
		return &leaseholdv1.LeaseAttemptResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (s *server) renew(req *leaseholdv1.BatchRenewLeasesRequest) *leaseholdv1.BatchRenewLeasesResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := &leaseholdv1.BatchRenewLeasesResponse{}
	for _, one := range req.GetRenewals() {
		result := &leaseholdv1.BatchRenewLeasesResult{}
		if s.over(s.attempt.LoseLeaseAfter) {
			result.Result = &leaseholdv1.BatchRenewLeasesResult_Error{Error: status.Convert(errRevoked()).Proto()}
		} else {
			result.Result = &leaseholdv1.BatchRenewLeasesResult_Response{Response: s.renewOne(one)}
		}
		answer.Results = append(answer.Results, result)
	}
	return answer
}

// renewOne keeps what a renewal tells. mu is held.
func (s *server) renewOne(req *leaseholdv1.RenewLeaseRequest) *leaseholdv1.RenewLeaseResponse {
	if req.GetCheckpoint() != nil {
		s.checkpoint = req.GetCheckpoint()
	}
	if req.Progress != nil {
		s.progress = req.GetProgress()
	}
	if req.GetProgressMessage() != "" {
		s.message = req.GetProgressMessage()
	}
	answer := &leaseholdv1.RenewLeaseResponse{
		LeaseDuration: durationpb.New(leaseDuration), RenewAfter: durationpb.New(renewAfter),
		Directive: leaseholdv1.Directive_DIRECTIVE_CONTINUE,
	}
	if s.over(s.attempt.CancelAfter) {
		answer.Directive = leaseholdv1.Directive_DIRECTIVE_CANCEL
	}
	return answer
}

// end takes the report.
func (s *server) end(req *leaseholdv1.ReportAttemptRequest) (*leaseholdv1.ReportAttemptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over(s.attempt.LoseLeaseAfter) {
		return nil, errRevoked()
	}
	s.report = req
	if req.GetCheckpoint() != nil {
		s.checkpoint = req.GetCheckpoint()
	}
	return &leaseholdv1.ReportAttemptResponse{}, nil
}

// over reports whether something that happens after d has happened. mu is held.
func (s *server) over(d time.Duration) bool {
	return d > 0 && !s.granted.IsZero() && time.Since(s.granted) >= d
}

func errRevoked() error {
	st, err := status.New(codes.FailedPrecondition, "the lease was taken away").
		WithDetails(&errdetails.ErrorInfo{Domain: "leasehold", Reason: "LEASE_REVOKED"})
	if err != nil {
		return err
	}
	return st.Err()
}

// handled notes how the handler's context stood when the handler returned.
func (s *server) handled(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = cause
}

// state is how the attempt ended. mu is held.
func (s *server) state() leaseholdv1.AttemptState {
	switch s.report.GetOutcome().(type) {
	case *leaseholdv1.ReportAttemptRequest_Succeeded_:
		return leaseholdv1.AttemptState_ATTEMPT_STATE_SUCCEEDED
	case *leaseholdv1.ReportAttemptRequest_Failed_:
		return leaseholdv1.AttemptState_ATTEMPT_STATE_FAILED
	case *leaseholdv1.ReportAttemptRequest_Released_:
		return leaseholdv1.AttemptState_ATTEMPT_STATE_RELEASED
	case *leaseholdv1.ReportAttemptRequest_Canceled_:
		return leaseholdv1.AttemptState_ATTEMPT_STATE_CANCELED
	}
	if errors.Is(s.cause, worker.ErrDeadline) {
		return leaseholdv1.AttemptState_ATTEMPT_STATE_TIMED_OUT
	}
	return leaseholdv1.AttemptState_ATTEMPT_STATE_LOST
}
