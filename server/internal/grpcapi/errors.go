package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// errorDomain is the domain of every ErrorInfo of the service.
const errorDomain = "leasehold"

// Reasons that only this adapter gives.
const (
	reasonKeyReused        task.Reason = "IDEMPOTENCY_KEY_REUSED"
	reasonUnavailable      task.Reason = "STORAGE_UNAVAILABLE"
	reasonStreamEnded      task.Reason = "STREAM_ENDED"
	reasonInternal         task.Reason = "INTERNAL"
	reasonCanceled         task.Reason = "CANCELED"
	reasonDeadlineExceeded task.Reason = "DEADLINE_EXCEEDED"
)

// Bounds of texts in a status, in bytes: it travels in headers, and many clients take no more
// than 8 KiB of them in all (the default of gRPC for Java and for Python).
const (
	maxMessageText = 256
	maxDetailText  = 200
)

// defaultRetryAfter is told when the application does not say when to try again.
const defaultRetryAfter = time.Second

// goOnAfter is when a stream that was ended may be gone on with.
const goOnAfter = 100 * time.Millisecond

// errorMapper turns errors of the application into statuses. What it hides it logs.
type errorMapper struct{ logger *slog.Logger }

func (m errorMapper) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, req)
	if err != nil {
		return nil, m.status(ctx, info.FullMethod, err)
	}
	return answer, nil
}

func (m errorMapper) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if err != nil {
		return m.status(stream.Context(), info.FullMethod, err)
	}
	return nil
}

// item is the error of one item of a batch.
func (m errorMapper) item(ctx context.Context, err error) *rpcstatus.Status {
	method, _ := grpc.Method(ctx)
	return status.Convert(m.status(ctx, method, err)).Proto()
}

// status is the one switch from errors to codes.
func (m errorMapper) status(ctx context.Context, method string, err error) error {
	var (
		notFound    *scheduler.NotFoundError
		invalid     *scheduler.InvalidError
		reused      *scheduler.KeyReusedError
		refused     *scheduler.RefusedError
		exhausted   *scheduler.ExhaustedError
		unavailable *scheduler.UnavailableError
		ended       *streamEndedError
	)
	switch {
	case errors.As(err, &notFound):
		return notFoundStatus(notFound)
	case errors.As(err, &invalid):
		return invalidStatus(fromDomain(invalid.Violations))
	case errors.As(err, &reused):
		return reusedStatus(reused)
	case errors.As(err, &refused):
		return refusedStatus(refused)
	case errors.As(err, &exhausted):
		return exhaustedStatus(exhausted)
	case errors.As(err, &ended):
		return endedStatus(ended)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return contextStatus(ctx.Err())
	case errors.As(err, &unavailable):
		m.logger.WarnContext(ctx, "storage is unavailable", "method", method, "error", unavailable.Cause)
		return unavailableStatus(unavailable)
	}
	return m.foreign(ctx, method, err)
}

// foreign maps what does not come from the application: violations, contexts, statuses of
// middleware and of gRPC itself, and bugs.
func (m errorMapper) foreign(ctx context.Context, method string, err error) error {
	if found := violationsOf(err); found != nil {
		return invalidStatus(found)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return contextStatus(err)
	}
	st, isStatus := status.FromError(err)
	if isStatus && st.Code() != codes.Internal && st.Code() != codes.Unknown {
		return err
	}
	m.logger.ErrorContext(ctx, "a call failed for a reason that has no code", "method", method, "error", err)
	return internalError()
}

func notFoundStatus(e *scheduler.NotFoundError) error {
	resource := strings.ToLower(string(e.Kind))
	text := fmt.Sprintf("%s %q was not found", resource, short(e.ID))
	return newStatus(codes.NotFound, text, task.Reason(string(e.Kind)+"_NOT_FOUND"),
		map[string]string{resource + "_id": e.ID},
		&errdetails.ResourceInfo{ResourceType: resource, ResourceName: short(e.ID), Description: text})
}

// invalidStatus lists what is wrong, one violation a field; the first gives the reason.
func invalidStatus(list []violation) error {
	list = firstOfField(list)
	if len(list) == 0 {
		return newStatus(codes.InvalidArgument, "invalid request", task.ReasonInvalidField, nil)
	}
	detail, omitted := badRequest(list)
	first := list[0]
	text := shortDetail(first.Field + ": " + first.Message)
	if len(list) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(list)-1)
	}
	return newStatus(codes.InvalidArgument, text, first.Reason, violationMetadata(first, omitted), detail)
}

func reusedStatus(e *scheduler.KeyReusedError) error {
	return newStatus(codes.AlreadyExists, e.Error(), reasonKeyReused,
		map[string]string{
			"namespace": e.Namespace, "idempotency_key": e.Key,
			"existing_execution_id": e.ExistingID, "request_index": strconv.Itoa(e.Index),
		},
		&errdetails.ResourceInfo{
			ResourceType: "execution", ResourceName: e.ExistingID,
			Description: "the execution that used the idempotency key first",
		})
}

func refusedStatus(e *scheduler.RefusedError) error {
	metadata := map[string]string{}
	if e.Subject != "" {
		metadata["subject"] = e.Subject
	}
	if e.HeldVersion != 0 {
		metadata["held_lease_version"] = strconv.FormatInt(e.HeldVersion, 10)
	}
	if e.CurrentVersion != 0 {
		metadata["current_lease_version"] = strconv.FormatInt(e.CurrentVersion, 10)
	}
	return newStatus(codes.FailedPrecondition, e.Message, e.Reason, metadata,
		&errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{{
			Type: string(e.Reason), Subject: e.Subject, Description: shortDetail(e.Message),
		}}})
}

func exhaustedStatus(e *scheduler.ExhaustedError) error {
	return newStatus(codes.ResourceExhausted, e.Message, e.Reason,
		map[string]string{"limit": strconv.Itoa(e.Limit)},
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: string(e.Reason), Description: shortDetail(e.Message),
		}}},
		retryAfter(e.RetryAfter))
}

func unavailableStatus(e *scheduler.UnavailableError) error {
	return newStatus(codes.Unavailable, "the database could not be reached, or not in time; try again",
		reasonUnavailable, nil, retryAfter(e.RetryAfter))
}

// endedStatus tells from where the stream can be gone on with, at once: others serve.
func endedStatus(e *streamEndedError) error {
	return newStatus(codes.Unavailable, e.Error(), reasonStreamEnded,
		map[string]string{"revision": strconv.FormatInt(e.revision, 10)}, retryAfter(goOnAfter))
}

func contextStatus(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return newStatus(codes.DeadlineExceeded, "the call's deadline came before it was done", reasonDeadlineExceeded, nil)
	}
	return newStatus(codes.Canceled, "the call was cancelled", reasonCanceled, nil)
}

// internalError is a bug of the service: the log says more than the client is told.
func internalError() error {
	return newStatus(codes.Internal, "internal error; the server's log has the cause", reasonInternal, nil)
}

func retryAfter(d time.Duration) *errdetails.RetryInfo {
	if d <= 0 {
		d = defaultRetryAfter
	}
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(d)}
}

// newStatus is a status with ErrorInfo, then further details.
func newStatus(code codes.Code, text string, reason task.Reason, metadata map[string]string, details ...protoadapt.MessageV1) error {
	for k, v := range metadata {
		metadata[k] = short(v)
	}
	all := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{
		Domain: errorDomain, Reason: string(reason), Metadata: metadata,
	}}, details...)
	st := status.New(code, short(text))
	if detailed, err := st.WithDetails(all...); err == nil {
		st = detailed
	}
	return st.Err()
}

// short makes a text that a status can carry.
func short(s string) string { return task.CleanText(s, maxMessageText) }

func shortDetail(s string) string { return task.CleanText(s, maxDetailText) }

// loggedCode is the code that the log shows. That a stream was ended on purpose is no failure:
// a server that stops may have thousands of them.
func loggedCode(err error) codes.Code {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetReason() == string(reasonStreamEnded) {
			return codes.OK
		}
	}
	return st.Code()
}

// logLevel is how loud the end of a call is logged: a client's mistakes are no news.
func logLevel(code codes.Code) logging.Level {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return logging.LevelError
	case codes.Unavailable, codes.ResourceExhausted:
		return logging.LevelWarn
	default:
		return logging.LevelDebug
	}
}
