package drill

import (
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB22_MaximumAttemptsMeansAttempts: 1 is one, 3 are three.
func TestB22_MaximumAttemptsMeansAttempts(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	for _, most := range []int32{1, 3} {
		id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(most, time.Millisecond)}))
		for n := range most {
			l := h.one(long)
			want(t, "attempt", l.GetAttemptNumber(), n+1)
			last := n == most-1
			answer := h.fail(l)
			want(t, "the last one ends the step", answer.GetStepState() == leaseholdv1.StepState_STEP_STATE_FAILED, last)
			want(t, "a next one is due", answer.GetNextAttemptTime() != nil, !last)
		}
		e := w.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED)
		s := find(t, e, "a")
		want(t, "attempts", len(s.GetAttempts()), int(most))
		for i, a := range s.GetAttempts() {
			want(t, "number", a.GetNumber(), int32(i+1))
			want(t, "failure of an attempt", a.GetFailure().GetMessage(), "it broke")
		}
		h.nothing(200 * time.Millisecond)
	}
}

// TestB28_AHandBackDoesNotCount against maximum_attempts, but takes a number.
func TestB28_AHandBackDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(2, time.Millisecond)}))
	for n := range int32(5) {
		l := h.one(long)
		want(t, "attempt", l.GetAttemptNumber(), n+1)
		h.report(l, Released("not now", 0))
	}
	s := w.stepOf(id, "a")
	want(t, "counted after hand-backs", s.GetCountedAttempts(), int32(0))
	want(t, "reason of a hand-back", s.GetAttempts()[0].GetReason(), "not now")
	h.fail(h.one(long))
	want(t, "counted after a failure", w.stepOf(id, "a").GetCountedAttempts(), int32(1))
	h.report(h.one(long), Released("not now", 0))
	last := h.one(long)
	want(t, "last attempt", last.GetAttemptNumber(), int32(8))
	h.fail(last)
	e := w.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED)
	want(t, "counted", find(t, e, "a").GetCountedAttempts(), int32(2))
	want(t, "attempts", len(find(t, e, "a").GetAttempts()), 8)
}
