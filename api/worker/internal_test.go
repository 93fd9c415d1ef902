package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestFromWire(t *testing.T) {
	t.Parallel()
	refused := func(code codes.Code, domain, reason string) error {
		s, err := status.New(code, "m").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for _, tc := range []struct {
		err  error
		kind error
		code codes.Code
	}{
		{refused(codes.FailedPrecondition, "leasehold", "LEASE_SUPERSEDED"), ErrLeaseLost, codes.FailedPrecondition},
		{refused(codes.FailedPrecondition, "leasehold", "OUTCOME_ALREADY_RECORDED"), ErrLeaseLost, codes.FailedPrecondition},
		{refused(codes.FailedPrecondition, "leasehold", "SESSION_SUPERSEDED"), ErrSuperseded, codes.FailedPrecondition},
		{refused(codes.NotFound, "leasehold", "SESSION_NOT_FOUND"), errSessionNotFound, codes.NotFound},
		{refused(codes.InvalidArgument, "leasehold", "PAYLOAD_TOO_LARGE"), ErrPayloadTooLarge, codes.InvalidArgument},
		{refused(codes.FailedPrecondition, "elsewhere", "LEASE_SUPERSEDED"), nil, codes.FailedPrecondition},
		{status.Error(codes.Unavailable, "m"), nil, codes.Unavailable},
		{context.DeadlineExceeded, nil, codes.Unknown},
	} {
		err := fmt.Errorf("call: %w", fromWire(tc.err))
		for _, kind := range []error{ErrLeaseLost, ErrSuperseded, errSessionNotFound, ErrPayloadTooLarge} {
			if got, want := errors.Is(err, kind), errors.Is(tc.kind, kind); got != want {
				t.Errorf("errors.Is(%v, %v) = %v, want %v", err, kind, got, want)
			}
		}
		if got := status.Code(err); got != tc.code {
			t.Errorf("status.Code(%v) = %v, want %v", err, got, tc.code)
		}
	}
	if fromWire(nil) != nil {
		t.Error("fromWire(nil) is an error")
	}
}

func TestRetryWait_GrowsToItsLimit(t *testing.T) {
	t.Parallel()
	for n := range 200 {
		want := backoffCap
		if n < 7 {
			want = min(backoffBase<<n, backoffCap)
		}
		for range 20 {
			if d := retryWait(n, backoffCap); d < want/2 || d > want+1 {
				t.Fatalf("retryWait(%d) = %v, want %v to %v", n, d, want/2, want)
			}
		}
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"é", 1, ""}, {"a\xff", 9, "a\uFFFD"}, {"", 0, ""},
	} {
		if got := cut(tc.in, tc.limit); got != tc.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tc.in, tc.limit, got, tc.want)
		}
	}
}

// What is reported, for each way that a context can have ended and each thing that a handler
// can return after it.
func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("%w: LEASE_REVOKED", ErrLeaseLost)
	other := errors.New("other")
	const nothing = "nothing"
	for _, tc := range []struct {
		cause    error
		standing standing
		onNil    string
		onCtxErr string
		onOther  string
	}{
		{nil, standing{}, "succeeded", "failed", "failed"},
		{ErrCanceled, standing{canceled: true}, "succeeded", "canceled", "failed"},
		{ErrStopping, standing{}, "succeeded", "released", "failed"},
		{ErrStopping, standing{canceled: true}, "succeeded", "canceled", "failed"},
		{ErrDeadline, standing{}, "succeeded", nothing, "failed"},
		{ErrLeaseLost, standing{}, "succeeded", nothing, "failed"},
		{lost, standing{lost: lost}, nothing, nothing, nothing},
	} {
		ctx, cancel := context.WithCancelCause(context.Background())
		if tc.cause != nil {
			cancel(tc.cause)
		}
		for err, want := range map[error]string{nil: tc.onNil, context.Canceled: tc.onCtxErr, other: tc.onOther} {
			o, dropped := outcomeOf(ctx, tc.standing, result{err: err})
			if got := nameOf(o, dropped); got != want {
				t.Errorf("cause %v, %+v, returned %v: %s, want %s", tc.cause, tc.standing, err, got, want)
			}
		}
		cancel(nil)
	}
}

func nameOf(o outcome, dropped string) string {
	switch {
	case dropped != "":
		return "nothing"
	case o.succeeded:
		return "succeeded"
	case o.failure != nil:
		return "failed"
	case o.released != nil:
		return "released"
	case o.canceled:
		return "canceled"
	default:
		return "unset"
	}
}

func TestMargin(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]time.Duration{
		-time.Second: 0, time.Second: 50 * time.Millisecond, 10 * time.Second: 500 * time.Millisecond, time.Hour: 500 * time.Millisecond,
	} {
		if got := margin(d); got != want {
			t.Errorf("margin(%v) = %v, want %v", d, got, want)
		}
	}
}
