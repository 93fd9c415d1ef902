package task

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// happened counts the events of a type since the beginning, of all steps or of one.
func (w *world) happened(t EventType, step string) int {
	n := 0
	for _, ev := range w.events {
		if ev.Type == t && (step == "" || ev.StepName == step) {
			n++
		}
	}
	return n
}

func (w *world) want(execution ExecutionState, steps map[string]StepState) {
	w.t.Helper()
	w.check()
	for name, state := range steps {
		if got := w.state(name); got != state {
			w.t.Fatalf("step %q is %s, want %s", name, got, state)
		}
	}
	if w.data.State != execution {
		w.t.Fatalf("execution is %s, want %s", w.data.State, execution)
	}
}

func refused(t *testing.T, err error, from string) {
	t.Helper()
	te := (*TransitionError)(nil)
	if !errors.As(err, &te) || te.From != from {
		t.Fatalf("got %v, want a refusal in %s", err, from)
	}
}

func TestB43_DiamondJoinsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, diamond())
	w.leaseStep("a")
	w.succeed("a")
	w.leaseStep("b", "c")
	w.succeed("b")
	w.want(ExecutionRunning, map[string]StepState{"c": StepRunning, "d": StepBlocked})
	w.succeed("c")
	w.leaseStep("d")
	w.succeed("d")
	w.want(ExecutionSucceeded, map[string]StepState{"d": StepSucceeded})
	if n := len(w.attempts[w.step("d").ID]); n != 1 {
		t.Errorf("the join had %d attempts, want 1", n)
	}
	if n := w.happened(EventExecutionSucceeded, ""); n != 1 {
		t.Errorf("%d succeeded events, want 1", n)
	}
}

func TestB43_DiamondJoinsOnce_WhenBothParentsAreReportedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, diamond())
	w.leaseStep("a")
	w.succeed("a")
	w.leaseStep("b", "c")
	b, c := w.step("b").ID, w.step("c").ID
	w.must(w.change([]uuid.UUID{b, c}, func(e *Execution) error {
		return errors.Join(e.Report(w.now, b, &Outcome{State: AttemptSucceeded}, 0), e.Report(w.now, c, &Outcome{State: AttemptSucceeded}, 0))
	}))
	w.leaseStep("d")
	w.succeed("d")
	w.want(ExecutionSucceeded, nil)
}

func TestB47_ChildIsNotSkippedWhileParentRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"b": {"a"}, "c": {"a", "x"}}, "a", "b", "c", "x"))
	w.leaseStep("a", "x")
	w.fail("a")
	w.want(ExecutionRunning, map[string]StepState{"a": StepReady, "b": StepBlocked, "c": StepBlocked})
	w.leaseStep("a")
	w.succeed("a", "x")
	w.want(ExecutionRunning, map[string]StepState{"b": StepReady, "c": StepReady})
}

func TestB48_FailureReachesAllDescendantsInTheSameMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"b": {"a"}, "c": {"b"}, "d": {"c"}}, "a", "b", "c", "d", "e"))
	w.leaseStep("a", "e")
	w.failForGood("a")
	w.want(ExecutionRunning, map[string]StepState{
		"a": StepFailed, "b": StepSkipped, "c": StepSkipped, "d": StepSkipped, "e": StepRunning,
	})
	for _, name := range []string{"b", "c", "d"} {
		if n := w.happened(EventStepSkipped, name); n != 1 {
			t.Errorf("step %q: %d skipped events, want 1", name, n)
		}
	}
	w.succeed("e")
	w.want(ExecutionFailed, nil)
	if n := w.happened(EventExecutionFailed, ""); n != 1 {
		t.Errorf("%d failed events, want 1", n)
	}
}

func TestB48_TwoFailuresSkipACommonDescendantOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"d": {"b", "c"}}, "b", "c", "d"))
	w.leaseStep("b", "c")
	b, c := w.step("b").ID, w.step("c").ID
	w.must(w.change([]uuid.UUID{b, c}, func(e *Execution) error {
		return errors.Join(e.Report(w.now, b, failed("X", true), 0), e.Report(w.now, c, failed("X", true), 0))
	}))
	w.want(ExecutionFailed, map[string]StepState{"d": StepSkipped})
	if n := w.happened(EventStepSkipped, "d"); n != 1 {
		t.Errorf("%d skipped events, want 1", n)
	}
}

func TestB49_SiblingsOfAFailedStepRunToTheirEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(map[string][]string{"d": {"c"}}, "b", "c", "d"))
	w.leaseStep("b", "c")
	w.failForGood("b")
	w.succeed("c")
	w.leaseStep("d")
	w.want(ExecutionRunning, nil)
	w.succeed("d")
	w.want(ExecutionFailed, map[string]StepState{"c": StepSucceeded, "d": StepSucceeded})
	if f := w.data.Failure; f.Type != "STEP_FAILED" {
		t.Errorf("failure %+v, want STEP_FAILED", f)
	}
}

func TestB49_FailFastCancelsTheOthers(t *testing.T) {
	t.Parallel()
	spec := graph(map[string][]string{"child": {"bad"}, "later": {"live"}}, "bad", "child", "live", "waits", "later")
	spec.FailFast = true
	w := newWorld(t, spec)
	w.leaseStep("bad", "live")
	w.failForGood("bad")
	w.want(ExecutionRunning, map[string]StepState{
		"bad": StepFailed, "child": StepSkipped, "live": StepRunning, "waits": StepCanceled, "later": StepCanceled,
	})
	if !w.last.Stopped || w.leases[w.step("live").ID].CapAt.After(w.now.Add(spec.CancelGrace)) {
		t.Errorf("stopped %v, the live lease is capped at %v", w.last.Stopped, w.leases[w.step("live").ID].CapAt)
	}
	w.fail("live")
	w.want(ExecutionFailed, map[string]StepState{"live": StepCanceled})
}

func TestFailFast_LeasesNothingOnceItStops_AndCancelDoesNotLengthenItsGrace(t *testing.T) {
	t.Parallel()
	spec := graph(nil, "bad", "live", "waits")
	spec.FailFast = true
	w := newWorld(t, spec)
	w.leaseStep("bad", "live")
	bad, waits := w.step("bad").ID, w.step("waits").ID
	e := w.load([]uuid.UUID{bad, waits})
	w.must(e.Report(w.now, bad, failed("X", true), 0))
	_, _, err := e.Lease(w.now, waits, Grant{AttemptID: w.id(), Number: 1})
	refused(t, err, "READY") // although it is not settled yet

	w.failForGood("bad")
	grace := *w.data.CancelDeadline
	w.now = w.now.Add(10 * time.Second)
	w.must(w.cancel())
	w.want(ExecutionCanceling, map[string]StepState{"live": StepRunning})
	if !w.data.CancelDeadline.Equal(grace) {
		t.Errorf("grace until %v, was %v", w.data.CancelDeadline, grace)
	}
}

func TestFrontier_OfALeafIsEmpty(t *testing.T) {
	t.Parallel()
	for _, o := range []*Outcome{{State: AttemptSucceeded}, failed("X", true)} {
		w := newWorld(t, single())
		w.leaseStep("a")
		id := w.step("a").ID
		e := w.load([]uuid.UUID{id})
		w.must(e.Report(w.now, id, o, 0))
		if f := e.Frontier(); !f.Empty() {
			t.Errorf("%s: a step without children lets %+v be read", o.State, f)
		}
	}
}

func TestB46_SiblingsThatFailTogetherKeepTheirRetries(t *testing.T) {
	t.Parallel()
	spec := graph(nil, "b", "c")
	spec.Steps[0].Retry.MaximumAttempts, spec.Steps[1].Retry.MaximumAttempts = 5, 5
	w := newWorld(t, spec)
	for range 4 {
		w.leaseStep("b", "c")
		w.fail("b", "c")
		w.want(ExecutionRunning, map[string]StepState{"b": StepReady, "c": StepReady})
	}
	w.leaseStep("b", "c")
	w.succeed("b", "c")
	w.want(ExecutionSucceeded, nil)
}

func TestSettle_RefusesWhatWasNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, diamond())
	unknown := w.id()
	a := w.step("a").ID
	for name, settle := range map[string]func(*Execution) error{
		"child":      func(e *Execution) error { return e.Settle(w.now, []Edge{{a, unknown}}, nil) },
		"parent":     func(e *Execution) error { return e.Settle(w.now, []Edge{{unknown, a}}, nil) },
		"descendant": func(e *Execution) error { return e.Settle(w.now, nil, []uuid.UUID{unknown}) },
	} {
		if err := settle(w.load([]uuid.UUID{a})); err == nil {
			t.Errorf("%s that was not read: no error", name)
		}
	}
}

func TestTakeChanges_NumbersOnlyTheSelectedEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, single())
	id := w.step("a").ID
	e := w.load([]uuid.UUID{id})
	if _, _, err := e.Lease(w.now, id, Grant{AttemptID: w.id(), Number: 1}); err != nil {
		t.Fatal(err)
	}
	if err := e.Report(w.now, id, &Outcome{State: AttemptSucceeded}, 0); err != nil {
		t.Fatal(err)
	}
	if err := e.Settle(w.now, nil, nil); err != nil {
		t.Fatal(err)
	}
	before := w.data.Sequence
	c := e.TakeChanges(func(t EventType) bool { return slices.Contains(DefaultEventTypes(), t) })
	if len(c.Events) != 2 || c.Events[0].Type != EventStepSucceeded || c.Events[1].Type != EventExecutionSucceeded {
		t.Fatalf("events %+v, want the step's end and the execution's", c.Events)
	}
	if c.Events[0].Sequence != before+1 || c.Events[1].Sequence != before+2 || e.Data().Sequence != before+2 {
		t.Errorf("sequences %d, %d, counter %d after %d", c.Events[0].Sequence, c.Events[1].Sequence, e.Data().Sequence, before)
	}
	after := e.Data().Revision
	if c.Base != w.data.Revision || after <= c.Base {
		t.Errorf("revision %d after %d, decided on %d", after, w.data.Revision, c.Base)
	}
	if again := e.TakeChanges(func(EventType) bool { return true }); again.Touched || e.Data().Revision != after {
		t.Errorf("changes were handed out twice: %+v", again)
	}
}

func TestBecomeDue_NotBeforeItsTime(t *testing.T) {
	t.Parallel()
	spec := single()
	spec.StartDelay = time.Minute
	w := newWorld(t, spec)
	due := func() error { return w.change(nil, func(e *Execution) error { return e.BecomeDue(w.now) }) }
	refused(t, due(), "CREATED")
	w.now = w.now.Add(time.Minute)
	w.must(due())
	w.want(ExecutionQueued, nil)
	refused(t, due(), "QUEUED")
}
