package task

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestB33_SuccessAfterCancelIsRecordedAndStartsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"b": {"a"}}, "a", "b"))
	w.leaseStep("a")
	w.must(w.cancel())
	w.want(ExecutionCanceling, map[string]StepState{"a": StepRunning, "b": StepCanceled})
	w.succeed("a")
	w.want(ExecutionCanceled, map[string]StepState{"a": StepSucceeded, "b": StepCanceled})
	refused(t, w.lease(w.step("b").ID), "CANCELED")
}

func TestB34_CancelDuringBackoffEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"b": {"a"}}, "a", "b"))
	w.leaseStep("a")
	w.fail("a")
	w.must(w.cancel())
	w.want(ExecutionCanceled, map[string]StepState{"a": StepCanceled, "b": StepCanceled})
}

func TestB32_CancelWinsOverARetryableFailure(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*world, uuid.UUID) error{
		"failed":    func(w *world, a uuid.UUID) error { return w.report(a, failed("X", false)) },
		"released":  func(w *world, a uuid.UUID) error { return w.report(a, &Outcome{State: AttemptReleased}) },
		"lost":      expiresAt(func(w *world, _ uuid.UUID) time.Time { return w.now }),
		"timed out": expiresAt(func(w *world, a uuid.UUID) time.Time { return w.live(a).StartToCloseAt }),
	} {
		w := newWorld(t, single())
		w.leaseStep("a")
		w.must(w.cancel())
		if err := end(w, w.step("a").ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		w.want(ExecutionCanceled, map[string]StepState{"a": StepCanceled})
	}
}

func TestB36_CancelIsIdempotentAndFinishedStaysFinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, single())
	w.leaseStep("a")
	for range 20 {
		w.must(w.cancel())
	}
	if w.last.Touched {
		t.Errorf("a repeated cancel changes something: %+v", w.last)
	}
	w.must(w.report(w.step("a").ID, &Outcome{State: AttemptCanceled}))
	w.must(w.cancel())
	w.want(ExecutionCanceled, nil)
	if n := w.happened(EventExecutionCanceled, ""); n != 1 {
		t.Errorf("%d canceled events, want 1", n)
	}

	done := newWorld(t, single())
	done.leaseStep("a")
	done.succeed("a")
	refused(t, done.cancel(), "SUCCEEDED")
	done.want(ExecutionSucceeded, nil)
}

func TestReport_CanceledIsRefusedUnasked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, single())
	w.leaseStep("a")
	refused(t, w.report(w.step("a").ID, &Outcome{State: AttemptCanceled}), "LEASED")
	for _, s := range []AttemptState{AttemptLost, AttemptTimedOut, AttemptLeased, ""} {
		refused(t, w.report(w.step("a").ID, &Outcome{State: s}), "LEASED")
	}
	w.want(ExecutionRunning, map[string]StepState{"a": StepRunning})
}

func TestTerminate_RevokesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, diamond())
	w.leaseStep("a")
	w.must(w.terminate())
	w.want(ExecutionCanceled, map[string]StepState{"a": StepCanceled, "d": StepCanceled})
	if a := w.attempts[w.step("a").ID][0]; a.State != AttemptLost || a.Reason != EndRevoked {
		t.Errorf("attempt is %s (%s), want LOST (revoked)", a.State, a.Reason)
	}
	refused(t, w.terminate(), "CANCELED")
}

func TestDeadline_EndsEverythingAndKeepsTheLastRealError(t *testing.T) {
	t.Parallel()
	spec := graph(map[string][]string{"blocked": {"live"}}, "live", "waits", "blocked")
	spec.Timeout = time.Hour
	w := newWorld(t, spec)
	w.leaseStep("live")
	w.fail("live")
	w.leaseStep("live")
	refused(t, w.exceedDeadline(), "RUNNING")
	w.now = w.now.Add(time.Hour)
	w.must(w.exceedDeadline())
	w.want(ExecutionFailed, map[string]StepState{"live": StepFailed, "waits": StepFailed, "blocked": StepSkipped})
	if s := w.step("live"); s.StoppedBecause != StoppedDeadline || s.Failure.Type != "BOOM" {
		t.Errorf("stopped because %s, failure %+v; want the deadline and BOOM", s.StoppedBecause, s.Failure)
	}
	if a := w.attempts[w.step("live").ID][1]; a.State != AttemptTimedOut || a.Reason != EndExecutionDeadline {
		t.Errorf("attempt is %s (%s)", a.State, a.Reason)
	}
	if f := w.data.Failure; f.Type != StoppedDeadline {
		t.Errorf("execution's failure %+v, want %s", f, StoppedDeadline)
	}
}

// The lease's expiry is capped by the deadline, so the sweeper may meet the lease first.
func TestDeadline_IsTheReasonToo_WhenALeaseEndsByItFirst(t *testing.T) {
	t.Parallel()
	spec := graph(nil, "a", "b")
	spec.Timeout, spec.FailFast = time.Hour, true
	w := newWorld(t, spec)
	w.leaseStep("a")
	w.must(expiresAt(func(w *world, _ uuid.UUID) time.Time { return *w.data.Deadline })(w, w.step("a").ID))
	w.want(ExecutionRunning, map[string]StepState{"a": StepFailed, "b": StepReady})
	refused(t, w.lease(w.step("b").ID), "READY")
	w.must(w.exceedDeadline())
	w.want(ExecutionFailed, map[string]StepState{"a": StepFailed, "b": StepFailed})
	if f := w.data.Failure; f.Type != StoppedDeadline {
		t.Errorf("execution's failure %+v, want %s", f, StoppedDeadline)
	}
}

func TestDeadline_WhileCancelingEndsCanceled(t *testing.T) {
	t.Parallel()
	spec := single()
	spec.Timeout, spec.CancelGrace = time.Minute, time.Hour
	w := newWorld(t, spec)
	w.leaseStep("a")
	w.must(w.cancel())
	w.now = w.now.Add(time.Minute)
	w.must(w.exceedDeadline())
	w.want(ExecutionCanceled, map[string]StepState{"a": StepCanceled})
	if a := w.attempts[w.step("a").ID][0]; a.State != AttemptTimedOut {
		t.Errorf("attempt is %s, want TIMED_OUT", a.State)
	}
}

func TestLease_NeverOutlivesADeadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule                                    string
		startToClose, scheduleToClose, deadline time.Duration
		wantCap, wantExpiry                     time.Duration
	}{
		{"nothing is near", time.Hour, 0, 0, time.Hour, 30 * time.Second},
		{"start_to_close", 10 * time.Second, time.Hour, time.Hour, 10 * time.Second, 10 * time.Second},
		{"schedule_to_close", time.Hour, 20 * time.Second, time.Hour, 20 * time.Second, 20 * time.Second},
		{"execution", time.Hour, time.Minute, 5 * time.Second, 5 * time.Second, 5 * time.Second},
	} {
		spec := single()
		spec.Timeout, spec.Steps[0].StartToClose, spec.Steps[0].ScheduleToClose = tt.deadline, tt.startToClose, tt.scheduleToClose
		w := newWorld(t, spec)
		w.leaseStep("a")
		l := w.leases[w.step("a").ID]
		if got := l.CapAt.Sub(w.now); got != tt.wantCap {
			t.Errorf("%s: capped at %v, want %v", tt.rule, got, tt.wantCap)
		}
		if got := l.ExpiresAt.Sub(w.now); got != tt.wantExpiry {
			t.Errorf("%s: expires in %v, want %v", tt.rule, got, tt.wantExpiry)
		}
	}
}

func TestExpireLease_SaysWhy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule    string
		session bool
		over    func(*world, uuid.UUID) time.Time
		state   AttemptState
		reason  string
	}{
		{"silence", true, func(w *world, _ uuid.UUID) time.Time { return w.now }, AttemptLost, EndLeaseExpired},
		{"superseded session", false, func(w *world, _ uuid.UUID) time.Time { return w.now }, AttemptLost, EndSessionSuperseded},
		{"start_to_close", true, func(w *world, a uuid.UUID) time.Time { return w.live(a).StartToCloseAt }, AttemptTimedOut, EndStartToClose},
		{"schedule_to_close", true, func(w *world, a uuid.UUID) time.Time { return w.steps[a].OpenedAt.Add(12 * time.Hour) }, AttemptTimedOut, EndScheduleToClose},
		{"deadline", true, func(w *world, _ uuid.UUID) time.Time { return *w.data.Deadline }, AttemptTimedOut, EndExecutionDeadline},
	} {
		w := newWorld(t, tableSpec(false, false))
		w.leaseStep("a")
		id := w.step("a").ID
		l := w.leases[id]
		l.ExpiresAt = tt.over(w, id)
		w.leases[id] = l
		w.must(w.expire(id, tt.session))
		if a := w.attempts[id][0]; a.State != tt.state || a.Reason != tt.reason {
			t.Errorf("%s: %s (%s), want %s (%s)", tt.rule, a.State, a.Reason, tt.state, tt.reason)
		}
	}
}

func TestScheduleToClose_ARetryThatWouldComeTooLateFailsNow(t *testing.T) {
	t.Parallel()
	spec := withAttempts(Unlimited)
	spec.Steps[0].ScheduleToClose = 2500 * time.Millisecond
	w := newWorld(t, spec)
	w.leaseStep("a")
	w.fail("a") // next after 1 s
	w.leaseStep("a")
	w.fail("a") // next after 2 s more: beyond
	w.want(ExecutionFailed, nil)
	if s := w.step("a"); s.StoppedBecause != StoppedScheduleToClose || s.Failure.Type != "BOOM" {
		t.Errorf("stopped because %s, failure %+v", s.StoppedBecause, s.Failure)
	}
}

func TestTimers_AreSetOverEveryWait(t *testing.T) {
	t.Parallel()
	spec := single()
	spec.StartDelay, spec.Timeout = time.Minute, time.Hour
	spec.Steps[0].StartDelay = time.Second
	spec.Steps[0].ScheduleToStart, spec.Steps[0].ScheduleToClose = 10*time.Second, 20*time.Minute
	w := newWorld(t, spec)
	due := epoch.Add(time.Minute)
	want := map[TimerKind]time.Time{
		TimerStart: due, TimerDeadline: due.Add(time.Hour),
		TimerScheduleToStart: due.Add(11 * time.Second), TimerScheduleToClose: due.Add(time.Second + 20*time.Minute),
	}
	if len(w.timers) != len(want) {
		t.Fatalf("timers %+v, want %v", w.timers, want)
	}
	for _, timer := range w.timers {
		if !timer.At.Equal(want[timer.Kind]) {
			t.Errorf("%s at %v, want %v", timer.Kind, timer.At, want[timer.Kind])
		}
	}
}
