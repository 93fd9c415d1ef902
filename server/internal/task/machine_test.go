package task

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// TestMachine plays random graphs with random outcomes, cancels, deadlines, timers and new
// rounds, looks after every command at what must hold always, and lets each run to its end.
func TestMachine_WhatMustHoldAlwaysHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{world: newWorld(t, randomSpec(t)), rt: t}
		m.check()
		t.Repeat(map[string]func(*rapid.T){
			"lease":     m.leaseAny,
			"report":    m.reportAny,
			"expire":    m.expireAny,
			"take away": m.takeAway,
			"time":      m.passTime,
			"timer":     m.fireAny,
			"start":     m.becomeDue,
			"stop":      m.stop,
			"deadline":  m.meetDeadline,
			"reopen":    m.reopenAny,
			"late":      m.late,
			"":          func(t *rapid.T) { m.check() },
		})
		m.runToItsEnd()
	})
}

func randomSpec(t *rapid.T) *ExecutionSpec {
	spec := &ExecutionSpec{Name: "random", CancelGrace: time.Minute, FailFast: rapid.Bool().Draw(t, "fail_fast")}
	for _, n := range randomDAG(t, 8) {
		s := StepSpec{Name: n.Name, DependsOn: n.DependsOn, Retry: DefaultRetryPolicy(), StartToClose: time.Hour}
		s.Retry.MaximumAttempts = rapid.SampledFrom([]int{1, 2, 3, Unlimited}).Draw(t, "attempts")
		s.StartDelay = seconds(t, "start_delay", 0, 0, 5)
		s.ScheduleToStart = seconds(t, "schedule_to_start", 0, 0, 30)
		s.ScheduleToClose = seconds(t, "schedule_to_close", 0, 0, 90)
		spec.Steps = append(spec.Steps, s)
	}
	spec.Timeout = seconds(t, "timeout", 0, 60, 300)
	spec.StartDelay = seconds(t, "delay", 0, 20)
	return spec
}

func seconds(t *rapid.T, what string, choices ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(choices).Draw(t, what)) * time.Second
}

type machine struct {
	*world
	rt *rapid.T
}

// one draws a step of a map, in an order that does not depend on chance of its own.
func one[V any](m *machine, t *rapid.T, from map[uuid.UUID]V) uuid.UUID {
	var ids []uuid.UUID
	for _, id := range m.order {
		if _, there := from[id]; there {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		t.Skip("none is there")
	}
	return rapid.SampledFrom(ids).Draw(t, "step")
}

// final keeps what may not change any more, to be compared after a command.
func (m *machine) final() map[string]string {
	kept := map[string]string{}
	for id, s := range m.steps {
		if s.State.Terminal() {
			kept[fmt.Sprintf("round %d step %s", m.data.Round, s.Name)] = string(s.State)
		}
		for _, a := range m.attempts[id] {
			if a.State != AttemptLeased {
				kept[a.ID.String()] = string(a.State)
			}
		}
	}
	if m.data.State.Terminal() {
		kept[fmt.Sprintf("round %d", m.data.Round)] = string(m.data.State)
	}
	return kept
}

// command runs one, which may be refused, and checks that the end stayed final.
func (m *machine) command(run func() error) error {
	m.rt.Helper()
	before, revision, round, stopping := m.final(), m.data.Revision, m.data.Round, m.data.Stopping
	m.last = Changes{}
	err := run()
	m.check()
	after := m.final()
	for what, state := range before {
		if got := after[what]; got != state && m.data.Round == round {
			m.t.Fatalf("%s was %s and is %q", what, state, got)
		}
	}
	switch {
	case err != nil && m.data.Revision != revision:
		m.t.Fatalf("refused (%v), and yet something changed", err)
	case m.last.Touched && (m.last.Base != revision || m.data.Revision == revision):
		m.t.Fatalf("a change left no entry: revision %d after %d, decided on %d", m.data.Revision, revision, m.last.Base)
	case stopping && m.data.Round == round && err == nil && len(m.last.Leased)+len(m.last.Requests) > 0:
		m.t.Fatalf("a stopped execution started something: %+v", m.last)
	}
	return err
}

func (m *machine) leaseAny(t *rapid.T) {
	id := one(m, t, m.requests)
	if due := m.requests[id].Due; m.now.Before(due) {
		m.now = due
	}
	for _, edge := range m.edges {
		if p := m.steps[edge.Parent]; edge.Child == id && p.State != StepSucceeded {
			m.t.Fatalf("step %q may start, its parent %q is %s", m.steps[id].Name, p.Name, p.State)
		}
	}
	step := m.steps[id]
	over := reached(m.data.Deadline, m.now) || (step.ScheduleToClose > 0 && !m.now.Before(step.OpenedAt.Add(step.ScheduleToClose)))
	if err := m.command(func() error { return m.lease(id) }); (err != nil) != over {
		m.t.Fatalf("lease of %q, a deadline over: %v, got %v", step.Name, over, err)
	}
	if l, ok := m.leases[id]; ok && (l.ExpiresAt.After(l.CapAt) || !l.ExpiresAt.After(m.now)) {
		m.t.Fatalf("lease at %v until %v, capped at %v", m.now, l.ExpiresAt, l.CapAt)
	}
}

func (m *machine) reportAny(t *rapid.T) {
	id := one(m, t, m.leases)
	o := rapid.SampledFrom([]*Outcome{
		{State: AttemptSucceeded, Output: &Payload{Body: []byte("done")}}, {State: AttemptSucceeded},
		failed("X", false), failed("X", false), failed("X", true),
		{State: AttemptReleased}, {State: AttemptReleased, NotBefore: 7 * time.Second}, {State: AttemptCanceled},
	}).Draw(t, "outcome")
	asked := m.data.Stopping
	if err := m.command(func() error { return m.report(id, o) }); (err != nil) != (o.State == AttemptCanceled && !asked) {
		m.t.Fatalf("report %s, asked to stop: %v, got %v", o.State, asked, err)
	}
}

func (m *machine) expireAny(t *rapid.T) {
	id := one(m, t, m.leases)
	current := rapid.Bool().Draw(t, "session is current")
	m.wanted(m.command(func() error { return m.expire(id, current) }))
}

func (m *machine) takeAway(t *rapid.T) {
	id := one(m, t, m.leases)
	revoked := rapid.Bool().Draw(t, "revoked")
	m.wanted(m.command(func() error {
		return m.change([]uuid.UUID{id}, func(e *Execution) error {
			if revoked {
				return e.RevokeLease(m.now, id, "", 0.5)
			}
			return e.ReturnLease(m.now, id, 0.5)
		})
	}))
}

func (m *machine) wanted(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("refused: %v", err)
	}
}

func (m *machine) passTime(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
}

// fireAny fires any step timer that was ever set: most no longer apply.
func (m *machine) fireAny(t *rapid.T) {
	var at []Timer
	for _, timer := range m.timers {
		if timer.StepID != nil {
			at = append(at, timer)
		}
	}
	if len(at) == 0 {
		t.Skip("no timers")
	}
	timer := rapid.SampledFrom(at).Draw(t, "timer")
	if m.now.Before(timer.At) {
		m.now = timer.At
	}
	m.wanted(m.command(func() error { return m.fire(timer.Kind, *timer.StepID) }))
}

func (m *machine) becomeDue(*rapid.T) {
	early := m.data.State != ExecutionCreated || m.now.Before(m.data.DueAt)
	err := m.command(func() error { return m.change(nil, func(e *Execution) error { return e.BecomeDue(m.now) }) })
	if (err != nil) != early {
		m.t.Fatalf("become due: %v", err)
	}
}

// stop cancels or terminates, seldom enough that something happens before.
func (m *machine) stop(t *rapid.T) {
	was := m.data.State
	switch rapid.IntRange(0, 11).Draw(t, "how") {
	case 0:
		err := m.command(m.terminate)
		if (err != nil) != was.Terminal() || !m.data.State.Terminal() {
			m.t.Fatalf("terminate %s: %s, %v", was, m.data.State, err)
		}
	case 1, 2:
		err := m.command(m.cancel)
		if (err != nil) != (was == ExecutionSucceeded || was == ExecutionFailed) {
			m.t.Fatalf("cancel %s: %v", was, err)
		}
	}
}

func (m *machine) meetDeadline(t *rapid.T) {
	if m.data.Deadline == nil || rapid.IntRange(0, 5).Draw(t, "now") > 0 {
		return
	}
	if m.now.Before(*m.data.Deadline) {
		m.now = *m.data.Deadline
	}
	was := m.data.State
	err := m.command(m.exceedDeadline)
	want := map[bool]ExecutionState{false: ExecutionFailed, true: ExecutionCanceled}[was == ExecutionCanceling]
	if was.Terminal() {
		want = was
	}
	if (err != nil) != was.Terminal() || m.data.State != want {
		m.t.Fatalf("deadline of %s: %s, want %s (%v)", was, m.data.State, want, err)
	}
}

func (m *machine) reopenAny(t *rapid.T) {
	var named []string
	if rapid.Bool().Draw(t, "by name") {
		id := rapid.SampledFrom(m.order).Draw(t, "named")
		named = append(named, m.steps[id].Name)
	}
	was := m.data
	err := m.command(func() error { return m.reopen(named...) })
	open := was.State == ExecutionFailed || was.State == ExecutionCanceled
	switch {
	case err == nil && (!open || m.data.Round != was.Round+1 || m.data.State != ExecutionQueued):
		m.t.Fatalf("reopened %s: %s in round %d", was.State, m.data.State, m.data.Round)
	case err != nil && open && len(named) == 0 && was.UnsuccessfulSteps > 0:
		m.t.Fatalf("%s with %d unsuccessful steps was not reopened: %v", was.State, was.UnsuccessfulSteps, err)
	}
}

// late is a refused report: it takes a number, once.
func (m *machine) late(t *rapid.T) {
	id := one(m, t, m.attempts)
	a := m.attempts[id][0]
	if a.State == AttemptLeased {
		t.Skip("it is live")
	}
	e := m.load(nil)
	en := e.LateEntry(Late{Attempt: a, HeldVersion: a.LeaseVersion, SessionCurrent: true, LaterAttempt: true}, m.steps[id].Name)
	if m.marks[en.Milestone] {
		t.Skip("it is only counted")
	}
	m.wanted(m.command(func() error {
		return m.change(nil, func(e *Execution) error { e.RecordLate(en); return nil })
	}))
}

// runToItsEnd plays good workers: whatever happened before, the execution ends, and every
// step has then ended.
func (m *machine) runToItsEnd() {
	for range 4 * len(m.order) {
		for _, id := range m.order {
			if r, there := m.requests[id]; there {
				if m.now.Before(r.Due) {
					m.now = r.Due
				}
				if err := m.command(func() error { return m.lease(id) }); err != nil { // a deadline has come: its timer ends it
					m.wanted(m.command(func() error { return m.fire(TimerScheduleToClose, id) }))
				}
			}
			if _, there := m.leases[id]; there {
				m.wanted(m.command(func() error { return m.report(id, &Outcome{State: AttemptSucceeded}) }))
			}
		}
		if reached(m.data.Deadline, m.now) && !m.data.State.Terminal() {
			m.wanted(m.command(m.exceedDeadline))
		}
		if m.data.State.Terminal() {
			return
		}
	}
	m.t.Fatalf("execution is still %s with %d open steps: it is stuck", m.data.State, m.data.OpenSteps)
}
