package history

import (
	"slices"
	"strings"

	"github.com/google/uuid"
)

// How events stand, as far as it matters.
const (
	statusPublished = "PUBLISHED"
	statusSkipped   = "SKIPPED"
)

// The types of events begin with these; then comes what happened, in small letters.
const (
	typeExecution = "leasehold.execution.v1."
	typeStep      = "leasehold.step.v1."
	typeAttempt   = "leasehold.attempt.v1."
)

// fact is what an event tells: it happens once.
type fact struct {
	kind    string
	subject uuid.UUID // attempt or step; nil: the execution
	round   int32     // 0 for attempts
}

// events: rule events.
func (b *book) events() {
	due := map[fact]int{}
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		clear(due)
		b.factsOf(e, func(f fact) {
			if b.c.EventTypes == nil || slices.Contains(b.c.EventTypes, f.kind) {
				due[f]++
			}
		})
		b.told(e, due)
	}
	for i := range b.c.Events {
		if o := &b.c.Events[i]; b.execution[o.Execution] == nil {
			b.broken(ruleEvents, "event %s is of execution %s, which is not there", o.ID, o.Execution)
		}
	}
}

// factsOf lists what happened to an execution, by the other tables.
func (b *book) factsOf(e *Execution, happened func(fact)) {
	happened(fact{typeExecution + "enqueued", uuid.Nil, 1})
	for round := int32(2); round <= e.Round; round++ {
		happened(fact{typeExecution + "reopened", uuid.Nil, round})
	}
	if e.Ended {
		happened(fact{typeExecution + strings.ToLower(e.State), uuid.Nil, e.Round})
	}
	steps := b.stepsOf(e.ID)
	b.factsOfRounds(e, steps, happened)
	started := map[int32]bool{}
	for _, s := range steps {
		for _, a := range b.attemptsOf(s.ID) {
			if !started[a.Round] {
				started[a.Round] = true
				happened(fact{typeExecution + "started", uuid.Nil, a.Round})
			}
			b.factsOfAttempt(a, happened)
		}
	}
}

// factsOfRounds are those that the timeline keeps: ends of earlier rounds, and of steps that did
// not succeed.
func (b *book) factsOfRounds(e *Execution, steps []*Step, happened func(fact)) {
	var ids map[string]uuid.UUID
	for _, en := range b.entriesOf(e.ID) {
		if round, what := en.execution(); what == milestoneEnded {
			happened(fact{typeExecution + strings.ToLower(en.State), uuid.Nil, round})
		}
		end := en.stepEnd()
		if end == "" {
			continue
		}
		if ids == nil {
			ids = make(map[string]uuid.UUID, len(steps))
			for _, s := range steps {
				ids[s.Name] = s.ID
			}
		}
		round, _ := en.round()
		happened(fact{typeStep + strings.ToLower(end), ids[en.Step], round})
	}
}

func (b *book) factsOfAttempt(a *Attempt, happened func(fact)) {
	happened(fact{typeAttempt + "leased", a.ID, 0})
	if a.State == leased {
		return
	}
	happened(fact{typeAttempt + strings.ToLower(a.State), a.ID, 0})
	if a.State == succeeded {
		happened(fact{typeStep + "succeeded", a.Step, a.Round})
	}
	if a.NextDue != 0 {
		happened(fact{typeStep + "retry_scheduled", a.ID, 0})
	}
}

// told compares the events of an execution with what happened.
func (b *book) told(e *Execution, due map[fact]int) {
	list := b.eventsOf(e.ID)
	for i, o := range list {
		if o.Sequence != int64(i+1) {
			b.broken(ruleEvents, "execution %s: event %d is numbered %d", e.ID, i+1, o.Sequence)
			break
		}
	}
	if int64(len(list)) != e.Sequence {
		b.broken(ruleEvents, "execution %s has %d events, it has written %d", e.ID, len(list), e.Sequence)
	}
	for _, o := range list {
		f := fact{o.Type, o.Subject, o.Round}
		if strings.HasPrefix(o.Type, typeAttempt) || o.Type == typeStep+"retry_scheduled" {
			f.round = 0
		}
		if due[f] == 0 {
			b.broken(ruleEvents, "execution %s: event %d, %s of %s in round %d, tells of nothing, or again", e.ID, o.Sequence, o.Type, o.Subject, o.Round)
			continue
		}
		due[f]--
	}
	for f, n := range due {
		if n > 0 {
			b.broken(ruleEvents, "execution %s: %s of %s in round %d is no event", e.ID, f.kind, f.subject, f.round)
		}
	}
}

// delivery: rule delivery. What is published and has not come yet is a fault only when the run is
// finished: a sink may keep it for a while.
func (b *book) delivery(finished bool) {
	if !b.h.Sink {
		return
	}
	first := make(map[uuid.UUID]*Delivery, len(b.c.Events))
	for i := range b.h.Deliveries {
		d := &b.h.Deliveries[i]
		if f := first[d.ID]; f == nil || d.At < f.At {
			first[d.ID] = d
		}
	}
	came := 0
	for i := range b.c.Executions {
		came += b.inOrder(b.eventsOf(b.c.Executions[i].ID), first, finished)
	}
	if came == len(first) {
		return
	}
	known := index(b.c.Events, func(e *Event) uuid.UUID { return e.ID })
	for id, d := range first {
		if known[id] == nil {
			b.broken(ruleDelivery, "event %s (%s of %s) was delivered, and is not there", id, d.Type, d.Execution)
		}
	}
}

// inOrder looks at the events of an execution in the order of their numbers, and returns how many
// of them came.
func (b *book) inOrder(events []*Event, first map[uuid.UUID]*Delivery, finished bool) (came int) {
	var missing *Event
	var latest *Delivery
	for _, e := range events {
		d := first[e.ID]
		switch {
		case d != nil:
			came++
			b.sameEvent(e, d)
			if missing != nil {
				b.broken(ruleDelivery, "execution %s: event %d was delivered, event %d before it was not", e.Execution, e.Sequence, missing.Sequence)
			}
			if latest != nil && d.At < latest.At {
				b.broken(ruleDelivery, "execution %s: event %d was first delivered before event %d", e.Execution, e.Sequence, latest.Sequence)
			}
			if latest == nil || d.At > latest.At {
				latest = d
			}
		case e.Status != statusSkipped && missing == nil:
			missing = e
		}
		if d == nil && e.Status == statusPublished && finished {
			b.broken(ruleDelivery, "event %s (%s of %s) is published, and was not delivered", e.ID, e.Type, e.Execution)
		}
	}
	return came
}

func (b *book) sameEvent(e *Event, d *Delivery) {
	if d.Type != e.Type || d.Execution != e.Execution || d.Sequence != e.Sequence {
		b.broken(ruleDelivery, "event %s was delivered as %s of %s, number %d; it is %s of %s, number %d",
			e.ID, d.Type, d.Execution, d.Sequence, e.Type, e.Execution, e.Sequence)
	}
}
