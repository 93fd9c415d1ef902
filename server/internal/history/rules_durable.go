package history

import (
	"math"
	"strings"

	"github.com/google/uuid"
)

// durable: rule durable.
func (b *book) durable() {
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		switch o.Outcome {
		case Refused:
			b.notFound(o)
		case OK:
			b.isThere(o)
		}
	}
	b.writings()
}

// isThere looks for the effect of a call that was answered OK.
func (b *book) isThere(o *Op) {
	switch o.Kind {
	case Grant, Renew, Report, Revoke:
		a := b.attempt[o.Attempt]
		if a == nil || a.Version != o.Version {
			b.broken(ruleDurable, "%s: there is no such attempt with that version", o)
			return
		}
		b.attemptIsThere(o, a)
	case Enqueue, Cancel, Terminate, Retry, Get:
		e := b.execution[o.Execution]
		if e == nil {
			b.broken(ruleDurable, "%s: there is no such execution", o)
			return
		}
		if o.Revision > e.Revision || o.Round > e.Round {
			b.broken(ruleDurable, "%s told of round %d and revision %d, the tables have %d and %d", o, o.Round, o.Revision, e.Round, e.Revision)
		}
		b.executionIsThere(o, e)
	}
}

func (b *book) attemptIsThere(o *Op, a *Attempt) {
	switch o.Kind {
	case Grant:
		if a.Step != o.Step || a.Number != o.Number || a.Session != o.Session {
			b.broken(ruleDurable, "%s: the attempt is number %d of step %s, of session %s", o, a.Number, a.Step, a.Session)
		}
		if a.Reason == "undelivered" {
			b.broken(ruleOneLease, "%s was answered, and taken back as if it had not been", o)
		}
	case Renew:
		if a.Session != o.Session {
			b.broken(ruleOneLease, "%s, of session %s, renewed a lease of session %s", o, o.Session, a.Session)
		}
	case Report:
		b.reportIsThere(o, a)
	case Revoke:
		if a.State != lost || a.Reason != "revoked" {
			b.broken(ruleDurable, "%s: the attempt is %s (%s)", o, a.State, a.Reason)
		}
	}
}

func (b *book) reportIsThere(o *Op, a *Attempt) {
	if a.State != o.Result || !a.Reported || o.FailureType != "" && a.FailureType != o.FailureType {
		b.broken(ruleDurable, "%s: the attempt is %s (%s)", o, a.State, a.FailureType)
		return
	}
	s := b.step[a.Step]
	if s == nil || a.State != succeeded {
		return
	}
	if s.State != succeeded || s.Output != o.Output {
		b.broken(ruleDurable, "%s: its step is %s, with output %x instead of %x", o, s.State, s.Output, o.Output)
	}
}

func (b *book) executionIsThere(o *Op, e *Execution) {
	switch o.Kind {
	case Enqueue:
		if e.Key != o.Key || e.Namespace != o.Namespace || e.StepCount != o.Number {
			b.broken(ruleDurable, "%s: the execution has key %q in %q and %d steps, instead of %d", o, e.Key, e.Namespace, e.StepCount, o.Number)
		}
	case Cancel, Terminate:
		// The state was read after the cancel: a retry may have come between.
		if stopped(o.State) && !b.stopAsked(e, o.Round) {
			b.broken(ruleDurable, "%s: nobody asked for it in the timeline", o)
		}
	case Retry:
		if !b.reopened(e, o) {
			b.broken(ruleDurable, "%s: round %d was not opened by it", o, o.Round)
		}
	}
}

func stopped(state string) bool { return state == canceling || state == canceled }

// stopAsked tells whether a round was asked to be cancelled or terminated.
func (b *book) stopAsked(e *Execution, round int32) bool {
	for _, en := range b.entriesOf(e.ID) {
		if r, what := en.execution(); r == round && (what == milestoneCancel || what == milestoneTerminate) {
			return true
		}
	}
	return false
}

func (b *book) reopened(e *Execution, o *Op) bool {
	for _, en := range b.entriesOf(e.ID) {
		if r, what := en.execution(); what == milestoneReopened && r == o.Round {
			return o.Key == "" || en.RequestID == o.Key
		}
	}
	return false
}

// notFound: what was answered once is found from then on.
func (b *book) notFound(o *Op) {
	if !strings.HasSuffix(o.Reason, "_NOT_FOUND") {
		return
	}
	var before []*Op
	switch o.Reason {
	case "EXECUTION_NOT_FOUND":
		before = b.opsOn(o.Execution)
	case "ATTEMPT_NOT_FOUND":
		before = b.opsOf(o.Attempt)
	}
	for _, x := range before {
		if x.Outcome == OK && (x.Kind == Enqueue || x.Kind == Grant) && x.End < o.Begin {
			b.broken(ruleDurable, "%s was answered %s after %s", o, o.Reason, x)
			return
		}
	}
}

// writing is a value that several calls may have set: the last one stays.
type writing struct {
	what  string
	of    uuid.UUID
	value Digest // in the tables
	by    []*Op
	sets  func(*Op) Digest // 0: nothing
}

// writings looks at progress and checkpoints.
func (b *book) writings() {
	for i := range b.c.Steps {
		s := &b.c.Steps[i]
		checkpoints := writing{"checkpoint", s.ID, s.Checkpoint, nil, func(o *Op) Digest { return o.Checkpoint }}
		for _, a := range b.attemptsOf(s.ID) {
			ops := b.opsOf(a.ID)
			checkpoints.by = append(checkpoints.by, ops...)
			b.written(&writing{"progress message", a.ID, a.Message, ops, func(o *Op) Digest { return o.Message }})
			b.written(&writing{"progress", a.ID, digestProgress(a.HasProgress, a.Progress), ops, func(o *Op) Digest {
				if o.Progress == nil {
					return 0
				}
				return digestProgress(true, *o.Progress)
			}})
		}
		b.written(&checkpoints)
	}
}

// digestProgress is another number for each progress, none of them 0.
func digestProgress(has bool, p float64) Digest {
	if !has {
		return 0
	}
	return Digest(math.Float64bits(p) + 1)
}

// written: a value is the last that was set, as far as the calls tell which one that was. Without
// any call nothing is known of it.
func (b *book) written(w *writing) {
	var last *Op // of those answered OK, the one that began last
	fits, refused, any := false, false, false
	for _, o := range w.by {
		if w.sets(o) != 0 {
			any = true
			refused = refused || o.Outcome == Refused && w.sets(o) == w.value
			if o.sure() && (last == nil || o.Begin > last.Begin) {
				last = o
			}
		}
	}
	if !any {
		return
	}
	for _, o := range w.by {
		if value := w.sets(o); value != 0 && o.may() && (value == w.value || value == Altered) {
			fits = fits || last == nil || o == last || o.end() >= last.Begin
		}
	}
	switch {
	case fits || w.value == 0 && last == nil:
	case refused:
		b.broken(ruleRefused, "the %s of %s is %x, which only a refused call has sent", w.what, w.of, w.value)
	default:
		b.broken(ruleDurable, "the %s of %s is %x; the last that was answered OK is %s", w.what, w.of, w.value, last)
	}
}

// sure tells whether a call was done for certain, checkpoint and all. Of a report that was
// recorded before, the checkpoint was perhaps not taken.
func (o *Op) sure() bool { return o.Outcome == OK && !o.Replayed }
