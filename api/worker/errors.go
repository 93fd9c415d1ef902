package worker

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Why a handler's context ended: context.Cause(ctx) is, by errors.Is, one of these.
var (
	// ErrLeaseLost: the lease ran out unrenewed or the server took it away. Somebody else may
	// get the step from now on, and a report would be refused.
	ErrLeaseLost = errors.New("leasehold: lease lost")
	// ErrCanceled: the execution is being cancelled. The handler may still finish within the
	// cancel's grace.
	ErrCanceled = errors.New("leasehold: execution is being cancelled")
	// ErrDeadline: the step's start_to_close_timeout is over. ctx.Err() is then
	// context.DeadlineExceeded, or context.Canceled when the end of the lease, which never
	// outlasts the deadline, was seen first.
	ErrDeadline = errors.New("leasehold: attempt reached its deadline")
	// ErrStopping: Run's context ended and the grace is over.
	ErrStopping = errors.New("leasehold: worker is stopping")
)

// Errors of Run and Job.
var (
	// ErrSuperseded: another process registered under this worker's name. Run returns it; to
	// go on as two workers give them different names, or none.
	ErrSuperseded = errors.New("leasehold: another process registered under this worker's name")
	// ErrRunning: Run was called while an earlier call has not returned.
	ErrRunning = errors.New("leasehold: worker is running already")
	// ErrPayloadTooLarge: a checkpoint is over the server's limits. Nothing was kept.
	ErrPayloadTooLarge = errors.New("leasehold: payload too large")
	// ErrInvalidPayload: a checkpoint is not JSON in UTF-8. Nothing was kept.
	ErrInvalidPayload = errors.New("leasehold: invalid payload")
	// ErrNoSuchParent: ParentOutput was asked for a step that is not a parent, or one that
	// has no output.
	ErrNoSuchParent = errors.New("leasehold: no output of a parent of this name")
)

// Types of the failures that this package reports, as they appear in Failure.type and can be
// named in a retry policy's non_retryable_error_types. WithType sets others.
const (
	// TypeError is an error that a handler returned, unless WithType named its type.
	TypeError = "ERROR"
	// TypePanic is a panic of a handler.
	TypePanic = "PANIC"
	// TypeInvalidInput is an input that does not decode into the handler's type. Not tried again.
	TypeInvalidInput = "INVALID_INPUT"
	// TypeInvalidResult is an output that is not JSON. Not tried again.
	TypeInvalidResult = "INVALID_RESULT"
	// TypeResultTooLarge is an output over the server's limits. Not tried again.
	TypeResultTooLarge = "RESULT_TOO_LARGE"
)

// maxDelay is the longest delay that the server takes, 10 years.
const maxDelay = 315_360_000 * time.Second

// Permanent marks err as one that trying again cannot cure: the attempt fails and the step
// with it, whatever its retry policy says. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// RetryAfter fails the attempt and asks for the next one after d instead of the retry
// policy's backoff; the policy's maximum_attempts still holds. d is held to 0 to 10 years.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, min(max(d, 0), maxDelay)}
}

// WithType gives the failure that err becomes a type, a short name that retry policies match
// in non_retryable_error_types; longer than 256 bytes it is cut. It combines with Permanent
// and RetryAfter. WithType(nil, t) is nil.
func WithType(err error, failureType string) error {
	if err == nil {
		return nil
	}
	return &typedError{err, failureType}
}

// Release is the error of a handler that hands its attempt back undone, for a reason that is
// not the step's: it does not count as a try. The next attempt is due after d, held to 0 to
// 10 years, or at once if d is 0.
func Release(reason string, d time.Duration) error {
	return &releaseError{reason, min(max(d, 0), maxDelay)}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

type typedError struct {
	err         error
	failureType string
}

func (e *typedError) Error() string { return e.err.Error() }
func (e *typedError) Unwrap() error { return e.err }

type releaseError struct {
	reason string
	delay  time.Duration
}

func (e *releaseError) Error() string { return "released: " + e.reason }

// panicError is a handler's panic.
type panicError struct {
	value any
	stack []byte
}

// isContextEnd reports whether err says no more than that ctx, which has ended, did: it is,
// or wraps, an error of a context, the cause, or a gRPC status of the same meaning.
func isContextEnd(ctx context.Context, err error) bool {
	if ctx.Err() == nil {
		return false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Cause(ctx)) {
		return true
	}
	code := status.Code(err)
	return code == codes.Canceled || code == codes.DeadlineExceeded
}
