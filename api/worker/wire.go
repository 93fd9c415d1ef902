package worker

import (
	"errors"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errorDomain is the domain of ErrorInfo in every error that the service itself makes.
const errorDomain = "leasehold"

var errSessionNotFound = errors.New("session not found")

// wireError is an error of a call with the service's reason for it, so that errors.Is tells
// cases apart by reason and status.Code still tells the code.
type wireError struct {
	reason string // empty if the service gave none
	kind   error  // what the reason means here; nil if nothing in particular
	err    error  // the status
}

func (e *wireError) Error() string {
	if e.reason == "" {
		return e.err.Error()
	}
	return fmt.Sprintf("%s: %v", e.reason, e.err)
}

func (e *wireError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.err}
	}
	return []error{e.kind, e.err}
}

// fromWire is the one place that reads reasons from errors of calls. nil stays nil.
func fromWire(err error) error {
	if err == nil {
		return nil
	}
	reason := reasonOf(status.Convert(err))
	return &wireError{reason: reason, kind: kindOf(reason), err: err}
}

// fromStatus is fromWire for a result of a batch.
func fromStatus(s *rpcstatus.Status) error {
	return fromWire(status.ErrorProto(s))
}

func reasonOf(s *status.Status) string {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

func kindOf(reason string) error {
	switch reason {
	case "LEASE_SUPERSEDED", "OUTCOME_ALREADY_RECORDED", "LEASE_REVOKED", "EXECUTION_CLOSED", "LEASE_EXPIRED",
		"ATTEMPT_NOT_FOUND":
		return ErrLeaseLost
	case "SESSION_SUPERSEDED":
		return ErrSuperseded
	case "SESSION_NOT_FOUND", "WORKER_NOT_FOUND":
		return errSessionNotFound
	case "PAYLOAD_TOO_LARGE":
		return ErrPayloadTooLarge
	case "INVALID_JSON":
		return ErrInvalidPayload
	default:
		return nil
	}
}

// hasReason reports whether the service itself, and not gRPC or something on the way, made
// the error.
func hasReason(err error) bool {
	var w *wireError
	return errors.As(err, &w) && w.reason != ""
}

// isFinal reports whether repeating the same call cannot end differently.
func isFinal(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.NotFound, codes.InvalidArgument, codes.AlreadyExists, codes.OutOfRange:
		return true
	default:
		return false
	}
}

// isMisconfigured reports whether an error of the first registration needs a person: bad
// settings, no permission, not a Leasehold server.
func isMisconfigured(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return isFinal(err)
	}
}
