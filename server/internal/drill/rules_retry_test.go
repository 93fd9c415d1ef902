package drill

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// retry opens the next round; an error fails the test.
func (w *world) retry(replica int, r *leaseholdv1.RetryExecutionRequest) *leaseholdv1.RetryExecutionResponse {
	w.t.Helper()
	answer, err := w.Client(replica).Executions.RetryExecution(w.ctx, r)
	if err != nil {
		w.t.Fatalf("retry: %v", err)
	}
	return answer
}

func (w *world) retryRefused(r *leaseholdv1.RetryExecutionRequest, code codes.Code, reason string) {
	w.t.Helper()
	_, err := w.Client(0).Executions.RetryExecution(w.ctx, r)
	refused(w.t, err, code, reason)
}

func once(name string, parents ...string) *leaseholdv1.StepSpec {
	s := step(name, parents...)
	s.RetryPolicy = retries(1, time.Second)
	return s
}

// A failed branch runs again in a round of its own, with what depends on it; what succeeded
// stays, attempt numbers go on, and the old round's story stands in the timeline.
func TestRetry_OpensWhatFailedAndWhatDependsOnIt(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(once("a"), once("b", "a"), once("c", "a"), once("d", "b", "c")))
	h := w.worker(0, 4)
	h.finish(1)
	leases := byStep(h.take(2, long))
	h.fail(leases["b"])
	h.succeed(leases["c"])
	before := w.awaitState(id, failed)
	answer := w.retry(1, &leaseholdv1.RetryExecutionRequest{ExecutionId: id, RequestId: "again", Reason: "the disk is back"})
	want(t, "round", answer.GetRound(), 2)
	want(t, "state", answer.GetExecution().GetState(), leaseholdv1.ExecutionState_EXECUTION_STATE_QUEUED)
	if after := answer.GetExecution(); after.GetRevision() <= before.GetRevision() || after.GetFailure() != nil || after.GetEndTime() != nil {
		t.Errorf("after the retry: %v", after)
	}
	l := h.one(long)
	want(t, "step", l.GetStepName(), "b")
	want(t, "attempt", l.GetAttemptNumber(), 2)
	want(t, "counted", w.stepOf(id, "b").GetCountedAttempts(), 0)
	h.succeed(l)
	h.finish(1) // d, and nothing else
	e := w.awaitState(id, succeeded)
	want(t, "attempts of a", len(find(t, e, "a").GetAttempts()), 1)
	want(t, "attempts of d", len(find(t, e, "d").GetAttempts()), 1)
	var story []string
	for _, entry := range w.timeline(id) {
		if entry.GetStage() == leaseholdv1.TimelineStage_TIMELINE_STAGE_CONTROL || strings.HasSuffix(entry.GetMilestoneKey(), "execution/ended") {
			story = append(story, fmt.Sprint(entry.GetMilestoneKey(), entry.GetDetails()["reason"], entry.GetDetails()["failure_type"]))
		}
	}
	want(t, "story", strings.Join(story, " "), "r1/execution/endedSTEP_FAILED r2/execution/reopenedthe disk is back r2/execution/ended")
	want(t, "events", strings.Join(w.rows(`SELECT event_type FROM outbox_events WHERE event_type LIKE '%execution%' ORDER BY sequence`), " "),
		strings.ReplaceAll("E.enqueued E.started E.failed E.reopened E.started E.succeeded", "E.", "leasehold.execution.v1."))
}

// Many repeats of one request open one round, also when a later round was opened since. Caught:
// looking for the request outside the execution's lock.
func TestRetry_ARepeatAnswersWithItsRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(once("a")))
	h := w.worker(0, 1)
	h.fail(h.one(long))
	request := &leaseholdv1.RetryExecutionRequest{ExecutionId: id, RequestId: "r"}
	var first atomic.Int32
	each(make([]struct{}, 12), func(i int, _ struct{}) {
		answer := w.retry(i, request)
		want(t, "round", answer.GetRound(), 2)
		if !answer.GetReplayed() {
			first.Add(1)
		}
	})
	want(t, "calls that opened the round", first.Load(), 1)
	h.fail(h.one(long))
	want(t, "the next round", w.retry(1, &leaseholdv1.RetryExecutionRequest{ExecutionId: id, RequestId: "s"}).GetRound(), 3)
	late := w.retry(2, request)
	want(t, "round of the repeat", late.GetRound(), 2)
	want(t, "round of the execution", late.GetExecution().GetRound(), 3)
	h.finish(1)
	w.awaitState(id, succeeded)
}

// What cannot be tried again is refused, with the reason, and stays as it is.
func TestRetry_RefusesWhatIsNotOver(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 4)
	id := w.enqueue(graph(once("a"), once("b", "a"), once("c", "b")))
	request := func(steps ...string) *leaseholdv1.RetryExecutionRequest {
		return &leaseholdv1.RetryExecutionRequest{ExecutionId: id, StepNames: steps}
	}
	w.retryRefused(request(), codes.FailedPrecondition, "EXECUTION_NOT_RETRYABLE") // QUEUED
	h.finish(1)
	h.fail(h.one(long))
	w.awaitState(id, failed)
	before := w.get(id)
	w.retryRefused(request("x"), codes.NotFound, "STEP_NOT_FOUND")
	w.retryRefused(request("a"), codes.FailedPrecondition, "STEP_NOT_RETRYABLE") // it SUCCEEDED
	w.retryRefused(request("c"), codes.FailedPrecondition, "STEP_NOT_RETRYABLE") // its parent stays FAILED
	w.retryRefused(&leaseholdv1.RetryExecutionRequest{ExecutionId: "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f"}, codes.NotFound, "EXECUTION_NOT_FOUND")
	w.retryRefused(&leaseholdv1.RetryExecutionRequest{ExecutionId: "x"}, codes.InvalidArgument, "INVALID_FIELD")
	after := w.get(id)
	want(t, "revision", after.GetRevision(), before.GetRevision())
	w.retry(0, request("b"))
	h.finish(2)
	w.awaitState(id, succeeded)
	w.retryRefused(request(), codes.FailedPrecondition, "EXECUTION_NOT_RETRYABLE")
}

// A cancelled execution goes on where it was stopped, with a deadline of its own; the worker of
// the old round is late.
func TestRetry_AfterACancelAndADeadline(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 4)
	spec := graph(once("a"), once("b", "a"))
	spec.CancelGrace = durationpb.New(0)
	spec.Timeout = durationpb.New(10 * time.Minute)
	id := w.enqueue(spec)
	old := h.one(long)
	first := w.cancel(0, id)
	w.awaitState(id, canceled)
	answer := w.retry(1, &leaseholdv1.RetryExecutionRequest{ExecutionId: id})
	if e := answer.GetExecution(); !e.GetDeadline().AsTime().After(first.GetDeadline().AsTime()) || e.GetCancelReason() != "" {
		t.Errorf("after the retry: deadline %v, before %v, cancel reason %q", e.GetDeadline().AsTime(), first.GetDeadline().AsTime(), e.GetCancelReason())
	}
	l := h.one(long)
	_, err := h.Report(w.ctx, old, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	h.succeed(l)
	h.finish(1)
	w.awaitState(id, succeeded)
}
