package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// What the server keeps of texts; longer ones are cut here, so that they do not make a
// message too large.
const (
	maxTypeBytes    = 256
	maxMessageBytes = 8 << 10
	maxReasonBytes  = 1 << 10
	// maxStackBytes is such that the stack, with its line ends and tabs escaped, stays below
	// the 64 KiB that a failure's details may have.
	maxStackBytes = 24 << 10
)

// outcome is how an attempt ended: exactly one of its fields but output is set.
type outcome struct {
	succeeded bool
	output    *leaseholdv1.Payload
	failure   *leaseholdv1.Failure
	released  *releaseError
	canceled  bool
}

// outcomeOf decides how an attempt ended from what its handler returned and how its lease
// stands. dropped is not empty if nothing is to be reported.
func outcomeOf(ctx context.Context, s standing, res result) (o outcome, dropped string) {
	var handedBack *releaseError
	cause := context.Cause(ctx)
	switch {
	case s.lost != nil:
		return o, "the lease was lost"
	case res.panicked != nil:
		return outcome{failure: panicFailure(res.panicked)}, ""
	case res.err == nil:
		return outcome{succeeded: true, output: res.output}, ""
	case errors.As(res.err, &handedBack):
		return outcome{released: handedBack}, ""
	case !isContextEnd(ctx, res.err):
		return outcome{failure: failureOf(res.err)}, ""
	// What is left says no more than that the context ended.
	case s.canceled:
		return outcome{canceled: true}, ""
	case errors.Is(cause, ErrStopping):
		return outcome{released: release("the worker stopped", 0)}, ""
	case errors.Is(cause, ErrDeadline):
		return o, "the attempt reached its deadline"
	default:
		return o, "the lease ran out"
	}
}

// failureOf makes a failure of a handler's error.
func failureOf(err error) *leaseholdv1.Failure {
	f := &leaseholdv1.Failure{Type: TypeError, Message: cut(err.Error(), maxMessageBytes)}
	var (
		typed      *typedError
		permanent  *permanentError
		retryAfter *retryAfterError
	)
	if errors.As(err, &typed) {
		f.Type = cut(typed.failureType, maxTypeBytes)
	}
	f.NonRetryable = errors.As(err, &permanent)
	if errors.As(err, &retryAfter) {
		f.NextRetryDelay = durationpb.New(retryAfter.delay)
	}
	return f
}

func panicFailure(p *panicError) *leaseholdv1.Failure {
	details, err := json.Marshal(map[string]string{"stack": cut(string(p.stack), maxStackBytes)})
	if err != nil {
		details = nil // a map of strings always encodes
	}
	return &leaseholdv1.Failure{
		Type:    TypePanic,
		Message: cut(fmt.Sprintf("panic: %v", p.value), maxMessageBytes),
		Details: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(details)}, ContentType: "application/json"},
	}
}

// finalFailure is one that this package found itself and that trying again cannot cure.
func finalFailure(failureType, message string) outcome {
	return outcome{failure: &leaseholdv1.Failure{Type: failureType, Message: cut(message, maxMessageBytes), NonRetryable: true}}
}

// checkedOutput turns a success whose output the server would refuse into a failure: a
// refusal would leave the attempt alive, to be lost and tried in vain again and again.
func checkedOutput(o outcome, s *session) outcome {
	switch err := checkPayload("output", o.output, s); {
	case errors.Is(err, ErrPayloadTooLarge):
		return finalFailure(TypeResultTooLarge, err.Error())
	case err != nil:
		return finalFailure(TypeInvalidResult, err.Error())
	default:
		return o
	}
}

func release(reason string, delay time.Duration) *releaseError {
	return &releaseError{reason: reason, delay: delay}
}

// reportOf puts an outcome on the wire. A success needs no checkpoint.
func reportOf(l *lease, o outcome, checkpoint *leaseholdv1.Payload) *leaseholdv1.ReportAttemptRequest {
	req := &leaseholdv1.ReportAttemptRequest{AttemptId: l.pb.GetAttemptId(), LeaseVersion: l.pb.GetLeaseVersion()}
	if !o.succeeded {
		req.Checkpoint = checkpoint
	}
	switch {
	case o.succeeded:
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{Output: o.output}}
	case o.failure != nil:
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Failed_{Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: o.failure}}
	case o.released != nil:
		released := &leaseholdv1.ReportAttemptRequest_Released{Reason: cut(o.released.reason, maxReasonBytes)}
		if o.released.delay > 0 {
			released.NotBeforeDelay = durationpb.New(o.released.delay)
		}
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Released_{Released: released}
	default:
		req.Outcome = &leaseholdv1.ReportAttemptRequest_Canceled_{Canceled: &leaseholdv1.ReportAttemptRequest_Canceled{}}
	}
	return req
}

// cut makes text of s that a message can carry: UTF-8, and at most limit bytes, cut at a rune.
func cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
