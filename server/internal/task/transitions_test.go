package task

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "write the golden files anew")

// row is a state in which an entity may stand; cell is what an event makes of it.
type row struct {
	name  string
	cells []cell
}

type cell struct{ event, from, to, tells string }

func (c cell) String() string {
	switch {
	case c.to == c.from && c.tells == "":
		return fmt.Sprintf("  %-52s -", c.event)
	case c.to == c.from:
		return strings.TrimRight(fmt.Sprintf("  %-52s stays       %s", c.event, c.tells), " ")
	default:
		return strings.TrimRight(fmt.Sprintf("  %-52s → %-9s %s", c.event, c.to, c.tells), " ")
	}
}

// print writes what happens line by line, and then together what is refused.
func (r row) print(b *strings.Builder) {
	var refused []string
	for _, c := range r.cells {
		if c.to == "" {
			refused = append(refused, c.event)
			continue
		}
		fmt.Fprintln(b, c)
	}
	line := "  refused:"
	for i, event := range refused {
		if i < len(refused)-1 {
			event += ";"
		}
		if len(line)+len(event) > 100 {
			fmt.Fprintln(b, line)
			line = "    "
		}
		line += " " + event
	}
	if len(refused) > 0 {
		fmt.Fprintln(b, line)
	}
}

const tableHead = `The complete table of state × event, printed by TestTransitions_Golden (-update writes it).

  → STATE   the event leads there; beside it, for executions, the events that are published
  stays     the state stays, though something is told
  -         nothing changes
  refused:  a *TransitionError, for each of these

`

func TestTransitions_Golden(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(tableHead)
	for _, table := range []struct {
		title string
		rows  []row
	}{{"EXECUTION", executionTable(t)}, {"STEP", stepTable()}, {"ATTEMPT", attemptTable()}} {
		fmt.Fprintf(&b, "== %s ==\n", table.title)
		for _, r := range table.rows {
			fmt.Fprintf(&b, "\n%s\n", r.name)
			r.print(&b)
		}
		b.WriteString("\n")
	}
	const golden = "testdata/transitions.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the table has changed; run with -update and read the difference:\n%s", firstDifference(got, string(want)))
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

// The arrows of the design, and no others. CREATED and QUEUED pass through CANCELING within
// one call, for nothing can be live in them: only their arrow to CANCELED is to be seen.
func TestTransitions_AreTheArrowsOfTheDesign(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		entity string
		rows   []row
		arrows string
	}{
		{"execution", executionTable(t), `
			CREATED → QUEUED      CREATED → RUNNING      QUEUED → RUNNING
			RUNNING → SUCCEEDED   RUNNING → FAILED
			RUNNING → CANCELING   CANCELING → CANCELED
			CREATED → CANCELED    QUEUED → CANCELED      RUNNING → CANCELED
			CREATED → FAILED      QUEUED → FAILED
			FAILED → QUEUED       CANCELED → QUEUED`},
		{"step", stepTable(), `
			BLOCKED → READY       READY → RUNNING
			RUNNING → SUCCEEDED   RUNNING → FAILED       RUNNING → CANCELED
			RUNNING → READY       READY → FAILED
			BLOCKED → SKIPPED
			BLOCKED → CANCELED    READY → CANCELED
			FAILED → BLOCKED      SKIPPED → BLOCKED      CANCELED → BLOCKED
			FAILED → READY        SKIPPED → READY        CANCELED → READY`},
		{"attempt", attemptTable(), `
			LEASED → SUCCEEDED    LEASED → FAILED        LEASED → TIMED_OUT
			LEASED → LOST         LEASED → RELEASED      LEASED → CANCELED`},
	} {
		want := arrowsIn(tt.arrows)
		got := map[string]bool{}
		for _, r := range tt.rows {
			for _, c := range r.cells {
				if c.to != "" && c.to != c.from {
					got[c.from+" → "+c.to] = true
				}
			}
		}
		for a := range got {
			if !want[a] {
				t.Errorf("%s: %s is not an arrow of the design", tt.entity, a)
			}
		}
		for a := range want {
			if !got[a] {
				t.Errorf("%s: nothing leads along %s", tt.entity, a)
			}
		}
	}
}

func arrowsIn(text string) map[string]bool {
	arrows := map[string]bool{}
	words := strings.Fields(text)
	for i := 0; i+2 < len(words); i += 3 {
		arrows[words[i]+" → "+words[i+2]] = true
	}
	return arrows
}

// ---- the execution, with its steps, as the store sees it

type situation struct {
	name  string
	reach func(*world)
}

type happening struct {
	name string
	do   func(*world) error
}

func executionTable(t *testing.T) []row {
	t.Helper()
	var rows []row
	for _, s := range executionSituations() {
		r := row{name: s.name}
		for _, h := range executionEvents() {
			w := newWorld(t, tableSpec(strings.HasPrefix(s.name, "CREATED"), strings.Contains(s.name, "fail_fast")))
			s.reach(w)
			w.check()
			seen := len(w.events)
			c := cell{event: h.name, from: string(w.data.State)}
			if err := h.do(w); err == nil {
				w.check()
				c.to, c.tells = string(w.data.State), tells(w.events[seen:])
			}
			r.cells = append(r.cells, c)
		}
		rows = append(rows, r)
	}
	return rows
}

// tableSpec is one step "a" with every timeout, and beside it under fail_fast a second.
func tableSpec(later, failFast bool) *ExecutionSpec {
	spec := single()
	if failFast {
		spec = graph(nil, "a", "bad")
	}
	spec.FailFast, spec.Timeout = failFast, 24*time.Hour
	if later {
		spec.StartDelay = time.Minute
	}
	for i := range spec.Steps {
		spec.Steps[i].Retry.MaximumAttempts = 2
		spec.Steps[i].ScheduleToStart, spec.Steps[i].ScheduleToClose = time.Minute, 12*time.Hour
	}
	return spec
}

func executionSituations() []situation {
	return []situation{
		{"CREATED (its start time has not come)", func(*world) {}},
		{"QUEUED", func(*world) {}},
		{"RUNNING (an attempt is live)", func(w *world) { w.leaseStep("a") }},
		{"RUNNING (the last attempt is live)", func(w *world) { w.leaseStep("a"); w.fail("a"); w.leaseStep("a") }},
		{"RUNNING (waits for a retry)", func(w *world) { w.leaseStep("a"); w.fail("a") }},
		{"RUNNING (stops under fail_fast, an attempt is live)", func(w *world) { w.leaseStep("a", "bad"); w.failForGood("bad") }},
		{"CANCELING", func(w *world) { w.leaseStep("a"); w.must(w.cancel()) }},
		{"SUCCEEDED", func(w *world) { w.leaseStep("a"); w.succeed("a") }},
		{"FAILED", func(w *world) { w.leaseStep("a"); w.failForGood("a") }},
		{"CANCELED", func(w *world) { w.must(w.cancel()) }},
	}
}

func executionEvents() []happening {
	onA := func(name string, do func(*world, uuid.UUID) error) happening {
		return happening{name, func(w *world) error { return do(w, w.step("a").ID) }}
	}
	reports := func(o *Outcome) func(*world, uuid.UUID) error {
		return func(w *world, a uuid.UUID) error { return w.report(a, o) }
	}
	fires := func(kind TimerKind, after time.Duration) func(*world, uuid.UUID) error {
		return func(w *world, a uuid.UUID) error { w.now = w.now.Add(after); return w.fire(kind, a) }
	}
	return []happening{
		{"its start time comes", func(w *world) error {
			w.now = w.now.Add(time.Minute)
			return w.change(nil, func(e *Execution) error { return e.BecomeDue(w.now) })
		}},
		onA("an attempt is leased", func(w *world, a uuid.UUID) error { w.now = w.now.Add(time.Minute); return w.lease(a) }),
		onA("reported succeeded", reports(&Outcome{State: AttemptSucceeded})),
		onA("reported failed", reports(failed("BOOM", false))),
		onA("reported failed, non-retryable", reports(failed("BOOM", true))),
		onA("reported released", reports(&Outcome{State: AttemptReleased})),
		onA("reported canceled", reports(&Outcome{State: AttemptCanceled})),
		onA("reported what only the service decides", reports(&Outcome{State: AttemptLost})),
		onA("leased after the deadline", func(w *world, a uuid.UUID) error { w.now = w.now.Add(25 * time.Hour); return w.lease(a) }),
		onA("lease expires", expiresAt(func(w *world, _ uuid.UUID) time.Time { return w.now })),
		onA("lease expires at the end of cancel_grace", expiresAt(func(w *world, _ uuid.UUID) time.Time {
			if w.data.CancelDeadline == nil {
				return w.now.Add(w.data.CancelGrace)
			}
			return *w.data.CancelDeadline
		})),
		onA("lease expires at start_to_close_timeout", expiresAt(func(w *world, a uuid.UUID) time.Time { return w.live(a).StartToCloseAt })),
		onA("lease expires at schedule_to_close_timeout", expiresAt(func(w *world, a uuid.UUID) time.Time { return w.steps[a].OpenedAt.Add(12 * time.Hour) })),
		onA("lease expires at the execution's deadline", expiresAt(func(w *world, _ uuid.UUID) time.Time { return *w.data.Deadline })),
		onA("lease is revoked", func(w *world, a uuid.UUID) error {
			return w.change([]uuid.UUID{a}, func(e *Execution) error { return e.RevokeLease(w.now, a, "gone", 0) })
		}),
		onA("lease is returned undelivered", func(w *world, a uuid.UUID) error {
			return w.change([]uuid.UUID{a}, func(e *Execution) error { return e.ReturnLease(w.now, a, 0) })
		}),
		onA("schedule_to_start timer, too early", fires(TimerScheduleToStart, 0)),
		onA("schedule_to_start_timeout comes", fires(TimerScheduleToStart, 10*time.Minute)),
		onA("schedule_to_close timer, too early", fires(TimerScheduleToClose, 0)),
		onA("schedule_to_close_timeout comes", fires(TimerScheduleToClose, 13*time.Hour)),
		{"deadline timer, too early", func(w *world) error { return w.exceedDeadline() }},
		{"the deadline comes", func(w *world) error { w.now = w.now.Add(25 * time.Hour); return w.exceedDeadline() }},
		{"cancel", func(w *world) error { return w.cancel() }},
		{"terminate", func(w *world) error { return w.terminate() }},
		{"reopen", func(w *world) error { return w.reopen() }},
	}
}

// expiresAt lets a lease be over at a deadline, as if its worker had renewed until then.
func expiresAt(at func(*world, uuid.UUID) time.Time) func(*world, uuid.UUID) error {
	return func(w *world, a uuid.UUID) error {
		if l, live := w.leases[a]; live {
			l.ExpiresAt = at(w, a)
			w.leases[a] = l
		}
		return w.expire(a, true)
	}
}

func tells(events []Event) string {
	var names []string
	for _, ev := range events {
		names = append(names, strings.Replace(strings.TrimPrefix(string(ev.Type), "leasehold."), ".v1.", " ", 1))
	}
	return strings.Join(names, ", ")
}

func TestTransitions_TableHasARowForEveryState(t *testing.T) {
	t.Parallel()
	var names []string
	for _, r := range executionTable(t) {
		names = append(names, strings.Fields(r.name)[0])
	}
	for _, state := range []ExecutionState{
		ExecutionCreated, ExecutionQueued, ExecutionRunning, ExecutionCanceling, ExecutionSucceeded, ExecutionFailed, ExecutionCanceled,
	} {
		if !slices.Contains(names, string(state)) {
			t.Errorf("no row for %s", state)
		}
	}
}
