package drill

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	canceling = leaseholdv1.ExecutionState_EXECUTION_STATE_CANCELING
	canceled  = leaseholdv1.ExecutionState_EXECUTION_STATE_CANCELED
	succeeded = leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED
	failed    = leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED
	running   = leaseholdv1.ExecutionState_EXECUTION_STATE_RUNNING
)

// TestB32_CancelCrossesAFailingAttempt: after the OK of a cancel there is no further attempt.
func TestB32_CancelCrossesAFailingAttempt(t *testing.T) {
	t.Parallel()
	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		id := w.enqueue(graph(step("a")))
		h := w.worker(0, 1)
		l := h.one(long)
		want(t, "state after the cancel", w.cancel(1, id).GetState(), canceling)
		answer := h.fail(l)
		want(t, "step", answer.GetStepState(), leaseholdv1.StepState_STEP_STATE_CANCELED)
		want(t, "execution", answer.GetExecutionState(), canceled)
		s := w.stepOf(id, "a")
		want(t, "attempt", s.GetAttempts()[0].GetState(), leaseholdv1.AttemptState_ATTEMPT_STATE_FAILED)
		h.nothing(300 * time.Millisecond)
	})
	t.Run("at the same instant", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		n := count(t, 60, 500)
		ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest {
			return graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(5, 50*time.Millisecond)})
		})
		h := w.worker(0, int32(n))
		each(h.take(n, long), func(i int, l *leaseholdv1.Lease) {
			together(func() { w.cancel(i, l.GetExecutionId()) }, func() { h.at(i + 1).fail(l) })
		})
		h.nothing(500 * time.Millisecond) // each had time for a retry
		each(ids, func(_ int, id string) {
			want(t, "execution", w.get(id).GetState(), canceled)
			w.wantNoLeaseAfterCancel(id)
		})
	})
}

// wantNoLeaseAfterCancel looks through the timeline: after the cancel nothing was leased.
func (w *world) wantNoLeaseAfterCancel(id string) {
	w.t.Helper()
	asked := false
	for _, e := range w.timeline(id) {
		if e.GetTitle() == "Cancel requested" {
			asked = true
		}
		if asked && e.GetTitle() == "Attempt leased" {
			w.t.Errorf("execution %s: attempt %d was leased after the cancel", id, e.GetAttemptNumber())
		}
	}
	if !asked {
		w.t.Errorf("execution %s: the timeline does not tell of the cancel", id)
	}
}

// TestB33_SuccessAfterCancel is recorded on the attempt and starts nothing.
func TestB33_SuccessAfterCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("a"), step("b", "a")))
	h := w.worker(0, 2)
	l := h.one(long)
	w.cancel(1, id)
	want(t, "b at once", w.stepOf(id, "b").GetState(), leaseholdv1.StepState_STEP_STATE_CANCELED)
	time.Sleep(time.Duration(count(t, 100, 2000)) * time.Millisecond) // the scenario: a while later
	answer := h.succeed(l)
	want(t, "a", answer.GetStepState(), leaseholdv1.StepState_STEP_STATE_SUCCEEDED)
	want(t, "execution", answer.GetExecutionState(), canceled)
	h.nothing(500 * time.Millisecond)
	e := w.get(id)
	want(t, "execution later", e.GetState(), canceled)
	want(t, "a later", find(t, e, "a").GetState(), leaseholdv1.StepState_STEP_STATE_SUCCEEDED)
	want(t, "output of a", find(t, e, "a").GetOutput().GetJson(), `"done"`)
	want(t, "attempts of b", len(find(t, e, "b").GetAttempts()), 0)
}

// TestB34_CancelDuringBackoff: nothing wakes up.
func TestB34_CancelDuringBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	backoff := time.Duration(count(t, 1500, 5000)) * time.Millisecond
	id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(3, backoff)}, step("b", "a")))
	h := w.worker(0, 2)
	answer := h.fail(h.one(long))
	due := answer.GetNextAttemptTime().AsTime()
	time.Sleep(backoff / 3) // the scenario: in the middle of it
	e := w.cancel(1, id)
	want(t, "at once", e.GetState(), canceled)
	h.nothing(max(time.Until(due), 0) + backoff)
	e = w.get(id)
	want(t, "execution", e.GetState(), canceled)
	for _, name := range []string{"a", "b"} {
		want(t, name, find(t, e, name).GetState(), leaseholdv1.StepState_STEP_STATE_CANCELED)
	}
	want(t, "attempts of a", len(find(t, e, "a").GetAttempts()), 1)
}

// TestB36_CancelIsIdempotent, and what is finished stays so.
func TestB36_CancelIsIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("a"), step("b", "a")))
	h := w.worker(0, 2)
	l := h.one(long)
	answers := make([]*leaseholdv1.Execution, 20)
	fs := make([]func(), len(answers))
	for i := range fs {
		fs[i] = func() { answers[i] = w.cancel(i, id) }
	}
	together(fs...)
	for _, a := range answers {
		want(t, "answer", fmt.Sprint(a.GetState(), a.GetRevision(), a.GetCancelReason(), a.GetCancelDeadline().AsTime()),
			fmt.Sprint(canceling, answers[0].GetRevision(), "asked", answers[0].GetCancelDeadline().AsTime()))
	}
	h.report(l, Canceled())
	want(t, "cancel of a CANCELED one", w.cancel(2, id).GetState(), canceled)
	want(t, "canceled events", len(w.rows(`SELECT id::text FROM outbox_events WHERE event_type = 'leasehold.execution.v1.canceled'`)), 1)
	want(t, "entries of the cancel", len(w.rows(`SELECT milestone FROM timeline WHERE title = 'Cancel requested'`)), 1)

	done := w.enqueue(graph(step("a")))
	h.succeed(h.one(long))
	before := w.get(done)
	_, err := w.Client(1).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: done})
	refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
	after := w.get(done)
	want(t, "state of the finished one", after.GetState(), succeeded)
	want(t, "revision of the finished one", after.GetRevision(), before.GetRevision())
	_, err = w.Client(1).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: uuid.NewString()})
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
}

// TestB40_CancelReachesTheWorker at its next renewal, whatever the replicas; another worker
// hears nothing.
func TestB40_CancelReachesTheWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := graph(step("a"))
	e.CancelGrace = durationpb.New(time.Minute)
	id := w.enqueue(e)
	h := w.worker(0, 1)
	l := h.one(long)
	other := w.enqueue(graph(step("a")))
	bystander := w.worker(0, 1)
	theirs := bystander.one(long)
	want(t, "before", h.renew(l).GetDirective(), leaseholdv1.Directive_DIRECTIVE_CONTINUE)
	w.cancel(1, id)
	told := h.renew(l)
	want(t, "after", told.GetDirective(), leaseholdv1.Directive_DIRECTIVE_CANCEL)
	if left := told.GetCancelRemaining().AsDuration(); left <= 0 || left > time.Minute || told.GetCancelDeadline() == nil {
		t.Errorf("cancel_remaining is %s", left)
	}
	if told.GetExpireTime().AsTime().After(told.GetCancelDeadline().AsTime()) {
		t.Error("the lease outlasts the grace")
	}
	batch, err := w.Client(2).Workers.BatchRenewLeases(w.ctx, &leaseholdv1.BatchRenewLeasesRequest{Renewals: []*leaseholdv1.RenewLeaseRequest{
		{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: h.Session},
		{AttemptId: theirs.GetAttemptId(), LeaseVersion: theirs.GetLeaseVersion(), SessionId: bystander.Session},
	}})
	if err != nil {
		t.Fatal(status.Convert(err))
	}
	want(t, "in a batch", batch.GetResults()[0].GetResponse().GetDirective(), leaseholdv1.Directive_DIRECTIVE_CANCEL)
	want(t, "the bystander", batch.GetResults()[1].GetResponse().GetDirective(), leaseholdv1.Directive_DIRECTIVE_CONTINUE)
	h.report(l, Canceled())
	want(t, "execution", w.get(id).GetState(), canceled)
	bystander.succeed(theirs)
	want(t, "the other execution", w.get(other).GetState(), succeeded)
}
