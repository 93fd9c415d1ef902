package task

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestB98_CleanText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule, in string
		limit    int
		want     string
	}{
		{"good text stays", "as it is ✓", 100, "as it is ✓"},
		{"NUL is replaced", "a\x00b\x00", 100, "a\uFFFDb\uFFFD"},
		{"invalid UTF-8 is replaced", "a\xff\xfeb", 100, "a\uFFFDb"},
		{"cut at a rune", "aé", 2, "a"},
		{"exactly as long as allowed", "aé", 3, "aé"},
		{"replacement is cut as a whole", "ab\x00", 4, "ab"},
		{"no room", "é", 0, ""},
		{"empty", "", 5, ""},
	} {
		if got := CleanText(tt.in, tt.limit); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.rule, got, tt.want)
		}
	}
}

func TestCleanText_CanAlwaysBeStored(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.OneOf(rapid.Byte(), rapid.SampledFrom([]byte{0, 0xff, 0xc3, 0xa9, 0xe2}))).Draw(t, "bytes"))
		limit := rapid.IntRange(0, 40).Draw(t, "limit")
		got := CleanText(in, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Fatalf("CleanText(%q, %d) = %q", in, limit, got)
		}
		if again := CleanText(got, limit); again != got {
			t.Fatalf("a clean text is changed: %q, %q", got, again)
		}
	})
}

func TestFailure_CleanKeepsTheRest(t *testing.T) {
	t.Parallel()
	delay := time.Second
	f := Failure{Type: strings.Repeat("t", 300), Message: strings.Repeat("é", 5000), NonRetryable: true, NextRetryDelay: &delay, Details: &Payload{Body: []byte{0}}}
	c := f.Clean()
	if len(c.Type) != MaxFailureType || len(c.Message) != MaxFailureMessage {
		t.Errorf("type of %d bytes, message of %d", len(c.Type), len(c.Message))
	}
	if !c.NonRetryable || c.NextRetryDelay != &delay || c.Details != f.Details || len(f.Type) != 300 {
		t.Errorf("got %+v", c)
	}
}

func rich() *ExecutionSpec {
	spec := diamond()
	spec.Labels = map[string]string{"k1": "v1", "k2": "v2", "k3": "v3"}
	spec.Steps[0].Input = &Payload{JSON: true, Body: []byte(`{"a":1}`), ContentType: "application/json"}
	spec.Steps[0].Retry.NonRetryableTypes = []string{"BAD"}
	return spec
}

func TestFingerprint_IsOfTheContent(t *testing.T) {
	t.Parallel()
	at, before := epoch, time.UnixMicro(-1)
	for _, tt := range []struct {
		change string
		do     func(*ExecutionSpec)
		same   bool
	}{
		{"none", func(*ExecutionSpec) {}, true},
		{"order of parents", func(s *ExecutionSpec) { s.Steps[0].DependsOn = []string{"c", "b"} }, true},
		{"order of labels", func(s *ExecutionSpec) { s.Labels = map[string]string{"k3": "v3", "k2": "v2", "k1": "v1"} }, true},
		{"key", func(s *ExecutionSpec) { s.IdempotencyKey = "other" }, true},
		{"trace", func(s *ExecutionSpec) { s.TraceContext = map[string]string{"traceparent": "x"} }, true},
		{"name", func(s *ExecutionSpec) { s.Name += "x" }, false},
		{"a label", func(s *ExecutionSpec) { s.Labels["k1"] = "other" }, false},
		{"labels that read alike", func(s *ExecutionSpec) { s.Labels = map[string]string{"k1v1": "", "k2": "v2", "k3": "v3"} }, false},
		{"start", func(s *ExecutionSpec) { s.StartAt = &at }, false},
		{"start just before 1970", func(s *ExecutionSpec) { s.StartAt = &before }, false},
		{"start delay", func(s *ExecutionSpec) { s.StartDelay = 1 }, false},
		{"timeout", func(s *ExecutionSpec) { s.Timeout = 1 }, false},
		{"grace", func(s *ExecutionSpec) { s.CancelGrace++ }, false},
		{"fail_fast", func(s *ExecutionSpec) { s.FailFast = true }, false},
		{"priority", func(s *ExecutionSpec) { s.Priority = 1 }, false},
		{"one step less", func(s *ExecutionSpec) { s.Steps = s.Steps[:3] }, false},
		{"a parent", func(s *ExecutionSpec) { s.Steps[0].DependsOn = []string{"b"} }, false},
		{"step's name", func(s *ExecutionSpec) { s.Steps[3].Name = "z" }, false},
		{"capability", func(s *ExecutionSpec) { s.Steps[0].Capability = "z" }, false},
		{"node", func(s *ExecutionSpec) { s.Steps[0].Node = "z" }, false},
		{"input", func(s *ExecutionSpec) { s.Steps[0].Input.Body = []byte(`{"a":2}`) }, false},
		{"input is bytes", func(s *ExecutionSpec) { s.Steps[0].Input.JSON = false }, false},
		{"content type", func(s *ExecutionSpec) { s.Steps[0].Input.ContentType = "" }, false},
		{"no input", func(s *ExecutionSpec) { s.Steps[0].Input = nil }, false},
		{"empty input", func(s *ExecutionSpec) { s.Steps[1].Input = &Payload{} }, false},
		{"maximum_attempts", func(s *ExecutionSpec) { s.Steps[0].Retry.MaximumAttempts = 5 }, false},
		{"initial_interval", func(s *ExecutionSpec) { s.Steps[0].Retry.InitialInterval++ }, false},
		{"maximum_interval", func(s *ExecutionSpec) { s.Steps[0].Retry.MaximumInterval++ }, false},
		{"coefficient", func(s *ExecutionSpec) { s.Steps[0].Retry.BackoffCoefficient = 3 }, false},
		{"jitter", func(s *ExecutionSpec) { s.Steps[0].Retry.Jitter = 0 }, false},
		{"non-retryable types", func(s *ExecutionSpec) { s.Steps[0].Retry.NonRetryableTypes = nil }, false},
		{"schedule_to_start", func(s *ExecutionSpec) { s.Steps[0].ScheduleToStart = 1 }, false},
		{"start_to_close", func(s *ExecutionSpec) { s.Steps[0].StartToClose = 1 }, false},
		{"schedule_to_close", func(s *ExecutionSpec) { s.Steps[0].ScheduleToClose = 1 }, false},
		{"step's start delay", func(s *ExecutionSpec) { s.Steps[0].StartDelay = 1 }, false},
		{"step's priority", func(s *ExecutionSpec) { s.Steps[0].Priority = 1 }, false},
	} {
		spec := rich()
		tt.do(spec)
		if same := bytes.Equal(spec.Fingerprint(), rich().Fingerprint()); same != tt.same {
			t.Errorf("change of %s: same fingerprint %v, want %v", tt.change, same, tt.same)
		}
	}
}

func TestFingerprint_LeavesTheOrderOfParentsAsItIs(t *testing.T) {
	t.Parallel()
	spec := rich()
	spec.Steps[0].DependsOn = []string{"c", "b"}
	spec.Fingerprint()
	if !slices.Equal(spec.Steps[0].DependsOn, []string{"c", "b"}) {
		t.Errorf("the caller's list was sorted: %v", spec.Steps[0].DependsOn)
	}
}

func TestB14_OutcomeFingerprintTellsReportsApart(t *testing.T) {
	t.Parallel()
	zero, second := time.Duration(0), time.Second
	outcomes := []*Outcome{
		{State: AttemptSucceeded}, {State: AttemptSucceeded, Output: &Payload{}}, {State: AttemptSucceeded, Output: &Payload{Body: []byte("x")}},
		{State: AttemptSucceeded, Output: &Payload{Body: []byte("x"), JSON: true}}, {State: AttemptCanceled},
		{State: AttemptReleased}, {State: AttemptReleased, Reason: "r"}, {State: AttemptReleased, NotBefore: 1},
		{State: AttemptFailed}, {State: AttemptFailed, Failure: &Failure{}}, {State: AttemptFailed, Failure: &Failure{Type: "ab", Message: "c"}},
		{State: AttemptFailed, Failure: &Failure{Type: "a", Message: "bc"}}, {State: AttemptFailed, Failure: &Failure{NonRetryable: true}},
		{State: AttemptFailed, Failure: &Failure{NextRetryDelay: &zero}}, {State: AttemptFailed, Failure: &Failure{NextRetryDelay: &second}},
		{State: AttemptFailed, Failure: &Failure{Details: &Payload{}}},
	}
	for i, a := range outcomes {
		for j, b := range outcomes {
			if same := bytes.Equal(OutcomeFingerprint(a), OutcomeFingerprint(b)); same != (i == j) {
				t.Errorf("outcomes %d and %d: same fingerprint %v", i, j, same)
			}
		}
	}
}

// TestB04_LateReason_TheFirstThatFits: each row has all the reasons of the rows below it too.
func TestB04_LateReason_TheFirstThatFits(t *testing.T) {
	t.Parallel()
	l := Late{
		Attempt:     AttemptData{LeaseVersion: 7, Outcome: []byte{1}, Reason: EndRevoked},
		HeldVersion: 6, LaterAttempt: true, ExecutionClosed: true,
	}
	steps := []struct {
		rule string
		do   func()
		want Reason
	}{
		{"the version is not this attempt's", func() {}, ReasonLeaseSuperseded},
		{"it ended by a different report", func() { l.HeldVersion = 7 }, ReasonOutcomeRecorded},
		{"its lease was revoked", func() { l.Attempt.Outcome = nil }, ReasonLeaseRevoked},
		{"its worker was deregistered", func() { l.Attempt.Reason = EndDeregistered }, ReasonLeaseRevoked},
		{"its session was superseded when it ended", func() { l.Attempt.Reason, l.SessionCurrent = EndSessionSuperseded, true }, ReasonSessionSuperseded},
		{"its session is superseded", func() { l.Attempt.Reason, l.SessionCurrent = EndLeaseExpired, false }, ReasonSessionSuperseded},
		{"a later attempt exists", func() { l.SessionCurrent = true }, ReasonLeaseSuperseded},
		{"the execution is closed", func() { l.LaterAttempt = false }, ReasonExecutionClosed},
		{"it was just late", func() { l.ExecutionClosed = false }, ReasonLeaseExpired},
	}
	for _, s := range steps {
		s.do()
		if got := l.Reason(); got != s.want {
			t.Errorf("%s: %s, want %s", s.rule, got, s.want)
		}
	}
}

func TestB14_OnlyTheVeryReportIsReplayed(t *testing.T) {
	t.Parallel()
	good := Late{Attempt: AttemptData{LeaseVersion: 7, Outcome: []byte{1, 2}}, HeldVersion: 7, Outcome: []byte{1, 2}}
	if !good.Replayed() {
		t.Error("the same report is not a replay")
	}
	for rule, do := range map[string]func(*Late){
		"another version":            func(l *Late) { l.HeldVersion = 6 },
		"another outcome":            func(l *Late) { l.Outcome = []byte{1, 3} },
		"a renewal":                  func(l *Late) { l.Outcome = nil },
		"ended by the service":       func(l *Late) { l.Attempt.Outcome = nil },
		"a renewal of one not ended": func(l *Late) { l.Outcome, l.Attempt.Outcome = nil, nil },
	} {
		l := good
		do(&l)
		if l.Replayed() {
			t.Errorf("%s is taken for a replay", rule)
		}
	}
}

func TestB04_LateEntry_OneForEachReason(t *testing.T) {
	t.Parallel()
	e := RestoreExecution(ExecutionData{Revision: 4})
	l := Late{Attempt: AttemptData{ID: worker(1), LeaseVersion: 7, Number: 2}, HeldVersion: 7, SessionCurrent: true}
	own := e.LateEntry(l, "a")
	guess := l
	guess.HeldVersion = 1
	other := l
	other.ExecutionClosed = true
	later := l // the same reason as a guess: LEASE_SUPERSEDED
	later.LaterAttempt = true
	if m := e.LateEntry(guess, "a").Milestone; m == e.LateEntry(later, "a").Milestone {
		t.Error("another version is counted with its own")
	}
	again := guess
	again.HeldVersion = 2
	if e.LateEntry(again, "a").Milestone != e.LateEntry(guess, "a").Milestone {
		t.Error("guessed versions make the timeline grow")
	}
	if e.LateEntry(other, "a").Milestone == own.Milestone {
		t.Error("two reasons share an entry")
	}
	e.RecordLate(own)
	c := e.TakeChanges(func(EventType) bool { return true })
	if len(c.Entries) != 1 || c.Entries[0].Sequence != 5 || c.Entries[0].LeaseVersion != 7 || c.Entries[0].AttemptNumber != 2 || !c.Touched {
		t.Errorf("recorded %+v", c)
	}
}

func TestAllEventTypes_AreThoseOfTheStates(t *testing.T) {
	t.Parallel()
	all := AllEventTypes()
	if len(all) != 18 || len(slices.Compact(slices.Sorted(slices.Values(all)))) != 18 {
		t.Errorf("%d types: %v", len(all), all)
	}
	for _, want := range DefaultEventTypes() {
		if !slices.Contains(all, want) {
			t.Errorf("default type %s is not among all", want)
		}
	}
}
