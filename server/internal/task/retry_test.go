package task

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestBackoff_GrowsByTheCoefficientUpToTheCap(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: 10 * time.Second}
	for n, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second,
		4: 8 * time.Second, 5: 10 * time.Second, 6: 10 * time.Second, math.MaxInt: 10 * time.Second,
	} {
		if got := p.Backoff(n, 0.7); got != want {
			t.Errorf("backoff after failure %d: %v, want %v", n, got, want)
		}
	}
}

func TestBackoff_JitterIsAroundTheValue(t *testing.T) {
	t.Parallel()
	p := DefaultRetryPolicy()
	for _, tt := range []struct {
		chance float64
		want   time.Duration
	}{{0, 3200 * time.Millisecond}, {0.5, 4 * time.Second}, {1, 4800 * time.Millisecond}} {
		if got := p.Backoff(3, tt.chance).Round(time.Microsecond); got != tt.want {
			t.Errorf("chance %v: %v, want %v", tt.chance, got, tt.want)
		}
	}
}

func TestBackoff_JitterKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := DefaultRetryPolicy()
		p.Jitter = rapid.Float64Range(0, 1).Draw(t, "jitter")
		n := rapid.IntRange(1, 6).Draw(t, "n")
		base := float64(time.Second) * math.Pow(2, float64(n-1))
		got := float64(p.Backoff(n, rapid.Float64Range(0, 1).Draw(t, "chance")))
		if got < base*(1-p.Jitter)-1 || got > base*(1+p.Jitter)+1 {
			t.Fatalf("%v is not within %v of %v", time.Duration(got), p.Jitter, time.Duration(base))
		}
	})
}

// extremeFloat draws what arithmetic fears.
func extremeFloat() *rapid.Generator[float64] {
	return rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{
		math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64,
	}))
}

func extremeDuration() *rapid.Generator[time.Duration] {
	return rapid.OneOf(
		rapid.Map(rapid.Int64(), func(n int64) time.Duration { return time.Duration(n) }),
		rapid.SampledFrom([]time.Duration{0, 1, -1, math.MaxInt64, math.MinInt64, MaxDuration, MaxDuration - 1, 1<<57 + 1}),
	)
}

func extremePolicy() *rapid.Generator[RetryPolicy] {
	return rapid.Custom(func(t *rapid.T) RetryPolicy {
		return RetryPolicy{
			InitialInterval:    extremeDuration().Draw(t, "initial"),
			BackoffCoefficient: extremeFloat().Draw(t, "coefficient"),
			MaximumInterval:    extremeDuration().Draw(t, "maximum"),
			MaximumAttempts:    rapid.Int().Draw(t, "attempts"),
			Jitter:             extremeFloat().Draw(t, "jitter"),
		}
	})
}

func TestBackoff_StaysBetweenZeroAndTheCapWhateverTheNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := extremePolicy().Draw(t, "policy")
		n := rapid.OneOf(rapid.Int(), rapid.SampledFrom([]int{math.MinInt, math.MaxInt, 0, 1})).Draw(t, "n")
		got := p.Backoff(n, extremeFloat().Draw(t, "chance"))
		if got < 0 || got > max(p.MaximumInterval, 0) || got > MaxDuration {
			t.Fatalf("backoff %v (%d), maximum %v", got, got, p.MaximumInterval)
		}
	})
}

func TestAttemptEnded_NextIsNeverDueInThePastOrBeyondTheBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		delay := extremeDuration().Draw(t, "next_retry_delay")
		s := &Step{d: StepData{State: StepRunning, Retry: extremePolicy().Draw(t, "policy")}}
		s.d.Retry.MaximumAttempts = Unlimited
		s.d.Failures, s.d.LostInRow, s.d.ReleasedInRow = 1<<40, 1<<40, 1<<40
		a := AttemptData{State: rapid.SampledFrom([]AttemptState{AttemptFailed, AttemptTimedOut, AttemptLost, AttemptReleased}).Draw(t, "state")}
		if rapid.Bool().Draw(t, "asks for a delay") {
			a.Failure = &Failure{NextRetryDelay: &delay}
		}
		due, err := s.attemptEnded(epoch, a, extremeDuration().Draw(t, "not before"), false, extremeFloat().Draw(t, "chance"))
		if err != nil || due.Before(epoch) || due.After(epoch.Add(MaxDuration)) {
			t.Fatalf("due %v after %v, %v", due, epoch, err)
		}
	})
}

// TestB22: the attempts are numbered without gaps, and there are as many as allowed.
func TestB22_MaximumAttemptsMeansAttempts(t *testing.T) {
	t.Parallel()
	for _, end := range []struct {
		name string
		do   func(w *world, id uuid.UUID) error
	}{
		{"failed", func(w *world, id uuid.UUID) error { return w.report(id, failed("X", false)) }},
		{"lost", func(w *world, id uuid.UUID) error { return w.expire(id, true) }},
		{"timed out", expiresAt(func(w *world, id uuid.UUID) time.Time { return w.live(id).StartToCloseAt })},
	} {
		for _, limit := range []int{1, 3} {
			w := newWorld(t, withAttempts(limit))
			id := w.step("a").ID
			for range limit {
				w.want(w.data.State, map[string]StepState{"a": StepReady})
				w.leaseStep("a")
				w.must(end.do(w, id))
			}
			w.want(ExecutionFailed, map[string]StepState{"a": StepFailed})
			if s := w.step("a"); s.StoppedBecause != StoppedMaximumAttempts || s.Counted != limit || len(w.attempts[id]) != limit {
				t.Errorf("%s, limit %d: %d attempts, counted %d, stopped because %s", end.name, limit, len(w.attempts[id]), s.Counted, s.StoppedBecause)
			}
		}
	}
}

func withAttempts(limit int) *ExecutionSpec {
	spec := single()
	spec.Steps[0].Retry.MaximumAttempts, spec.Steps[0].Retry.Jitter = limit, 0
	return spec
}

func TestRetry_UnlimitedGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withAttempts(Unlimited))
	for range 200 {
		w.leaseStep("a")
		w.fail("a")
	}
	w.want(ExecutionRunning, map[string]StepState{"a": StepReady})
}

func TestB28_HandBackTakesANumberAndDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withAttempts(2))
	id := w.step("a").ID
	for range 5 {
		w.leaseStep("a")
		w.must(w.report(id, &Outcome{State: AttemptReleased}))
	}
	w.leaseStep("a")
	w.must(w.change([]uuid.UUID{id}, func(e *Execution) error { return e.ReturnLease(w.now, id, 0) }))
	if s := w.step("a"); s.Counted != 0 || s.AttemptsEnded != 6 {
		t.Fatalf("counted %d of %d, want 0 of 6", s.Counted, s.AttemptsEnded)
	}
	w.leaseStep("a")
	w.fail("a")
	w.leaseStep("a")
	w.fail("a")
	w.want(ExecutionFailed, nil)
	if s := w.step("a"); s.Counted != 2 || s.AttemptsEnded != 8 {
		t.Errorf("counted %d of %d, want 2 of 8", s.Counted, s.AttemptsEnded)
	}
}

// TestRetry_WhenTheNextIsDue runs a series of ends and looks at the wait after each.
func TestRetry_WhenTheNextIsDue(t *testing.T) {
	t.Parallel()
	const s = time.Second
	rel := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'R'
		}
		return string(b)
	}
	zeros := func(n int, then ...time.Duration) []time.Duration { return append(make([]time.Duration, n), then...) }
	for _, tt := range []struct {
		rule string
		ends string // F failed, T timed out, L lost, R released
		want []time.Duration
	}{
		{"failures and timeouts back off by how many there were", "FTF", []time.Duration{s, 2 * s, 4 * s}},
		{"lost and released between them do not raise it", "FLRF", []time.Duration{s, 0, 0, 2 * s}},
		{"the third lost in a row waits, and the next longer", "LLLLL", []time.Duration{0, 0, s, 2 * s, 4 * s}},
		{"a failure ends the row of the lost", "LLFLLL", []time.Duration{0, 0, s, 0, 0, s}},
		{"a release ends the row of the lost", "LLRLL", zeros(5)},
		{"the tenth released in a row waits", rel(11), zeros(9, s, 2*s)},
		{"a lost one ends the row of the released", rel(9) + "L" + rel(10), zeros(19, s)},
	} {
		step := &Step{d: StepData{Retry: RetryPolicy{InitialInterval: s, BackoffCoefficient: 2, MaximumInterval: 100 * s, MaximumAttempts: Unlimited}}}
		for i, c := range tt.ends {
			step.d.State = StepRunning
			state := map[rune]AttemptState{'F': AttemptFailed, 'T': AttemptTimedOut, 'L': AttemptLost, 'R': AttemptReleased}[c]
			due, err := step.attemptEnded(epoch, AttemptData{State: state, Number: i + 1}, 0, false, 0.5)
			if got := due.Sub(epoch); err != nil || got != tt.want[i] {
				t.Errorf("%s: after end %d of %s the next waits %v, want %v (%v)", tt.rule, i+1, tt.ends, got, tt.want[i], err)
			}
		}
	}
}

func TestRetry_WhatAFailureSaysIsKept(t *testing.T) {
	t.Parallel()
	minute, huge := time.Minute, time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		rule    string
		failure *Failure
		state   StepState
		because string
		wait    time.Duration
	}{
		{"retryable", &Failure{Type: "SOME"}, StepReady, "", time.Second},
		{"non-retryable by its word", &Failure{Type: "SOME", NonRetryable: true}, StepFailed, StoppedNonRetryable, 0},
		{"non-retryable by its type", &Failure{Type: "BAD_INPUT"}, StepFailed, StoppedNonRetryable, 0},
		{"types are compared whole", &Failure{Type: "BAD_INPUT2"}, StepReady, "", time.Second},
		{"next_retry_delay takes the place of backoff", &Failure{Type: "SOME", NextRetryDelay: &minute}, StepReady, "", time.Minute},
		{"next_retry_delay is bounded", &Failure{Type: "SOME", NextRetryDelay: &huge}, StepReady, "", MaxDuration},
		{"non-retryable wins over next_retry_delay", &Failure{NonRetryable: true, NextRetryDelay: &minute}, StepFailed, StoppedNonRetryable, 0},
	} {
		spec := withAttempts(3)
		spec.Steps[0].Retry.NonRetryableTypes = []string{"OTHER", "BAD_INPUT"}
		w := newWorld(t, spec)
		w.leaseStep("a")
		id := w.step("a").ID
		w.must(w.report(id, &Outcome{State: AttemptFailed, Failure: tt.failure}))
		if s := w.step("a"); s.State != tt.state || s.StoppedBecause != tt.because {
			t.Errorf("%s: %s %s, want %s %s", tt.rule, s.State, s.StoppedBecause, tt.state, tt.because)
		}
		if tt.state == StepReady && w.requests[id].Due.Sub(w.now) != tt.wait {
			t.Errorf("%s: waits %v, want %v", tt.rule, w.requests[id].Due.Sub(w.now), tt.wait)
		}
	}
}

func TestRetry_NonRetryableTypesAreOfFailuresOnly(t *testing.T) {
	t.Parallel()
	spec := withAttempts(3)
	spec.Steps[0].Retry.NonRetryableTypes = []string{"LEASE_LOST", "TIMEOUT"}
	w := newWorld(t, spec)
	w.leaseStep("a")
	w.must(w.expire(w.step("a").ID, true))
	w.want(ExecutionRunning, map[string]StepState{"a": StepReady})
}

func TestRetry_ReleaseMayAskForAWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withAttempts(1))
	id := w.step("a").ID
	w.leaseStep("a")
	w.must(w.report(id, &Outcome{State: AttemptReleased, NotBefore: time.Minute}))
	if got := w.requests[id].Due.Sub(w.now); got != time.Minute {
		t.Errorf("waits %v, want 1m", got)
	}
	for asked, want := range map[time.Duration]time.Duration{math.MaxInt64: MaxDuration, math.MinInt64: 0} {
		s := &Step{d: StepData{State: StepRunning, Retry: DefaultRetryPolicy()}}
		due, err := s.attemptEnded(epoch, AttemptData{State: AttemptReleased}, asked, false, 0)
		if got := due.Sub(epoch); err != nil || got != want {
			t.Errorf("asked for %v: waits %v, want %v (%v)", asked, got, want, err)
		}
	}
}
