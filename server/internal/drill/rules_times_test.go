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
	w := newPair(t)
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
	w := newPair(t)
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
	w := newPair(t)
	bounded := func(limit time.Duration) *leaseholdv1.StepSpec {
		s := step("a")
		s.ScheduleToStartTimeout = durationpb.New(limit)
		s.RetryPolicy = retries(3, time.Millisecond)
		return s
	}
	id := w.enqueue(graph(bounded(time.Second), step("b", "a")))
	e := w.awaitState(id, failed)
	want(t, "why", find(t, e, "a").GetRetryStoppedBecause(), "SCHEDULE_TO_START_TIMEOUT")
	want(t, "attempts", len(find(t, e, "a").GetAttempts()), 0)
	want(t, "b", find(t, e, "b").GetState(), stepSkipped)

	h := w.worker(0, 1)
	inTime(t, time.Second, func(limit time.Duration) bool {
		id := w.enqueue(graph(bounded(limit)))
		leases, ok := h.within(1, limit)
		if !ok {
			return false
		}
		h.nothing(limit + limit/2)
		want(t, "one that runs", w.stepOf(id, "a").GetState(), stepRunning)
		h.fail(leases[0])
		s := w.awaitFailedStep(id) // its second wait is too long
		want(t, "why", s.GetRetryStoppedBecause(), "SCHEDULE_TO_START_TIMEOUT")
		want(t, "failure that is kept", s.GetFailure().GetMessage(), "it broke")
		return true
	})
}

// TestScheduleToClose_BoundsAllAttempts.
func TestScheduleToClose_BoundsAllAttempts(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	bounded := func(limit, first time.Duration) *leaseholdv1.StepSpec {
		s := step("a")
		s.ScheduleToCloseTimeout = durationpb.New(limit)
		s.RetryPolicy = retries(9, first)
		return s
	}
	h := w.worker(0, 2)
	inTime(t, 2*time.Second, func(limit time.Duration) bool {
		id := w.enqueue(graph(bounded(limit, time.Millisecond)))
		leases, ok := h.within(1, limit)
		if !ok {
			return false
		}
		if _, err := h.Report(w.ctx, leases[0], broken()); err != nil {
			return false
		}
		if leases, ok = h.within(1, limit); !ok {
			return false
		}
		if got := leases[0].GetLeaseDuration().AsDuration(); got > limit {
			t.Errorf("a lease of %s outlasts the timeout", got)
		}
		s := w.awaitFailedStep(id)
		want(t, "why", s.GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")
		want(t, "attempt", s.GetAttempts()[1].GetState(), attemptTimedOut)
		want(t, "reason", s.GetAttempts()[1].GetReason(), "schedule_to_close_timeout")
		want(t, "last real error", s.GetFailure().GetMessage(), "it broke")
		return true
	})

	id := w.enqueue(graph(bounded(30*time.Minute, time.Hour))) // no attempt could begin in time
	answer := h.fail(h.one(long))
	want(t, "at once", answer.GetStepState(), stepFailed)
	want(t, "why", w.stepOf(id, "a").GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")

	absent := bounded(time.Second, time.Millisecond)
	absent.Capability = "nobody"
	id = w.enqueue(graph(absent))
	want(t, "nobody came", w.awaitFailedStep(id).GetRetryStoppedBecause(), "SCHEDULE_TO_CLOSE_TIMEOUT")
}

// TestStartToClose_EndsAnAttempt whatever its renewals, and the step is tried again.
func TestStartToClose_EndsAnAttempt(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 2)
	inTime(t, time.Second, func(limit time.Duration) bool {
		s := step("a")
		s.StartToCloseTimeout = durationpb.New(limit)
		s.RetryPolicy = retries(2, time.Millisecond)
		id := w.enqueue(graph(s))
		l := h.one(long)
		renewed, err := h.Renew(w.ctx, l, long)
		if err != nil {
			h.one(long) // the second attempt, out of the way
			return false
		}
		if renewed.GetExpireTime().AsTime().After(l.GetStartToCloseDeadline().AsTime()) {
			t.Error("a renewal went beyond the timeout")
		}
		second := h.one(long)
		want(t, "next", second.GetAttemptNumber(), int32(2))
		a := w.stepOf(id, "a").GetAttempts()[0]
		want(t, "first attempt", a.GetState(), attemptTimedOut)
		want(t, "reason", a.GetReason(), "start_to_close_timeout")
		want(t, "told to the next", second.GetPreviousFailure().GetType(), "TIMEOUT")
		after := w.awaitFailedStep(id)
		want(t, "counted", after.GetCountedAttempts(), int32(2))
		want(t, "why", after.GetRetryStoppedBecause(), "MAXIMUM_ATTEMPTS_REACHED")
		return true
	})
}

// TestDeadline_EndsTheExecution: what runs is timed out, what waits fails, what is blocked is
// skipped.
func TestDeadline_EndsTheExecution(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 5)
	inTime(t, 2*time.Second, func(limit time.Duration) bool {
		e := graph(step("runs"), step("failed before"), step("blocked", "runs"), &leaseholdv1.StepSpec{Name: "waits", Capability: "nobody"})
		e.Steps[1].RetryPolicy = retries(5, time.Hour)
		e.Timeout = durationpb.New(limit)
		id := w.enqueue(e)
		leases, ok := h.within(2, limit)
		if !ok {
			return false
		}
		first := byStep(leases)
		if _, err := h.Report(w.ctx, first["failed before"], broken()); err != nil {
			return false
		}
		w.wantDeadline(w.awaitState(id, failed))
		_, err := h.Report(w.ctx, first["runs"], Succeeded(nil))
		refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
		w.wantLateEntry(id, first["runs"], "EXECUTION_CLOSED", 1)
		return true
	})
}

func (w *world) wantDeadline(got *leaseholdv1.Execution) {
	w.t.Helper()
	t := w.t
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
}

// TestDeadline_WhileCancelingEndsCanceled.
func TestDeadline_WhileCancelingEndsCanceled(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	inTime(t, 2*time.Second, func(limit time.Duration) bool {
		e := graph(step("a"), step("b", "a"))
		e.Timeout, e.CancelGrace = durationpb.New(limit), durationpb.New(time.Hour)
		id := w.enqueue(e)
		if _, ok := h.within(1, limit); !ok {
			return false
		}
		answer, err := w.Client(1).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
		if err != nil {
			return false // the deadline came first
		}
		want(t, "at first", answer.GetExecution().GetState(), canceling)
		got := w.awaitState(id, canceled)
		want(t, "attempt", find(t, got, "a").GetAttempts()[0].GetState(), attemptTimedOut)
		return true
	})
}

// TestCancelGrace_EndsAnAttemptThatGoesOn, whatever it renews.
func TestCancelGrace_EndsAnAttemptThatGoesOn(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 3)
	ends := func(grace time.Duration, renewed bool) bool {
		e := graph(step("a"))
		e.CancelGrace = durationpb.New(grace)
		id := w.enqueue(e)
		l := h.one(long)
		w.cancel(1, id)
		if renewed {
			if _, err := h.Renew(w.ctx, l, long); err != nil {
				return false
			}
		}
		got := w.awaitState(id, canceled)
		a := find(t, got, "a").GetAttempts()[0]
		want(t, "attempt", a.GetState(), attemptCanceled)
		want(t, "reason", a.GetReason(), "cancel_grace_over")
		want(t, "step", find(t, got, "a").GetState(), stepCanceled)
		_, err := h.Report(w.ctx, l, Succeeded(nil))
		refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
		return true
	}
	ends(0, false)
	inTime(t, time.Second, func(limit time.Duration) bool { return ends(limit, true) })
}
