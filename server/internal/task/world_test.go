package task

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// failer is what testing.T and rapid.T have in common.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world plays the store: it keeps what the domain tells it to write, and for each command
// reads anew what that command says it needs, so that a rule which leans on more is found.
type world struct {
	t        failer
	data     ExecutionData
	steps    map[uuid.UUID]StepData
	attempts map[uuid.UUID][]AttemptData
	leases   map[uuid.UUID]LeaseData
	requests map[uuid.UUID]Request
	timers   []Timer
	order    []uuid.UUID // steps as declared
	edges    []Edge

	numbers map[int64]string // of the timeline, each with what it was given to
	marks   map[string]bool
	events  []Event
	last    Changes
	now     time.Time
	drawn   uint64 // ids and lease versions
}

func newWorld(t failer, spec *ExecutionSpec) *world {
	w := &world{
		t: t, steps: map[uuid.UUID]StepData{}, attempts: map[uuid.UUID][]AttemptData{},
		leases: map[uuid.UUID]LeaseData{}, requests: map[uuid.UUID]Request{}, marks: map[string]bool{},
		now: epoch, numbers: map[int64]string{1: "enqueue"},
	}
	ids := IDs{Execution: w.id()}
	for range spec.Steps {
		ids.Steps = append(ids.Steps, w.id())
	}
	w.order = ids.Steps
	e, edges := NewExecution(spec, ids, w.now)
	w.edges = edges
	w.store(e)
	return w
}

func (w *world) id() uuid.UUID {
	w.drawn++
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[8:], w.drawn)
	return id
}

// step finds a step by its name.
func (w *world) step(name string) StepData {
	w.t.Helper()
	for _, s := range w.steps {
		if s.Name == name {
			if w.live(s.ID) != nil {
				s.State = StepRunning
			}
			return s
		}
	}
	w.t.Fatalf("no step %q", name)
	return StepData{}
}

func (w *world) state(name string) StepState { w.t.Helper(); return w.step(name).State }

func (w *world) live(step uuid.UUID) *AttemptData {
	list := w.attempts[step]
	if len(list) == 0 || list[len(list)-1].State != AttemptLeased {
		return nil
	}
	a := list[len(list)-1]
	return &a
}

func (w *world) load(read []uuid.UUID) *Execution {
	e := RestoreExecution(w.data)
	w.add(e, read)
	return e
}

func (w *world) add(e *Execution, read []uuid.UUID) {
	for _, id := range read {
		var live *Attempt
		if a := w.live(id); a != nil {
			live = RestoreAttempt(*a)
		}
		e.AddStep(RestoreStep(w.steps[id], live))
	}
}

func (w *world) open() []uuid.UUID {
	var list []uuid.UUID
	for _, id := range w.order {
		if !w.steps[id].State.Terminal() {
			list = append(list, id)
		}
	}
	return list
}

// change runs one command as the store would: read, change, read what the graph needs,
// settle, write. What is refused leaves nothing behind.
func (w *world) change(read []uuid.UUID, command func(*Execution) error) error {
	w.t.Helper()
	e := w.load(read)
	if err := command(e); err != nil {
		if te := (*TransitionError)(nil); !errors.As(err, &te) {
			w.t.Fatalf("refused by %T, want a *TransitionError: %v", err, err)
		}
		return err
	}
	f := e.Frontier()
	var edges []Edge
	for _, edge := range w.edges {
		if slices.Contains(f.ChildrenOf, edge.Parent) {
			edges = append(edges, edge)
			w.add(e, []uuid.UUID{edge.Child})
		}
	}
	descendants := w.descendants(f.DescendantsOf)
	w.add(e, descendants)
	if f.AllOpen {
		w.add(e, w.open())
	}
	if err := e.Settle(w.now, edges, descendants); err != nil {
		w.t.Fatalf("settle: %v", err)
	}
	if !e.Frontier().Empty() {
		w.t.Fatalf("settle left %+v to be read", e.Frontier())
	}
	w.store(e)
	return nil
}

func (w *world) descendants(of []uuid.UUID) []uuid.UUID {
	var found []uuid.UUID
	seen := map[uuid.UUID]bool{}
	for next := slices.Clone(of); len(next) > 0; next = next[1:] {
		for _, edge := range w.edges {
			if edge.Parent == next[0] && !seen[edge.Child] {
				seen[edge.Child] = true
				found, next = append(found, edge.Child), append(next, edge.Child)
			}
		}
	}
	return found
}

// store writes what a command changed.
func (w *world) store(e *Execution) {
	w.t.Helper()
	c := e.TakeChanges(func(EventType) bool { return true })
	w.last, w.data = c, e.Data()
	for _, s := range c.Steps {
		w.steps[s.d.ID] = s.Data()
	}
	for _, a := range c.Ended {
		list := w.attempts[a.d.StepID]
		list[len(list)-1] = a.Data()
		delete(w.leases, a.d.StepID)
		w.number(a.d.EndEntry, "end of attempt")
	}
	for _, id := range c.Dropped {
		delete(w.requests, id)
	}
	for _, r := range c.Requests {
		if _, there := w.requests[r.StepID]; there {
			w.t.Fatalf("step %q has two scheduling requests", w.steps[r.StepID].Name)
		}
		w.requests[r.StepID] = r
	}
	if c.Stopped {
		for id, l := range w.leases {
			l.CapAt = earliest(l.CapAt, *w.data.CancelDeadline)
			l.ExpiresAt = earliest(l.ExpiresAt, l.CapAt)
			w.leases[id] = l
		}
	}
	w.record(c)
}

func (w *world) record(c Changes) {
	w.t.Helper()
	w.timers = append(w.timers, c.Timers...)
	w.events = append(w.events, c.Events...)
	for _, en := range c.Entries {
		if w.marks[en.Milestone] {
			w.t.Fatalf("milestone %q is there twice", en.Milestone)
		}
		w.marks[en.Milestone] = true
		if strings.HasSuffix(en.Milestone, "/execution/ended") && w.numbers[en.Sequence] == "end" {
			continue // it is written down now, under the number that it had
		}
		w.number(en.Sequence, en.Milestone)
	}
	if c.Closed {
		w.number(w.data.EndEntry, "end")
	}
}

func (w *world) number(n int64, what string) {
	w.t.Helper()
	if was, given := w.numbers[n]; given {
		w.t.Fatalf("timeline number %d was given to %s and to %s", n, was, what)
	}
	w.numbers[n] = what
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// lease grants the next attempt of a step, as a dispatcher does with its request.
func (w *world) lease(id uuid.UUID) error {
	w.t.Helper()
	r := w.requests[id]
	version := int64(w.drawn) + 1
	g := Grant{AttemptID: w.id(), Number: r.Number, WorkerID: w.id(), LeaseVersion: version, Duration: 30 * time.Second}
	return w.change([]uuid.UUID{id}, func(e *Execution) error {
		a, l, err := e.Lease(w.now, id, g)
		if err != nil {
			return err
		}
		w.attempts[id] = append(w.attempts[id], a.Data())
		w.number(a.d.LeaseEntry, "lease")
		w.leases[id] = l
		delete(w.requests, id)
		return nil
	})
}

func (w *world) report(id uuid.UUID, o *Outcome) error {
	w.t.Helper()
	return w.change([]uuid.UUID{id}, func(e *Execution) error { return e.Report(w.now, id, o, 0.5) })
}

// expire ends a lease as the sweeper does, at the instant when it is over.
func (w *world) expire(id uuid.UUID, sessionCurrent bool) error {
	w.t.Helper()
	l := w.leases[id]
	if w.now.Before(l.ExpiresAt) {
		w.now = l.ExpiresAt
	}
	return w.change([]uuid.UUID{id}, func(e *Execution) error {
		return e.ExpireLease(w.now, LeaseEnd{StepID: id, ExpiresAt: l.ExpiresAt, SessionCurrent: sessionCurrent}, 0.5)
	})
}

func (w *world) fire(kind TimerKind, id uuid.UUID) error {
	w.t.Helper()
	due := w.requests[id].Due
	return w.change([]uuid.UUID{id}, func(e *Execution) error { return e.FireStepTimer(w.now, kind, id, due) })
}

func (w *world) cancel() error {
	w.t.Helper()
	return w.change(w.open(), func(e *Execution) error { return e.Cancel(w.now, "why not") })
}

func (w *world) terminate() error {
	w.t.Helper()
	return w.change(w.open(), func(e *Execution) error { return e.Terminate(w.now, "enough") })
}

func (w *world) exceedDeadline() error {
	w.t.Helper()
	return w.change(w.open(), func(e *Execution) error { return e.ExceedDeadline(w.now) })
}

func (w *world) reopen(names ...string) error {
	w.t.Helper()
	var named []uuid.UUID
	for _, n := range names {
		named = append(named, w.step(n).ID)
	}
	return w.change(w.order, func(e *Execution) error { return e.ReopenSteps(w.now, Retry{Reason: "again"}, named, w.edges) })
}

// Shorthands by name, which must not be refused.

func (w *world) leaseStep(names ...string) {
	w.t.Helper()
	for _, n := range names {
		id := w.step(n).ID
		if due := w.requests[id].Due; w.now.Before(due) {
			w.now = due
		}
		w.must(w.lease(id))
	}
}

func (w *world) succeed(names ...string) {
	w.t.Helper()
	for _, n := range names {
		w.must(w.report(w.step(n).ID, &Outcome{State: AttemptSucceeded, Output: &Payload{Body: []byte(n)}}))
	}
}

func (w *world) fail(names ...string) {
	w.t.Helper()
	for _, n := range names {
		w.must(w.report(w.step(n).ID, failed("BOOM", false)))
	}
}

func (w *world) failForGood(names ...string) {
	w.t.Helper()
	for _, n := range names {
		w.must(w.report(w.step(n).ID, failed("BOOM", true)))
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	w.check()
}

func failed(kind string, forGood bool) *Outcome {
	return &Outcome{State: AttemptFailed, Failure: &Failure{Type: kind, Message: "it broke", NonRetryable: forGood}}
}

// graph makes a specification from lines like "d: b c": step d after b and c.
func graph(steps map[string][]string, order ...string) *ExecutionSpec {
	spec := &ExecutionSpec{Namespace: "default", Name: "test", CancelGrace: DefaultCancelGrace}
	for _, name := range order {
		spec.Steps = append(spec.Steps, StepSpec{
			Name: name, Capability: "c", DependsOn: steps[name], Retry: DefaultRetryPolicy(), StartToClose: DefaultStartToClose,
		})
	}
	return spec
}

func single() *ExecutionSpec { return graph(nil, "a") }

func diamond() *ExecutionSpec {
	return graph(map[string][]string{"b": {"a"}, "c": {"a"}, "d": {"b", "c"}}, "d", "c", "b", "a")
}
