package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// EventStore is where operators find events and change them.
type EventStore interface {
	// ListEvents reads a page of events.
	ListEvents(ctx context.Context, q ListQuery) (EventPage, error)
	// ChangeEvents changes the events of some executions, in one transaction.
	ChangeEvents(ctx context.Context, c Change) (Changed, error)
}

// Position is an event's place in the order of lists.
type Position struct {
	AggregateID uuid.UUID
	Sequence    int64
}

// ListQuery selects events, by (aggregate, sequence).
type ListQuery struct {
	Namespace     string
	Statuses      []Status  // none: any
	AggregateID   uuid.UUID // zero: any
	CreatedBefore time.Time // zero: any
	After         Position  // zero: from the first
	Limit         int
	Payload       bool
}

// EventPage is some of the events that were asked for. Next, if set, is how far the store has
// looked: there may be more, also when the page is short.
type EventPage struct {
	Events []EventView
	Next   *Position
}

// EventView is an event as read.
type EventView struct {
	Event       // its data only when asked for
	Status      Status
	LastError   string
	AvailableAt time.Time
	Available   time.Duration // until AvailableAt, when it was read
	PublishedAt *time.Time
}

// Action is what an operator does with events.
type Action string

// The actions.
const (
	Redrive Action = "redriven" // DEAD → PENDING
	Skip    Action = "skipped"  // PENDING | FAILED | DEAD → SKIPPED
)

// From are the states that an event may be in for the action.
func (a Action) From() []Status {
	if a == Redrive {
		return []Status{Dead}
	}
	return []Status{Pending, Failed, Dead}
}

// To is the state that the action leads to.
func (a Action) To() Status {
	if a == Redrive {
		return Pending
	}
	return Skipped
}

// Selection names events, or selects them.
type Selection struct {
	IDs           []uuid.UUID // or:
	Namespace     string      // empty: any
	Statuses      []Status
	CreatedBefore time.Time // zero: any
}

// Change is an action on the selected events of the next executions, in the order of their ids.
type Change struct {
	Action Action
	Selection
	Call   uuid.UUID // the operator's call, made before the first try: its own is found by it
	Reason string
	After  uuid.UUID // executions up to this one are done
	DryRun bool      // changes nothing
}

// Changed is what came of a change.
type Changed struct {
	Events     int
	Executions int
	Next       uuid.UUID // executions up to this one are done
	More       bool      // there may be further ones
}

// Total is what came of an operator's call.
type Total struct {
	Events     int
	Executions int
	More       bool // its time ran out; the same call again goes on
}

// Bounds of an operator's call: it answers before its caller stops waiting.
const (
	answerMargin = time.Second
	longestCall  = 5 * time.Minute
)

// Operator is what operators can do with events.
type Operator struct {
	store   EventStore
	changed func()
}

// NewOperator makes one. changed is called after events became due: a hint for the relay.
func NewOperator(store EventStore, changed func()) *Operator {
	if changed == nil {
		changed = func() {}
	}
	return &Operator{store: store, changed: changed}
}

// List reads a page of events.
func (o *Operator) List(ctx context.Context, q ListQuery) (EventPage, error) {
	return o.store.ListEvents(ctx, q)
}

// Change does the action on every selected event, batch by batch, each of which commits by
// itself. What was done stays done when a later one fails; a repeat does the rest.
func (o *Operator) Change(ctx context.Context, action Action, s Selection, reason string) (Total, error) {
	return o.change(ctx, Change{Action: action, Selection: s, Reason: reason})
}

// Count tells how many events Change would change now.
func (o *Operator) Count(ctx context.Context, action Action, s Selection) (Total, error) {
	return o.change(ctx, Change{Action: action, Selection: s, DryRun: true})
}

func (o *Operator) change(ctx context.Context, c Change) (Total, error) {
	ctx, cancel := context.WithTimeout(ctx, longestCall)
	defer cancel()
	c.Call = uuid.New()
	var total Total
	for {
		done, err := o.store.ChangeEvents(ctx, c)
		if err != nil {
			return total, fmt.Errorf("events are not %s, after %d: %w", c.Action, total.Events, err)
		}
		total.Events += done.Events
		total.Executions += done.Executions
		if done.Events > 0 && !c.DryRun {
			o.changed()
		}
		if !done.More {
			return total, nil
		}
		c.After = done.Next
		if until, _ := ctx.Deadline(); until.Sub(stopwatch()) < answerMargin {
			total.More = true
			return total, nil
		}
	}
}
