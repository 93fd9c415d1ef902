package memstore

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// save writes what the domain decided of every open execution.
func (g *gate) save() error {
	for _, id := range g.order {
		e := g.execs[id]
		c := e.TakeChanges(g.t.selects)
		if !c.Touched {
			continue
		}
		row := g.t.executions[id]
		if row.Revision != c.Base {
			return fmt.Errorf("execution %s is at %d, decided on %d: %w", id, row.Revision, c.Base, errStale)
		}
		row.ExecutionData = e.Data()
		put(g.t, g.t.executions, id, row)
		if err := g.t.writeSteps(&c); err != nil {
			return err
		}
		if c.Stopped {
			g.t.stop(e)
		}
		if err := g.t.writeChanges(&row.ExecutionData, &c); err != nil {
			return fmt.Errorf("write execution %s: %w", id, err)
		}
	}
	return nil
}

// writeSteps writes steps and attempts. A terminal step is not overwritten but by a new round,
// an attempt that ended never.
func (t *txn) writeSteps(c *task.Changes) error {
	for _, s := range c.Steps {
		row := t.steps[s.Data().ID]
		d := s.Data()
		if d.State == task.StepRunning {
			d.State = task.StepReady
		}
		if row.State.Terminal() && d.State.Terminal() {
			return fmt.Errorf("step %s has ended: %w", d.ID, errStale)
		}
		row.StepData = d
		put(t, t.steps, d.ID, row)
	}
	for _, a := range c.Ended {
		row := t.attempts[a.Data().ID]
		if row.State != task.AttemptLeased {
			return fmt.Errorf("attempt %s has ended: %w", row.ID, errStale)
		}
		row.AttemptData = a.Data()
		put(t, t.attempts, row.ID, row)
	}
	return nil
}

// stop gives the live leases of an execution the end of its grace.
func (t *txn) stop(e *task.Execution) {
	at := e.Data().CancelDeadline
	for _, s := range e.Steps() {
		if s.Live() == nil {
			continue
		}
		l, there := t.leases[s.Live().Data().ID]
		if !there {
			continue
		}
		l.cancelAt, l.expiresAt = at, earliest(l.expiresAt, at)
		put(t, t.leases, l.attempt, l)
	}
}

// writeChanges writes what belongs to an execution.
func (t *txn) writeChanges(d *task.ExecutionData, c *task.Changes) error {
	for _, id := range c.Dropped {
		drop(t, t.requests, requestKey{id, t.steps[id].AttemptsEnded + 1})
	}
	for _, r := range c.Requests {
		k := requestKey{r.StepID, r.Number}
		if _, there := t.requests[k]; !there {
			put(t, t.requests, k, request{Request: r})
		}
	}
	for _, timer := range c.Timers {
		k := timerKey{execution: d.ID, kind: timer.Kind}
		if timer.StepID != nil {
			k.step = *timer.StepID
		}
		put(t, t.timers, k, timer.At)
	}
	if c.Closed {
		for k := range t.timers {
			if k.execution == d.ID {
				drop(t, t.timers, k)
			}
		}
	}
	if err := t.writeEntries(d.ID, c.Entries); err != nil {
		return err
	}
	return t.writeEvents(d, c.Events)
}

func (t *txn) writeEntries(execution uuid.UUID, entries []task.Entry) error {
	list := t.entries[execution]
	for _, en := range entries {
		for i := range list {
			if list[i].Sequence == en.Sequence || list[i].Milestone == en.Milestone {
				return fmt.Errorf("entry %d, %q: %w", en.Sequence, en.Milestone, errStale)
			}
		}
		list = append(slices.Clip(list), scheduler.EntryView{Entry: en, Count: 1})
	}
	if len(entries) > 0 {
		put(t, t.entries, execution, list)
	}
	return nil
}

// writeEvents writes events, and their execution's head if it has none.
func (t *txn) writeEvents(d *task.ExecutionData, events []task.Event) error {
	for i := range events {
		e := &events[i]
		data, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("event %s: %w", e.Type, err)
		}
		k := eventKey{d.ID, e.Sequence}
		if _, there := t.events[k]; there {
			return fmt.Errorf("event %d: %w", e.Sequence, errStale)
		}
		put(t, t.events, k, event{status: outbox.Pending, availableAt: t.at, Event: outbox.Event{
			ID: k.id(), Namespace: d.Namespace, AggregateID: d.ID, Type: string(e.Type), Sequence: e.Sequence,
			Data: data, CreatedAt: e.At, TraceContext: t.executions[d.ID].trace,
		}})
		if _, there := t.heads[d.ID]; !there {
			put(t, t.heads, d.ID, head{next: e.Sequence, availableAt: t.at})
		}
	}
	return nil
}

// id is the id of the event at a place: always the same one, so that no chance is needed.
func (k eventKey) id() uuid.UUID {
	return uuid.NewSHA1(k.aggregate, binary.BigEndian.AppendUint64(nil, uint64(k.sequence)))
}
