package drill

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	created = leaseholdv1.ExecutionState_EXECUTION_STATE_CREATED
	queued  = leaseholdv1.ExecutionState_EXECUTION_STATE_QUEUED

	attemptCanceled = leaseholdv1.AttemptState_ATTEMPT_STATE_CANCELED
	attemptFailed   = leaseholdv1.AttemptState_ATTEMPT_STATE_FAILED
	attemptLost     = leaseholdv1.AttemptState_ATTEMPT_STATE_LOST
	attemptTimedOut = leaseholdv1.AttemptState_ATTEMPT_STATE_TIMED_OUT
)

// TestStart_FromCreatedByQueuedToRunning: the sweeper moves it on when its time has come. That
// nothing starts before it is due is one of the invariants.
func TestStart_FromCreatedByQueuedToRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, byInstant := range []bool{false, true} {
		e := graph(step("a"))
		e.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(2 * time.Second)}
		if byInstant {
			e.Start = &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: timestamppb.New(time.Now().Add(3 * time.Second))}
		}
		answer, err := w.Client(0).Executions.EnqueueExecution(w.ctx, e)
		if err != nil {
			t.Fatal(err)
		}
		id := answer.GetExecution().GetId()
		want(t, "at first", answer.GetExecution().GetState(), created)
		got := w.awaitState(id, queued)
		if at := e.GetStartAt(); at != nil {
			want(t, "due", got.GetDueTime().AsTime(), at.AsTime().Truncate(time.Microsecond))
		} else {
			want(t, "due", got.GetDueTime().AsTime().Sub(got.GetCreateTime().AsTime()), 2*time.Second)
		}
		h := w.worker(1, 1)
		l := h.one(long)
		want(t, "leased", l.GetExecutionId(), id)
		got = w.get(id)
		want(t, "at last", got.GetState(), running)
		if got.GetStartTime().AsTime().Before(got.GetDueTime().AsTime()) {
			t.Error("started before it was due")
		}
		h.succeed(l)
	}
	past := graph(step("a"))
	past.Start = &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: timestamppb.New(time.Now().Add(-time.Hour))}
	want(t, "start in the past", w.get(w.enqueue(past)).GetState(), queued)
}

// TestStart_DispatchMayComeFirst: from CREATED to RUNNING.
func TestStart_DispatchMayComeFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.SweepInterval = time.Hour })
	e := graph(step("a"))
	e.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(700 * time.Millisecond)}
	id := w.enqueue(e)
	h := w.worker(0, 1)
	l := h.one(long)
	want(t, "state", w.get(id).GetState(), running)
	h.succeed(l)
}

// TestStart_AStepsOwnDelay counts from when its parents have ended.
func TestStart_AStepsOwnDelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := step("b", "a")
	b.StartDelay = durationpb.New(800 * time.Millisecond)
	id := w.enqueue(graph(step("a"), b))
	h := w.worker(0, 2)
	h.succeed(h.one(long))
	s := w.stepOf(id, "b")
	want(t, "b", s.GetState(), stepReady)
	l := h.one(long)
	if due := s.GetNextAttemptTime(); due == nil || w.stepOf(id, "b").GetAttempts()[0].GetLeaseTime().AsTime().Before(due.AsTime()) {
		t.Errorf("next attempt was due %v", due)
	}
	h.succeed(l)
}

// TestScheduleToStart_FailsAStepThatNobodyTakes, and only such a one.
func TestScheduleToStart_FailsAStepThatNobodyTakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := func() *leaseholdv1.StepSpec {
		s := step("a")
		s.ScheduleToStartTimeout = durationpb.New(time.Second)
		s.RetryPolicy = retries(3, time.Millisecond)
		return s
	}
	id := w.enqueue(graph(s(), step("b", "a")))
	e := w.awaitState(id, failed)
	want(t, "why", find(t, e, "a").GetRetryStoppedBecause(), "SCHEDULE_TO_START_TIMEOUT")
	want(t, "attempts", len(find(t, e, "a").GetAttempts()), 0)
	want(t, "b", find(t, e, "b").GetState(), stepSkipped)

	id = w.enqueue(graph(s()))
	h := w.worker(0, 1)
	l := h.one(long)
	h.nothing(1500 * time.Millisecond)
	want(t, "one that runs", w.stepOf(id, "a").GetState(), stepRunning)
	h.fail(l)
	s2 := w.awaitStep(id, "a", stepFailed) // its second wait is too long
	want(t, "why", s2.GetRetryStoppedBecause(), "SCHEDULE_TO_START_TIMEOUT")
	want(t, "failure that is kept", s2.GetFailure().GetMessage(), "it broke")
}

// TestScheduleToClose_BoundsAllAttempts.
func TestScheduleToClose_BoundsAllAttempts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bounded := func(first time.Duration) *leaseholdv1.StepSpec {
		s := step("a")
		s.ScheduleToCloseTimeout = durationpb.New(2500 * time.Millisecond)
		s.RetryPolicy = retries(9, first)
		return s
	}
	h := w.worker(0, 2)
	id := w.enqueue(graph(bounded(time.Millisecond)))
	h.fail(h.one(long))
	l := h.one(long)
	if got := l.GetLeaseDuration().AsDuration(); got > 2500*time.Millisecond {
		t.Errorf("a lease of %s outlasts the timeout", got)
	}
	s := w.awaitStep(id, "a", stepFailed)
	want(t, "why", s.GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")
	want(t, "attempt", s.GetAttempts()[1].GetState(), attemptTimedOut)
	want(t, "reason", s.GetAttempts()[1].GetReason(), "schedule_to_close_timeout")
	want(t, "last real error", s.GetFailure().GetMessage(), "it broke")

	id = w.enqueue(graph(bounded(time.Hour))) // no attempt could begin in time
	answer := h.fail(h.one(long))
	want(t, "at once", answer.GetStepState(), stepFailed)
	want(t, "why", w.stepOf(id, "a").GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")

	absent := bounded(time.Millisecond)
	absent.Capability = "nobody"
	id = w.enqueue(graph(absent))
	want(t, "nobody came", w.awaitStep(id, "a", stepFailed).GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")
}

// TestStartToClose_EndsAnAttempt whatever its renewals, and the step is tried again.
func TestStartToClose_EndsAnAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := step("a")
	s.StartToCloseTimeout = durationpb.New(1500 * time.Millisecond)
	s.RetryPolicy = retries(2, time.Millisecond)
	id := w.enqueue(graph(s))
	h := w.worker(0, 2)
	l := h.one(time.Second)
	if renewed := h.renew(l, long); renewed.GetExpireTime().AsTime().After(l.GetStartToCloseDeadline().AsTime()) {
		t.Error("a renewal went beyond the timeout")
	}
	second := h.one(long)
	want(t, "next", second.GetAttemptNumber(), int32(2))
	a := w.stepOf(id, "a").GetAttempts()[0]
	want(t, "first attempt", a.GetState(), attemptTimedOut)
	want(t, "reason", a.GetReason(), "start_to_close_timeout")
	want(t, "told to the next", second.GetPreviousFailure().GetType(), "TIMEOUT")
	s2 := w.awaitStep(id, "a", stepFailed)
	want(t, "counted", s2.GetCountedAttempts(), int32(2))
	want(t, "why", s2.GetRetryStoppedBecause(), "MAXIMUM_ATTEMPTS_REACHED")
}

// TestDeadline_EndsTheExecution: what runs is timed out, what waits fails, what is blocked is
// skipped.
func TestDeadline_EndsTheExecution(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := graph(step("runs"), step("failed before"), step("blocked", "runs"), &leaseholdv1.StepSpec{Name: "waits", Capability: "nobody"})
	e.Steps[1].RetryPolicy = retries(5, time.Hour)
	e.Timeout = durationpb.New(2 * time.Second)
	id := w.enqueue(e)
	h := w.worker(0, 5)
	first := byStep(h.take(2, long))
	h.fail(first["failed before"])
	l := first["runs"]
	got := w.awaitState(id, failed)
	want(t, "failure", got.GetFailure().GetType(), "EXECUTION_DEADLINE_EXCEEDED")
	for name, state := range map[string]leaseholdv1.StepState{
		"runs": stepFailed, "failed before": stepFailed, "waits": stepFailed, "blocked": stepSkipped,
	} {
		want(t, name, find(t, got, name).GetState(), state)
	}
	want(t, "why", find(t, got, "runs").GetRetryStoppedBecause(), "EXECUTION_DEADLINE_EXCEEDED")
	want(t, "last real error", find(t, got, "failed before").GetFailure().GetMessage(), "it broke")
	a := find(t, got, "runs").GetAttempts()[0]
	want(t, "attempt", a.GetState(), attemptTimedOut)
	want(t, "reason", a.GetReason(), "execution_deadline")
	_, err := h.Report(w.ctx, l, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
	w.wantLateEntry(id, l, "EXECUTION_CLOSED", 1)
}

// TestDeadline_WhileCancelingEndsCanceled.
func TestDeadline_WhileCancelingEndsCanceled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := graph(step("a"), step("b", "a"))
	e.Timeout, e.CancelGrace = durationpb.New(2*time.Second), durationpb.New(time.Hour)
	id := w.enqueue(e)
	h := w.worker(0, 1)
	h.one(long)
	want(t, "at first", w.cancel(1, id).GetState(), canceling)
	got := w.awaitState(id, canceled)
	want(t, "attempt", find(t, got, "a").GetAttempts()[0].GetState(), attemptTimedOut)
}

// TestCancelGrace_EndsAnAttemptThatGoesOn, whatever it renews.
func TestCancelGrace_EndsAnAttemptThatGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.worker(0, 3)
	for _, grace := range []time.Duration{0, time.Second} {
		e := graph(step("a"))
		e.CancelGrace = durationpb.New(grace)
		id := w.enqueue(e)
		l := h.one(long)
		w.cancel(1, id)
		if grace > 0 {
			h.renew(l, long)
		}
		got := w.awaitState(id, canceled)
		a := find(t, got, "a").GetAttempts()[0]
		want(t, "attempt", a.GetState(), attemptCanceled)
		want(t, "reason", a.GetReason(), "cancel_grace_over")
		want(t, "step", find(t, got, "a").GetState(), stepCanceled)
		_, err := h.Report(w.ctx, l, Succeeded(nil))
		refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
	}
}
