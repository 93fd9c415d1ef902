package task

import (
	"testing"
	"time"
)

// brokenDiamond is a diamond whose b failed for good while c still ran, and then succeeded.
func brokenDiamond(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, diamond())
	w.leaseStep("a")
	w.succeed("a")
	w.leaseStep("b", "c")
	w.failForGood("b")
	w.succeed("c")
	w.want(ExecutionFailed, map[string]StepState{"a": StepSucceeded, "b": StepFailed, "c": StepSucceeded, "d": StepSkipped})
	return w
}

func TestReopen_OpensWhatFailedAndItsDescendants(t *testing.T) {
	t.Parallel()
	w := brokenDiamond(t)
	sequence, revision := w.data.Sequence, w.data.Revision
	w.must(w.reopen())
	w.want(ExecutionQueued, map[string]StepState{"a": StepSucceeded, "b": StepReady, "c": StepSucceeded, "d": StepBlocked})
	if d := w.data; d.Round != 2 || d.Failure != nil || d.Sequence != sequence+1 || d.Revision <= revision {
		t.Errorf("round %d, failure %v, sequence %d after %d, revision %d after %d", d.Round, d.Failure, d.Sequence, sequence, d.Revision, revision)
	}
	w.leaseStep("b")
	if a := w.live(w.step("b").ID); a.Number != 2 || a.Round != 2 {
		t.Errorf("attempt %d of round %d, want 2 of round 2", a.Number, a.Round)
	}
	w.succeed("b")
	w.leaseStep("d")
	w.succeed("d")
	w.want(ExecutionSucceeded, nil)
}

func TestReopen_CountsAnew(t *testing.T) {
	t.Parallel()
	spec := withAttempts(2)
	spec.Timeout, spec.Steps[0].ScheduleToClose = time.Hour, time.Minute
	w := newWorld(t, spec)
	for range 2 {
		w.leaseStep("a")
		w.fail("a")
	}
	w.want(ExecutionFailed, nil)
	w.now = w.now.Add(24 * time.Hour)
	w.must(w.reopen())
	if got := w.data.Deadline.Sub(w.now); got != time.Hour {
		t.Errorf("the deadline is in %v, want 1h", got)
	}
	for range 2 {
		w.leaseStep("a")
		if at := w.leases[w.step("a").ID].CapAt; at.After(w.now.Add(time.Minute)) {
			t.Errorf("lease capped at %v, want schedule_to_close counted anew", at)
		}
		w.fail("a")
	}
	w.want(ExecutionFailed, nil)
	if n := len(w.attempts[w.step("a").ID]); n != 4 {
		t.Errorf("%d attempts in two rounds of two", n)
	}
}

// Steps: a fails and so b, c are skipped; x fails too, and with it y.
func TestReopen_TheRuleForNamedSteps(t *testing.T) {
	t.Parallel()
	broken := func() *world {
		w := newWorld(t, graph(map[string][]string{"b": {"a"}, "c": {"b", "ok"}, "y": {"x", "b"}}, "a", "b", "c", "ok", "x", "y"))
		w.leaseStep("a", "ok", "x")
		w.succeed("ok")
		w.failForGood("a", "x")
		w.want(ExecutionFailed, nil)
		return w
	}
	for _, tt := range []struct {
		rule  string
		named []string
		want  map[string]StepState // none: refused
	}{
		{"a step and its descendants, but those that wait for others too", []string{"a"},
			map[string]StepState{"a": StepReady, "b": StepBlocked, "c": StepBlocked, "x": StepFailed, "y": StepSkipped}},
		{"without descendants", []string{"x"}, map[string]StepState{"x": StepReady, "y": StepSkipped, "a": StepFailed, "b": StepSkipped}},
		{"all that failed", nil, map[string]StepState{"a": StepReady, "x": StepReady, "b": StepBlocked, "c": StepBlocked, "y": StepBlocked}},
		{"named in any order, twice too", []string{"b", "a", "b"}, map[string]StepState{"a": StepReady, "b": StepBlocked, "x": StepFailed}},
		{"a step whose parent stays as it ended", []string{"b"}, nil},
		{"a step that succeeded", []string{"ok"}, nil},
		{"one good, one bad", []string{"a", "ok"}, nil},
	} {
		w := broken()
		err := w.reopen(tt.named...)
		if (err == nil) != (tt.want != nil) {
			t.Errorf("%s: %v", tt.rule, err)
			continue
		}
		if tt.want == nil {
			w.want(ExecutionFailed, map[string]StepState{"a": StepFailed, "b": StepSkipped})
			continue
		}
		w.want(ExecutionQueued, tt.want)
	}
}

func TestReopen_AFailedDescendantIsOpenedByNameOnly(t *testing.T) {
	t.Parallel()
	spec := graph(map[string][]string{"b": {"a"}}, "a", "b")
	w := newWorld(t, spec)
	w.leaseStep("a")
	w.succeed("a")
	w.leaseStep("b")
	w.failForGood("b")
	refused(t, w.reopen("a"), "SUCCEEDED")
	w.must(w.reopen("b"))
	w.want(ExecutionQueued, map[string]StepState{"b": StepReady})
}

func TestReopen_RefusesARoundWithoutSteps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, single())
	w.leaseStep("a")
	w.must(w.cancel())
	w.succeed("a")
	w.want(ExecutionCanceled, map[string]StepState{"a": StepSucceeded})
	refused(t, w.reopen(), "CANCELED")
}

func TestReopen_WhatStaysUnopenedStillFailsTheExecution(t *testing.T) {
	t.Parallel()
	w := newWorld(t, graph(nil, "a", "b"))
	w.leaseStep("a", "b")
	w.failForGood("a", "b")
	w.must(w.reopen("a"))
	w.leaseStep("a")
	w.succeed("a")
	w.want(ExecutionFailed, map[string]StepState{"a": StepSucceeded, "b": StepFailed})
}

func TestReopen_WritesDownTheEndOfTheRoundBefore(t *testing.T) {
	t.Parallel()
	w := brokenDiamond(t)
	end, at := w.data.EndEntry, *w.data.EndedAt
	w.now = w.now.Add(time.Hour)
	w.must(w.reopen())
	first := w.last.Entries[0]
	if first.Sequence != end || first.Milestone != "r1/execution/ended" || !first.At.Equal(at) {
		t.Errorf("got entry %+v, want number %d at %v", first, end, at)
	}
}
