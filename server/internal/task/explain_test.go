package task

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestStanding_TheFirstHindranceCounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    Standing
		want Hindrance
		free int
	}{
		{Standing{Present: true, Slots: 3, Live: 1}, NotHindered, 2},
		{Standing{Present: true, Slots: 3, Live: 3}, WorkerFull, 0},
		{Standing{Present: true, Slots: 1, Live: 4}, WorkerFull, 0}, // it came back with fewer slots
		{Standing{Present: true, Drained: true, Slots: 3, Live: 3}, WorkerDrained, 0},
		{Standing{Drained: true, Slots: 3, Live: 3}, WorkerAbsent, 0},
	} {
		if got, free := tt.s.Hinders(), tt.s.Free(); got != tt.want || free != tt.free {
			t.Errorf("%+v: %v with %d free, want %v with %d", tt.s, got, free, tt.want, tt.free)
		}
	}
}

func TestReach_ByNamespaceCapabilityAndNode(t *testing.T) {
	t.Parallel()
	r := Reach{Namespace: "ns", Node: "n1", Capabilities: map[string]bool{"a": true}}
	for _, tt := range []struct {
		n    Need
		want Hindrance
	}{
		{Need{"ns", "a", ""}, NotHindered},
		{Need{"ns", "a", "n1"}, NotHindered},
		{Need{"ns", "a", "n2"}, WorkerElsewhere},
		{Need{"ns", "b", "n2"}, WorkerIncapable},
		{Need{"other", "a", ""}, WorkerIncapable},
	} {
		if got := r.Hinders(tt.n); got != tt.want {
			t.Errorf("%+v: %v, want %v", tt.n, got, tt.want)
		}
	}
}

// look is the situation of a step, with one free worker.
func (w *world) look(name string) *Situation {
	id := w.step(name).ID
	f := &Situation{
		Now: w.now, Execution: w.load([]uuid.UUID{id}), StepID: id, Due: w.requests[id].Due,
		Workers: []Candidate{{ID: w.id(), Node: "n1", LastSeen: w.now, Standing: Standing{Present: true, Slots: 2}}},
	}
	if list := w.attempts[id]; len(list) > 0 {
		f.Last = &list[len(list)-1]
	}
	return f
}

func explained(t *testing.T, f *Situation, want string) Explanation {
	t.Helper()
	wants := f.Wants()
	f.AheadLimit = wants.AheadLimit
	x := Explain(f)
	var codes []string
	for _, found := range x.Findings {
		codes = append(codes, string(found.Cause))
		if found.Since.IsZero() || found.Since.After(f.Now) {
			t.Errorf("%s since %v, now %v", found.Cause, found.Since, f.Now)
		}
		if found.Message == "" || found.Change == "" || strings.Contains(found.Message, "%!") {
			t.Errorf("%s says %q, changed by %q", found.Cause, found.Message, found.Change)
		}
	}
	if got := strings.Join(codes, " "); got != want {
		t.Errorf("got %q, want %q: %s", got, want, x.Summary)
	}
	return x
}

// What a database shows for a moment only, or seldom.
func TestExplain_RareSituations(t *testing.T) {
	t.Parallel()
	late := single()
	late.Timeout = time.Minute
	w := newWorld(t, late)
	explained(t, w.look("a"), "")
	w.now = w.now.Add(2 * time.Minute) // no sweep has come yet
	x := explained(t, w.look("a"), "TERMINAL")
	if want := epoch.Add(time.Minute); !x.Findings[0].Since.Equal(want) {
		t.Errorf("since %v, want the deadline %v", x.Findings[0].Since, want)
	}

	fast := graph(nil, "a", "b")
	fast.FailFast = true
	w = newWorld(t, fast)
	w.leaseStep("a", "b")
	w.failForGood("b")
	x = explained(t, w.look("a"), "EXECUTION_CANCELING RUNNING")
	if !strings.Contains(x.Findings[0].Message, "fail_fast") {
		t.Error(x.Findings[0].Message)
	}

	w = newWorld(t, diamond())
	f := w.look("d")
	f.Pause, f.Workers = &Notice{At: w.now, Reason: "why"}, nil
	f.Parents = []Parent{{Name: "b"}, {Name: "c"}}
	explained(t, f, "WAITING_FOR_PARENTS CAPABILITY_PAUSED NO_CAPABLE_WORKER")
	f.Workers = []Candidate{{Standing: Standing{Present: true, Slots: 1, Live: 1}}} // it may be free when the parents are done
	f.Pause = nil
	explained(t, f, "WAITING_FOR_PARENTS")
}

// As many before it as there are free slots: it may get none. One fewer: it gets one.
func TestExplain_AheadAgainstFreeSlots(t *testing.T) {
	t.Parallel()
	w := newWorld(t, single())
	f := w.look("a")
	f.Workers = append(f.Workers, Candidate{ID: w.id(), Standing: Standing{Present: true, Drained: true, Slots: 9}})
	if wants := f.Wants(); len(wants.AheadOf) != 1 || wants.AheadLimit != MaxAhead {
		t.Fatalf("wants %+v", wants)
	}
	f.Ahead = 1
	explained(t, f, "")
	f.Ahead = 2
	if x := explained(t, f, "BEHIND_OTHERS"); x.Findings[0].Free != 2 || x.Findings[0].Ahead != 2 || x.Findings[0].AheadCapped {
		t.Errorf("%+v", x.Findings[0])
	}
	f.Ahead = MaxAhead
	if x := explained(t, f, "BEHIND_OTHERS"); !x.Findings[0].AheadCapped {
		t.Error("counted up to the bound, and not marked")
	}
	f.Workers[0].Standing.Slots = 5000
	if f.Wants().AheadLimit != 5000 {
		t.Error("with 5000 free slots it has to be counted further")
	}
	explained(t, f, "")
}
