package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// errorRow is a row of the table of errors.
type errorRow struct {
	name     string
	err      error
	code     codes.Code
	reason   string
	metadata map[string]string
	detail   any
}

func errorRows() []errorRow {
	refused := func(reason task.Reason) error {
		return fmt.Errorf("report attempt: %w", &scheduler.RefusedError{
			Reason: reason, Subject: someID, HeldVersion: 7, CurrentVersion: 9, Message: "it came too late",
		})
	}
	missing := func(kind scheduler.Kind) error {
		return fmt.Errorf("load: %w", &scheduler.NotFoundError{Kind: kind, ID: someID})
	}
	versions := map[string]string{"subject": someID, "held_lease_version": "7", "current_lease_version": "9"}
	return []errorRow{
		{"execution unknown", missing(scheduler.KindExecution), codes.NotFound, "EXECUTION_NOT_FOUND", map[string]string{"execution_id": someID}, &errdetails.ResourceInfo{}},
		{"step unknown", missing(scheduler.KindStep), codes.NotFound, "STEP_NOT_FOUND", nil, &errdetails.ResourceInfo{}},
		{"attempt unknown", missing(scheduler.KindAttempt), codes.NotFound, "ATTEMPT_NOT_FOUND", nil, &errdetails.ResourceInfo{}},
		{"worker unknown", missing(scheduler.KindWorker), codes.NotFound, "WORKER_NOT_FOUND", nil, &errdetails.ResourceInfo{}},
		{"session unknown", missing(scheduler.KindSession), codes.NotFound, "SESSION_NOT_FOUND", nil, &errdetails.ResourceInfo{}},
		{"invalid", &scheduler.InvalidError{Violations: []task.Violation{{Field: "steps[0].name", Reason: task.ReasonStepDoubleName, Message: "twice"}}},
			codes.InvalidArgument, "STEP_DUPLICATE_NAME", map[string]string{"field": "steps[0].name"}, &errdetails.BadRequest{}},
		{"invalid, unsaid", &scheduler.InvalidError{}, codes.InvalidArgument, "INVALID_FIELD", nil, nil},
		{"key reused", &scheduler.KeyReusedError{Namespace: "default", Key: "k", ExistingID: someID},
			codes.AlreadyExists, "IDEMPOTENCY_KEY_REUSED", map[string]string{"existing_execution_id": someID, "idempotency_key": "k"}, &errdetails.ResourceInfo{}},
		{"superseded", refused(task.ReasonLeaseSuperseded), codes.FailedPrecondition, "LEASE_SUPERSEDED", versions, &errdetails.PreconditionFailure{}},
		{"recorded", refused(task.ReasonOutcomeRecorded), codes.FailedPrecondition, "OUTCOME_ALREADY_RECORDED", versions, &errdetails.PreconditionFailure{}},
		{"revoked", refused(task.ReasonLeaseRevoked), codes.FailedPrecondition, "LEASE_REVOKED", versions, &errdetails.PreconditionFailure{}},
		{"session superseded", refused(task.ReasonSessionSuperseded), codes.FailedPrecondition, "SESSION_SUPERSEDED", versions, &errdetails.PreconditionFailure{}},
		{"closed", refused(task.ReasonExecutionClosed), codes.FailedPrecondition, "EXECUTION_CLOSED", versions, &errdetails.PreconditionFailure{}},
		{"expired", refused(task.ReasonLeaseExpired), codes.FailedPrecondition, "LEASE_EXPIRED", versions, &errdetails.PreconditionFailure{}},
		{"leases live", refused(scheduler.ReasonLeasesLive), codes.FailedPrecondition, "LEASES_LIVE", nil, &errdetails.PreconditionFailure{}},
		{"too many polls", &scheduler.ExhaustedError{Reason: scheduler.ReasonTooManyPolls, Message: "full", Limit: 20000},
			codes.ResourceExhausted, "TOO_MANY_POLLS", map[string]string{"limit": "20000"}, &errdetails.QuotaFailure{}},
		{"storage away", fmt.Errorf("enqueue: %w", &scheduler.UnavailableError{Cause: errors.New("dial tcp: refused")}),
			codes.Unavailable, "STORAGE_UNAVAILABLE", nil, &errdetails.RetryInfo{}},
		{"storage too slow", &scheduler.UnavailableError{Cause: context.DeadlineExceeded}, codes.Unavailable, "STORAGE_UNAVAILABLE", nil, &errdetails.RetryInfo{}},
		{"cancelled", fmt.Errorf("wait: %w", context.Canceled), codes.Canceled, "CANCELED", nil, nil},
		{"deadline", fmt.Errorf("wait: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "DEADLINE_EXCEEDED", nil, nil},
		{"bug", &task.TransitionError{Entity: "step", From: "READY", Event: "x"}, codes.Internal, "INTERNAL", nil, nil},
		{"status of a bug", status.Error(codes.Unknown, "what"), codes.Internal, "INTERNAL", nil, nil},
	}
}

// TestErrors_Table is the table of errors of the wire contract, row by row.
func TestErrors_Table(t *testing.T) {
	t.Parallel()
	for _, tc := range errorRows() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &fakeApp{cancel: func(context.Context, uuid.UUID, string) (*scheduler.ExecutionView, error) {
				return nil, tc.err
			}}, Config{})
			_, err := r.executions.CancelExecution(t.Context(), &leaseholdv1.CancelExecutionRequest{ExecutionId: someID})
			got := refusalOf(t, err)
			if got.code != tc.code || got.info.GetReason() != tc.reason || got.info.GetDomain() != "leasehold" {
				t.Fatalf("got %v %q of %q, want %v %q", got.code, got.info.GetReason(), got.info.GetDomain(), tc.code, tc.reason)
			}
			for k, want := range tc.metadata {
				if got.info.GetMetadata()[k] != want {
					t.Errorf("metadata %s = %q, want %q", k, got.info.GetMetadata()[k], want)
				}
			}
			if tc.detail != nil && !hasDetail(got, tc.detail) {
				t.Errorf("no %T among the details %v", tc.detail, got.details)
			}
			retryable := tc.code == codes.Unavailable || tc.code == codes.ResourceExhausted
			if retryable != hasDetail(got, &errdetails.RetryInfo{}) {
				t.Errorf("RetryInfo: got %v, want %v", !retryable, retryable)
			}
		})
	}
}

func hasDetail(r refusal, want any) bool {
	for _, d := range r.details {
		if fmt.Sprintf("%T", d) == fmt.Sprintf("%T", want) {
			return true
		}
	}
	return false
}

func TestErrors_StatusesOfGRPCPassUntouched(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{cancel: func(context.Context, uuid.UUID, string) (*scheduler.ExecutionView, error) {
		return nil, status.Error(codes.Unimplemented, "not yet")
	}}, Config{})
	_, err := r.executions.CancelExecution(t.Context(), &leaseholdv1.CancelExecutionRequest{ExecutionId: someID})
	if st := status.Convert(err); st.Code() != codes.Unimplemented || st.Message() != "not yet" {
		t.Errorf("got %v", st)
	}
	err = r.conn.Invoke(t.Context(), "/leasehold.v1.ExecutionService/Nothing", oneStep(), oneStep())
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

// TestErrors_NoDriverTextReachesClients feeds what a driver would say, as an error of a call
// and of an item of a batch, plain and as the cause of an outage.
func TestErrors_NoDriverTextReachesClients(t *testing.T) {
	t.Parallel()
	driver := fmt.Errorf("ERROR: duplicate key value violates unique constraint %q (SQLSTATE 23505)", "executions_pkey")
	for name, cause := range map[string]error{
		"unknown": fmt.Errorf("store: %w", driver),
		"outage":  &scheduler.UnavailableError{Cause: driver},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &fakeApp{
				enqueue: func(context.Context, *task.ExecutionSpec) (scheduler.Enqueued, error) {
					return scheduler.Enqueued{}, cause
				},
				report: func(context.Context, []scheduler.Report) []scheduler.Result[scheduler.Reported] {
					return []scheduler.Result[scheduler.Reported]{{Err: cause}}
				},
			}, Config{})
			_, err := r.executions.EnqueueExecution(t.Context(), oneStep())
			got := []refusal{refusalOf(t, err)}
			_, err = r.workers.ReportAttempt(t.Context(), report())
			got = append(got, refusalOf(t, err))
			batch, err := r.workers.BatchReportAttempts(t.Context(), &leaseholdv1.BatchReportAttemptsRequest{Reports: []*leaseholdv1.ReportAttemptRequest{report()}})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, refusalOfItem(batch.GetResults()[0].GetError()))
			for _, g := range got {
				all := g.text + fmt.Sprint(g.details)
				for _, secret := range []string{"SQLSTATE", "23505", "duplicate key", "constraint", "executions_pkey"} {
					if strings.Contains(all, secret) {
						t.Errorf("a client was told %q: %s", secret, all)
					}
				}
				if g.info.GetReason() == "" {
					t.Errorf("no ErrorInfo: %s", all)
				}
			}
			if !strings.Contains(r.log.String(), "23505") {
				t.Error("the cause was not logged")
			}
		})
	}
}

func TestErrors_PanicIsAnsweredAndTheServerLives(t *testing.T) {
	t.Parallel()
	r := newRig(t, &fakeApp{enqueue: func(context.Context, *task.ExecutionSpec) (scheduler.Enqueued, error) {
		panic("secret of the house")
	}}, Config{})
	for range 2 {
		_, err := r.executions.EnqueueExecution(t.Context(), oneStep())
		got := refusalOf(t, err)
		if got.code != codes.Internal || got.info.GetReason() != "INTERNAL" || strings.Contains(got.text, "secret") {
			t.Fatalf("got %v", got)
		}
	}
	if log := r.log.String(); !strings.Contains(log, "secret of the house") || !strings.Contains(log, "errors_test.go") {
		t.Error("panic and stack were not logged")
	}
	if _, err := r.workers.LeaseAttempt(t.Context(), poll()); err != nil {
		t.Errorf("the server is gone: %v", err)
	}
}

func TestErrors_CallersOwnDeadlineIsNoOutage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mapper := errorMapper{logger: nil} // it would panic if it logged
	err := mapper.status(ctx, "/m", &scheduler.UnavailableError{Cause: fmt.Errorf("query: %w", context.Canceled)})
	if got := status.Code(err); got != codes.Canceled {
		t.Errorf("got %v, want Canceled", got)
	}
}

// TestErrors_FitIntoHeaders: many clients take no more than 8 KiB of headers.
func TestErrors_FitIntoHeaders(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 5000)
	many := &scheduler.InvalidError{}
	for i := range 10_000 {
		many.Violations = append(many.Violations, task.Violation{Field: fmt.Sprintf("steps[%d].depends_on[0]%s", i, long[:i]), Message: long})
	}
	mapper := errorMapper{}
	for name, err := range map[string]error{
		"violations": many,
		"refusal":    &scheduler.RefusedError{Reason: "X", Message: long},
		"key":        &scheduler.KeyReusedError{Key: long, Namespace: long, ExistingID: someID},
		"missing":    &scheduler.NotFoundError{Kind: scheduler.KindExecution, ID: long},
	} {
		st := status.Convert(mapper.status(t.Context(), "/m", err))
		size := 0
		for _, d := range st.Proto().GetDetails() {
			size += len(d.GetValue()) + len(d.GetTypeUrl()) + 8
		}
		if wire := (size+len(st.Message()))*4/3 + 3*len(st.Message()); wire > 7800 {
			t.Errorf("%s: %d bytes of headers", name, wire)
		}
	}
	got := refusalOf(t, mapper.status(t.Context(), "/m", many))
	if n := len(got.fields); n < 5 || got.info.GetMetadata()["violations_omitted"] != fmt.Sprint(10_000-n) {
		t.Errorf("%d violations, metadata %v", n, got.info.GetMetadata())
	}
}

func TestErrors_RetryInfoTellsTheApplicationsDelay(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ given, want time.Duration }{{0, time.Second}, {3 * time.Second, 3 * time.Second}} {
		err := errorMapper{}.status(t.Context(), "/m", &scheduler.ExhaustedError{RetryAfter: tc.given})
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() != tc.want {
				t.Errorf("got %v, want %v", info.GetRetryDelay().AsDuration(), tc.want)
			}
		}
	}
}

func report() *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{
		AttemptId: someID, LeaseVersion: 7,
		Outcome: &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{}},
	}
}

func renewal() *leaseholdv1.RenewLeaseRequest {
	return &leaseholdv1.RenewLeaseRequest{AttemptId: someID, SessionId: otherID, LeaseVersion: 7}
}

func poll() *leaseholdv1.LeaseAttemptRequest {
	return &leaseholdv1.LeaseAttemptRequest{WorkerId: someID, SessionId: otherID}
}
