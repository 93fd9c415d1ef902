package grpcapi

import (
	"context"
	"fmt"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Sessions opens and ends workers' sessions.
type Sessions interface {
	// Register opens a session, which supersedes an older one of the same name.
	Register(ctx context.Context, r scheduler.Registration) (scheduler.Session, error)
	// Drain stops new leases; it tells how many are live.
	Drain(ctx context.Context, workerID, sessionID uuid.UUID) (liveLeases int, err error)
	// Deregister ends a session; it tells how many leases were ended by force.
	Deregister(ctx context.Context, workerID, sessionID uuid.UUID, force bool) (endedLeases int, err error)
}

// Leases grants, keeps and ends attempts.
type Leases interface {
	// Poll waits for work, at most p.Wait; once the replica stops, not at all.
	Poll(ctx context.Context, p scheduler.Poll) (scheduler.PollAnswer, error)
	// Renew keeps attempts; there is one result for each, in order.
	Renew(ctx context.Context, renewals []scheduler.Renewal) []scheduler.Result[scheduler.Renewed]
	// Report ends attempts; there is one result for each, in order.
	Report(ctx context.Context, reports []scheduler.Report) []scheduler.Result[scheduler.Reported]
}

// workerService is for workers.
type workerService struct {
	leaseholdv1.UnimplementedWorkerServiceServer
	sessions Sessions
	leases   Leases
	queries  Queries
	config   Config
	check    protovalidate.Validator
	failures errorMapper
}

// RegisterWorker opens a session.
func (s *workerService) RegisterWorker(ctx context.Context, r *leaseholdv1.RegisterWorkerRequest) (*leaseholdv1.RegisterWorkerResponse, error) {
	session, err := s.sessions.Register(ctx, decodeRegistration(r))
	if err != nil {
		return nil, err
	}
	return encodeSession(session, s.config), nil
}

// LeaseAttempt waits for work.
func (s *workerService) LeaseAttempt(ctx context.Context, r *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error) {
	answer, err := s.leases.Poll(ctx, decodePoll(ctx, r, time.Now()))
	if err != nil {
		return nil, err
	}
	return encodePollAnswer(answer, s.config.MaxMessageBytes), nil
}

// RenewLease keeps an attempt.
func (s *workerService) RenewLease(ctx context.Context, r *leaseholdv1.RenewLeaseRequest) (*leaseholdv1.RenewLeaseResponse, error) {
	renewed, err := only(s.leases.Renew(ctx, []scheduler.Renewal{decodeRenewal(r)}))
	if err != nil {
		return nil, err
	}
	return encodeRenewed(renewed), nil
}

// BatchRenewLeases keeps many; each has its own result.
func (s *workerService) BatchRenewLeases(ctx context.Context, r *leaseholdv1.BatchRenewLeasesRequest) (*leaseholdv1.BatchRenewLeasesResponse, error) {
	results := eachValid(ctx, s.check, r.GetRenewals(), decodeRenewal, s.leases.Renew)
	answer := &leaseholdv1.BatchRenewLeasesResponse{Results: make([]*leaseholdv1.BatchRenewLeasesResult, len(results))}
	for i, one := range results {
		answer.Results[i] = &leaseholdv1.BatchRenewLeasesResult{}
		if one.Err != nil {
			answer.Results[i].Result = &leaseholdv1.BatchRenewLeasesResult_Error{Error: s.failures.item(ctx, one.Err)}
			continue
		}
		answer.Results[i].Result = &leaseholdv1.BatchRenewLeasesResult_Response{Response: encodeRenewed(one.Value)}
	}
	return answer, nil
}

// ReportAttempt ends an attempt.
func (s *workerService) ReportAttempt(ctx context.Context, r *leaseholdv1.ReportAttemptRequest) (*leaseholdv1.ReportAttemptResponse, error) {
	reported, err := only(s.leases.Report(ctx, []scheduler.Report{decodeReport(r)}))
	if err != nil {
		return nil, err
	}
	return encodeReported(reported), nil
}

// BatchReportAttempts ends many; each has its own result.
func (s *workerService) BatchReportAttempts(ctx context.Context, r *leaseholdv1.BatchReportAttemptsRequest) (*leaseholdv1.BatchReportAttemptsResponse, error) {
	results := eachValid(ctx, s.check, r.GetReports(), decodeReport, s.leases.Report)
	answer := &leaseholdv1.BatchReportAttemptsResponse{Results: make([]*leaseholdv1.BatchReportAttemptsResult, len(results))}
	for i, one := range results {
		answer.Results[i] = &leaseholdv1.BatchReportAttemptsResult{}
		if one.Err != nil {
			answer.Results[i].Result = &leaseholdv1.BatchReportAttemptsResult_Error{Error: s.failures.item(ctx, one.Err)}
			continue
		}
		answer.Results[i].Result = &leaseholdv1.BatchReportAttemptsResult_Response{Response: encodeReported(one.Value)}
	}
	return answer, nil
}

// GetStepInputs reads parents' outputs that did not fit into the lease.
func (s *workerService) GetStepInputs(ctx context.Context, r *leaseholdv1.GetStepInputsRequest) (*leaseholdv1.GetStepInputsResponse, error) {
	after, err := inputsBinding(r).ordinal(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	inputs, err := s.queries.StepInputs(ctx, scheduler.InputsQuery{
		AttemptID: id(r.GetAttemptId()), LeaseVersion: r.GetLeaseVersion(), AfterOrdinal: after,
		MaxBytes: s.config.MaxMessageBytes - inputsReserve(s.config.MaxMessageBytes),
	})
	if err != nil {
		return nil, err
	}
	answer := &leaseholdv1.GetStepInputsResponse{ParentOutputs: encodePayloads(inputs.Outputs)}
	if inputs.Next >= 0 {
		answer.NextPageToken = inputsBinding(r).numberToken(int64(inputs.Next))
	}
	return answer, nil
}

// DrainWorker stops new leases for a session.
func (s *workerService) DrainWorker(ctx context.Context, r *leaseholdv1.DrainWorkerRequest) (*leaseholdv1.DrainWorkerResponse, error) {
	live, err := s.sessions.Drain(ctx, id(r.GetWorkerId()), id(r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.DrainWorkerResponse{LiveLeases: int32(live)}, nil
}

// DeregisterWorker ends a session.
func (s *workerService) DeregisterWorker(ctx context.Context, r *leaseholdv1.DeregisterWorkerRequest) (*leaseholdv1.DeregisterWorkerResponse, error) {
	ended, err := s.sessions.Deregister(ctx, id(r.GetWorkerId()), id(r.GetSessionId()), r.GetForce())
	if err != nil {
		return nil, err
	}
	return &leaseholdv1.DeregisterWorkerResponse{EndedLeases: int32(ended)}, nil
}

// inputsReserve is kept free in an answer for the names of the parents, which are not
// counted among the bytes of their outputs: an eighth.
func inputsReserve(maxMessage int) int { return maxMessage / 8 }

// only is the result of a call with one item.
func only[T any](results []scheduler.Result[T]) (value T, err error) {
	if len(results) != 1 {
		return value, fmt.Errorf("one item was answered with %d results", len(results))
	}
	return results[0].Value, results[0].Err
}

// attemptItem is a renewal or a report.
type attemptItem interface {
	proto.Message
	GetAttemptId() string
}

// eachValid validates the items of a batch one by one, hands the good ones to the application
// together, and puts every result in its place. An attempt is ended or renewed once in a batch:
// a second item about it is refused.
func eachValid[P attemptItem, C, T any](
	ctx context.Context, check protovalidate.Validator, items []P,
	decode func(P) C, call func(context.Context, []C) []scheduler.Result[T],
) []scheduler.Result[T] {
	results := make([]scheduler.Result[T], len(items))
	var commands []C
	var places []int
	seen := make(map[uuid.UUID]bool, len(items))
	for i, item := range items {
		if results[i].Err = check.Validate(item); results[i].Err != nil {
			continue
		}
		attempt := id(item.GetAttemptId())
		if seen[attempt] {
			results[i].Err = &scheduler.InvalidError{Violations: []task.Violation{{
				Field: "attempt_id", Reason: task.ReasonInvalidField, Message: "is in the batch twice",
			}}}
			continue
		}
		seen[attempt] = true
		commands, places = append(commands, decode(item)), append(places, i)
	}
	if len(commands) == 0 {
		return results
	}
	answers := call(ctx, commands)
	for j, i := range places {
		if len(answers) != len(commands) {
			results[i].Err = fmt.Errorf("%d items were answered with %d results", len(commands), len(answers))
			continue
		}
		results[i] = answers[j]
	}
	return results
}
