package drill

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestReport_NonRetryable by the worker's word, or by the policy's.
func TestReport_NonRetryable(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	for _, failure := range []*leaseholdv1.Failure{{Type: "ANY", NonRetryable: true}, {Type: "BAD_INPUT"}} {
		s := step("a")
		s.RetryPolicy = retries(5, time.Millisecond)
		s.RetryPolicy.NonRetryableErrorTypes = []string{"OTHER", "BAD_INPUT"}
		id := w.enqueue(graph(s))
		answer := h.report(h.one(long), Failed(failure))
		want(t, "step", answer.GetStepState(), stepFailed)
		want(t, "execution", answer.GetExecutionState(), failed)
		want(t, "why", w.stepOf(id, "a").GetRetryStoppedBecause(), "NON_RETRYABLE_FAILURE")
	}
}

// TestReport_WhenTheNextAttemptIsDue: by the policy, by the failure's word, by a release's.
func TestReport_WhenTheNextAttemptIsDue(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	s := step("a")
	s.RetryPolicy = retries(10, 400*time.Millisecond)
	s.RetryPolicy.BackoffCoefficient = 3
	s.RetryPolicy.MaximumInterval = durationpb.New(time.Second)
	id := w.enqueue(graph(s))
	soon := Failed(&leaseholdv1.Failure{Type: "X", NextRetryDelay: durationpb.New(300 * time.Millisecond)})
	for i, tt := range []struct {
		report *leaseholdv1.ReportAttemptRequest
		delay  time.Duration
	}{
		{Failed(&leaseholdv1.Failure{Type: "X"}), 400 * time.Millisecond},
		{soon, 300 * time.Millisecond},
		{Released("later", 500*time.Millisecond), 500 * time.Millisecond},
		{Released("now", 0), 0},
		{Failed(&leaseholdv1.Failure{Type: "X"}), time.Second}, // the third failure: 3.6 s, but for the maximum
	} {
		l := h.one(long)
		want(t, "attempt", l.GetAttemptNumber(), int32(i+1))
		answer := h.report(l, tt.report)
		a := w.stepOf(id, "a").GetAttempts()[i]
		want(t, "delay", answer.GetNextAttemptTime().AsTime().Sub(a.GetEndTime().AsTime()), tt.delay)
	}
	h.succeed(h.one(long))
}

// TestReport_CanceledUnasked is refused, and the lease lives on.
func TestReport_CanceledUnasked(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	id := w.enqueue(graph(step("a")))
	l := h.one(long)
	_, err := h.Report(w.ctx, l, Canceled())
	refused(t, err, codes.FailedPrecondition, "CANCEL_NOT_REQUESTED")
	want(t, "step", w.stepOf(id, "a").GetState(), stepRunning)
	h.renew(l)
	w.cancel(0, id)
	want(t, "once asked", h.report(l, Canceled()).GetExecutionState(), canceled)
	want(t, "attempt", w.stepOf(id, "a").GetAttempts()[0].GetState(), attemptCanceled)
}

// TestCheckpoint_IsHandedToTheNextAttempt, the last one; and the failure before.
func TestCheckpoint_IsHandedToTheNextAttempt(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	inTime(t, time.Second, h.leavesACheckpoint)
	l := h.one(long) // the first was lost
	want(t, "checkpoint of a lost one", l.GetCheckpoint().GetJson(), `{"at":1}`)
	want(t, "its failure", l.GetPreviousFailure().GetType(), "LEASE_LOST")
	failure := Failed(&leaseholdv1.Failure{Type: "X", Message: "y", Details: JSON(`[1]`)})
	failure.Checkpoint = JSON(`{"at":2}`)
	h.report(l, failure)

	l = h.one(long)
	want(t, "checkpoint of a failed one", l.GetCheckpoint().GetJson(), `{"at":2}`)
	want(t, "its failure", l.GetPreviousFailure().GetMessage(), "y")
	want(t, "its details", l.GetPreviousFailure().GetDetails().GetJson(), `[1]`)
	released := Released("leaving", 0)
	released.Checkpoint = Data([]byte{3})
	h.report(l, released)

	l = h.one(long)
	want(t, "checkpoint of a released one", string(l.GetCheckpoint().GetData()), "\x03")
	h.fail(l)
	l = h.one(long)
	want(t, "the last of any earlier one", string(l.GetCheckpoint().GetData()), "\x03")
	h.succeed(l)
}

// leavesACheckpoint renews with one, once, and is then silent.
func (h *hand) leavesACheckpoint(ttl time.Duration) bool {
	t := h.w.t
	s := step("a")
	s.RetryPolicy = retries(9, time.Millisecond)
	id := h.w.enqueue(graph(s))
	l := h.one(ttl)
	if l.GetCheckpoint() != nil || l.GetPreviousFailure() != nil {
		t.Errorf("a first attempt has checkpoint %v and failure %v", l.GetCheckpoint(), l.GetPreviousFailure())
	}
	half := 0.5
	_, err := h.w.Client(1).Workers.RenewLease(h.w.ctx, &leaseholdv1.RenewLeaseRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: h.Session, LeaseDuration: durationpb.New(time.Second),
		Checkpoint: JSON(`{"at":1}`), Progress: &half, ProgressMessage: "half\x00way",
	})
	if err != nil {
		h.w.cancel(0, id)
		return false
	}
	a := h.w.stepOf(id, "a").GetAttempts()[0]
	want(t, "progress", a.GetProgress(), half)
	want(t, "message", a.GetProgressMessage(), "half\uFFFDway")
	return true
}

// TestParentOutputs_TravelWithTheLease up to 1 MiB in sum; beyond they are asked for.
func TestParentOutputs_TravelWithTheLease(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 10)
	for _, tt := range []struct {
		parents, size int
		omitted       bool
	}{{3, 100 << 10, false}, {5, 900 << 10, true}} {
		child := step("child")
		steps := []*leaseholdv1.StepSpec{child}
		names := map[string]bool{}
		for i := range tt.parents {
			name := string(rune('a' + i))
			names[name] = true
			child.DependsOn = append(child.DependsOn, name)
			steps = append(steps, step(name))
		}
		w.enqueue(graph(steps...))
		for name, l := range byStep(h.take(tt.parents, long)) {
			h.report(l, Succeeded(Data(append([]byte(name), make([]byte, tt.size)...))))
		}
		l := h.one(long)
		want(t, "step", l.GetStepName(), "child")
		want(t, "omitted", l.GetParentOutputsOmitted(), tt.omitted)
		outputs, pages := l.GetParentOutputs(), 1
		if tt.omitted {
			want(t, "outputs with the lease", len(outputs), 0)
			outputs, pages = h.inputs(l)
		}
		if tt.omitted && pages < 2 {
			t.Errorf("%d bytes came in %d pages", tt.parents*tt.size, pages)
		}
		want(t, "outputs", len(outputs), tt.parents)
		for name := range names {
			want(t, "size of "+name, len(outputs[name].GetData()), tt.size+1)
			want(t, "first byte", string(outputs[name].GetData()[:1]), name)
		}
		h.succeed(l)
		_, err := w.Client(1).Workers.GetStepInputs(w.ctx, &leaseholdv1.GetStepInputsRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion()})
		refused(t, err, codes.FailedPrecondition, "OUTCOME_ALREADY_RECORDED")
	}
}

// inputs reads the outputs of the parents, page by page through different replicas.
func (h *hand) inputs(l *leaseholdv1.Lease) (all map[string]*leaseholdv1.Payload, pages int) {
	h.w.t.Helper()
	all = map[string]*leaseholdv1.Payload{}
	request := &leaseholdv1.GetStepInputsRequest{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion()}
	for {
		answer, err := h.w.Client(pages).Workers.GetStepInputs(h.w.ctx, request)
		if err != nil {
			h.w.t.Fatalf("inputs of %s: %v", l.GetStepName(), err)
		}
		pages++
		for name, p := range answer.GetParentOutputs() {
			if all[name] != nil {
				h.w.t.Errorf("output of %s came twice", name)
			}
			all[name] = p
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			return all, pages
		}
	}
}

// TestLate_EachReason: the first that fits, with the versions that were held and are current.
// LEASE_EXPIRED, EXECUTION_CLOSED and OUTCOME_ALREADY_RECORDED are with the cases.
func TestLate_EachReason(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	me := &leaseholdv1.RegisterWorkerRequest{Name: "me", Capabilities: []string{"work"}, Slots: 10}
	var again *hand
	var l *leaseholdv1.Lease
	inTime(t, 2*time.Second, func(limit time.Duration) bool {
		h := w.register(0, me)
		id := w.enqueue(graph(step("a")))
		l = h.one(limit)
		again = w.register(1, me)
		if w.stepOf(id, "a").GetState() != stepRunning {
			again.finish(1)
			return false
		}
		h.wantUnknown(l)
		w.await(id, "the end of the attempt", func(e *leaseholdv1.Execution) bool {
			return e.GetSteps()[0].GetAttempts()[0].GetState() == attemptLost
		})
		_, err := h.Report(w.ctx, l, Succeeded(nil))
		refused(t, err, codes.FailedPrecondition, "SESSION_SUPERSEDED")
		w.wantLateEntry(id, l, "SESSION_SUPERSEDED", 1)
		return true
	})
	second := again.one(long)
	_, err := again.at(2).Report(w.ctx, l, Succeeded(nil)) // the first reason that fits
	refused(t, err, codes.FailedPrecondition, "SESSION_SUPERSEDED")
	if _, err := w.Client(0).Workers.DeregisterWorker(w.ctx, &leaseholdv1.DeregisterWorkerRequest{
		WorkerId: again.ID, SessionId: again.Session, Force: true,
	}); err != nil {
		t.Fatal(err)
	}
	_, err = again.Report(w.ctx, second, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	want(t, "held version", Info(err).GetMetadata()["held_lease_version"], fmt.Sprint(second.GetLeaseVersion()))
	last := w.worker(0, 1)
	third := last.one(long)
	_, err = again.Renew(w.ctx, second, time.Minute)
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	last.succeed(third)
}

// wantUnknown guesses at versions and attempts.
func (h *hand) wantUnknown(l *leaseholdv1.Lease) {
	t := h.w.t
	t.Helper()
	guess := &leaseholdv1.Lease{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion() + 1}
	_, err := h.Report(h.w.ctx, guess, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	_, err = h.Renew(h.w.ctx, guess, time.Minute)
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	guess.AttemptId = uuid.NewString()
	_, err = h.Report(h.w.ctx, guess, Succeeded(nil))
	refused(t, err, codes.NotFound, "ATTEMPT_NOT_FOUND")
	_, err = h.Renew(h.w.ctx, guess, time.Minute)
	refused(t, err, codes.NotFound, "ATTEMPT_NOT_FOUND")
}
