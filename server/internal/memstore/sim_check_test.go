package memstore_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// What is compared after each step.

func (w *world) check() {
	w.rt.Helper()
	for _, e := range w.m.executions {
		if e.ended() && slices.ContainsFunc(w.known, func(r scheduler.Revision) bool { return r.ID == e.id }) {
			continue
		}
		view := w.compare(e)
		w.follow(e)
		if e.ended() {
			w.known = append(w.known, scheduler.Revision{ID: e.id, Revision: view.Revision})
		}
	}
	moved, err := w.s.Moved(w.ctx(), w.known)
	if err != nil {
		w.fatalf("moved: %v", err)
	}
	for _, r := range moved { // a late report is told, or a round was opened
		w.known = slices.DeleteFunc(w.known, func(k scheduler.Revision) bool { return k.ID == r.ID })
		for _, e := range w.m.executions {
			if e.id == r.ID {
				w.compare(e)
				w.follow(e)
			}
		}
	}
}

// compare holds an execution in the store against the model.
func (w *world) compare(e *mExecution) *scheduler.ExecutionView {
	w.rt.Helper()
	view, _, err := w.s.GetExecution(w.ctx(), scheduler.ExecutionQuery{ID: e.id, AfterOrdinal: -1, StepLimit: len(e.steps)})
	if err != nil {
		w.fatalf("execution %s was accepted: %v", e.id, err)
	}
	live := 0
	for i, s := range e.steps {
		w.compareStep(s, &view.Steps[i])
		if s.live != nil {
			live++
		}
	}
	if string(view.State) != e.state || view.Round != e.round || view.OpenSteps != e.open() || view.LiveAttempts != live ||
		view.Stopping != e.stopping {
		w.fatalf("execution is %s in round %d with %d open steps, %d live attempts, stopping %v; want %s, %d, %d, %d, %v", view.State,
			view.Round, view.OpenSteps, view.LiveAttempts, view.Stopping, e.state, e.round, e.open(), live, e.stopping)
	}
	if !same(view.Deadline, e.deadline) || e.state == "CANCELING" && !same(view.CancelDeadline, e.stopAt) {
		w.fatalf("execution has the deadline %v and the grace %v, want %v and %v", view.Deadline, view.CancelDeadline, e.deadline, e.stopAt)
	}
	return view
}

func same(got *time.Time, want time.Time) bool {
	return got == nil && want.IsZero() || got != nil && got.Equal(want)
}

func (w *world) compareStep(s *mStep, view *scheduler.StepView) {
	w.rt.Helper()
	var due time.Time
	if s.wanted {
		due = s.due
	}
	if string(view.State) != s.state || view.Counted != s.counted || view.AttemptCount != s.number || !same(view.NextDue, due) {
		w.fatalf("step %s is %s, counted %d of %d attempts, due %v; want %s, %d of %d, %v", s.name, view.State, view.Counted,
			view.AttemptCount, view.NextDue, s.state, s.counted, s.number, due)
	}
	if len(view.Attempts) != s.number {
		w.fatalf("step %s has %d attempts, want %d", s.name, len(view.Attempts), s.number)
	}
	for i, a := range view.Attempts {
		want := w.m.attempts[a.ID]
		switch {
		case want == nil || want.step != s || a.Number != i+1 || want.number != a.Number:
			w.fatalf("step %s has attempt %s as number %d", s.name, a.ID, a.Number)
		case string(a.State) != want.state || want.reason != "" && a.Reason != want.reason:
			w.fatalf("attempt %d of %s is %s, %q; want %s, %q", a.Number, s.name, a.State, a.Reason, want.state, want.reason)
		case want.version == 0:
			want.version = a.LeaseVersion // it ended before anybody looked
		case a.LeaseVersion != want.version || a.WorkerID != want.worker.id:
			w.fatalf("attempt %d of %s has version %d and worker %s, want %d and %s", a.Number, s.name, a.LeaseVersion, a.WorkerID, want.version, want.worker.id)
		}
		w.compareLease(s, &a, want, i == len(view.Attempts)-1)
		if i > 0 && a.LeaseVersion <= view.Attempts[i-1].LeaseVersion {
			w.fatalf("attempt %d of %s has version %d after %d", a.Number, s.name, a.LeaseVersion, view.Attempts[i-1].LeaseVersion)
		}
	}
}

// compareLease: the last attempt of a step may be live, and has a lease just then.
func (w *world) compareLease(s *mStep, a *scheduler.AttemptView, want *mAttempt, last bool) {
	w.rt.Helper()
	live := s.live == want
	if live != (a.State == task.AttemptLeased) || live != (a.ExpiresAt != nil) || live && !last {
		w.fatalf("attempt %d of %s is %s, its lease ends %v; want live: %v", a.Number, s.name, a.State, a.ExpiresAt, live)
	}
	if live && !a.ExpiresAt.Equal(want.expires) {
		w.fatalf("the lease of attempt %d of %s ends %s, want %s", a.Number, s.name, a.ExpiresAt, want.expires)
	}
}

// fold is what somebody knows of an execution who hears its events only.
type fold struct {
	sequence int64
	state    string
	round    int
	version  int64
	steps    map[string]*foldStep
}

type foldStep struct {
	state   string // "": it waits
	number  int
	attempt string // how the last one stands
	next    bool   // a next one was told

	reopened bool // perhaps: the event does not tell which steps are opened again
}

func newFold() *fold { return &fold{steps: map[string]*foldStep{}} }

// follow hears the events of an execution, each of which must be possible after those before it;
// what they tell must be what the model knows.
func (w *world) follow(e *mExecution) {
	w.rt.Helper()
	f := w.folds[e.id]
	for _, event := range w.s.EventsAfter(e.id, f.sequence) {
		f.sequence++
		w.digest.Write(event.ID[:])
		w.digest.Write(event.Data)
		var d task.Event
		if err := json.Unmarshal(event.Data, &d); err != nil || event.Sequence != f.sequence || d.ExecutionID != e.id {
			w.fatalf("event %d of %s: %v, %s", event.Sequence, e.id, err, event.Data)
		}
		d.Type = task.EventType(event.Type)
		if !f.hear(d) {
			w.fatalf("event %d of %s, %s of step %q, is not possible after those before it: %+v", event.Sequence, e.id, d.Type, d.StepName, *f)
		}
	}
	state := e.state
	if state == "CREATED" || state == "QUEUED" {
		state = "ENQUEUED"
	}
	if state == "CANCELING" {
		state = f.state // asking is no event
	}
	if f.state != state || f.round != e.round {
		w.fatalf("execution %s is %s in round %d, its events tell %s in %d", e.id, e.state, e.round, f.state, f.round)
	}
	for _, s := range e.steps {
		w.followStep(s, f.step(s.name))
	}
}

func (w *world) followStep(s *mStep, f *foldStep) {
	w.rt.Helper()
	state := ""
	if s.ended() {
		state = s.state
	}
	if f.reopened && !s.ended() {
		f.state = ""
	}
	if f.reopened && s.state == "READY" {
		f.next = true // its round tells so
	}
	f.reopened = false
	attempt := ""
	if s.number > 0 {
		for _, a := range w.m.attempts {
			if a.step == s && a.number == s.number {
				attempt = a.state
			}
		}
	}
	if s.state == "READY" && s.number > 0 && !f.next {
		w.fatalf("step %s waits for its next attempt, and no event tells of it", s.name)
	}
	if f.state != state || f.number != s.number || f.attempt != attempt {
		w.fatalf("step %s is %s with attempt %d %s, its events tell %+v", s.name, s.state, s.number, attempt, *f)
	}
}

func (f *fold) step(name string) *foldStep {
	if f.steps[name] == nil {
		f.steps[name] = &foldStep{}
	}
	return f.steps[name]
}

// hear takes an event in; it is false for one that cannot be.
func (f *fold) hear(d task.Event) bool {
	open := f.state == "ENQUEUED" || f.state == "RUNNING"
	s := f.step(d.StepName)
	live := s.attempt == "LEASED"
	switch d.Type {
	case task.EventExecutionEnqueued:
		possible := f.sequence == 1
		f.state, f.round = "ENQUEUED", 1
		return possible
	case task.EventExecutionReopened:
		possible := !open && f.state != "SUCCEEDED"
		f.state, f.round = "ENQUEUED", f.round+1
		for _, s := range f.steps {
			s.reopened = true
		}
		return possible && d.Round == f.round
	case task.EventExecutionStarted:
		possible := f.state == "ENQUEUED"
		f.state = "RUNNING"
		return possible
	case task.EventExecutionSucceeded, task.EventExecutionFailed, task.EventExecutionCanceled:
		f.state = endOf(d.Type)
		return open && !f.anyLive()
	case task.EventAttemptLeased:
		possible := f.state == "RUNNING" && !live && s.state == "" && d.AttemptNumber == s.number+1 && d.LeaseVersion > f.version
		s.attempt, s.next, s.number, f.version = "LEASED", false, s.number+1, d.LeaseVersion
		return possible
	case task.EventStepRetryScheduled:
		s.next = true
		return open && !live && s.state == "" && s.number > 0 && d.NextAttempt != nil
	case task.EventStepSucceeded, task.EventStepFailed, task.EventStepSkipped, task.EventStepCanceled:
		possible := open && !live && s.state == ""
		s.state = endOf(d.Type)
		return possible
	default: // the end of an attempt
		s.attempt = endOf(d.Type)
		return open && live && d.AttemptNumber == s.number
	}
}

func (f *fold) anyLive() bool {
	for _, s := range f.steps {
		if s.attempt == "LEASED" {
			return true
		}
	}
	return false
}

// endOf is the state that an event of an end tells.
func endOf(t task.EventType) string {
	words := strings.Split(string(t), ".")
	return strings.ToUpper(words[len(words)-1])
}
