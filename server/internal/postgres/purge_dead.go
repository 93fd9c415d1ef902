package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// eventsDropped is what the timeline calls it.
const eventsDropped = "dropped"

// dropDeadEvents removes events that nobody redrove or skipped for long: the later events of
// their executions go on without them, and those can end and leave some day.
func (s *Store) dropDeadEvents(ctx context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	heads, err := headsInOrder(ctx, s.reads, after(b.After.ID), uuid.Max, purgeHeads, true)
	if err != nil || len(heads) == 0 {
		return scheduler.Purged{Next: b.After}, outwardOrNil(ctx, "find dead events", err)
	}
	p := scheduler.Purged{
		Looked: len(heads), Next: scheduler.PurgePosition{ID: heads[len(heads)-1].AggregateID}, More: len(heads) == purgeHeads,
	}
	executions, err := oldDead(ctx, s.reads, heads, b.Age)
	if err != nil {
		return p, outwardOrNil(ctx, "look at dead events", err)
	}
	if b.DryRun {
		p.Removed = len(executions)
	}
	if b.DryRun || len(executions) == 0 {
		return p, nil
	}
	var dropped []dbsqlc.DropDeadEventsRow
	call := uuid.New()
	err = s.tx(ctx, "drop dead events", func(ctx context.Context, t *txn) error {
		var err error
		dropped, err = t.dropDead(ctx, executions, b.Age, call)
		return err
	})
	if err != nil {
		return p, err
	}
	for _, e := range dropped {
		s.log.Warn("outbox: event was dead for too long and is dropped", "event_id", e.ID, "type", e.EventType,
			"aggregate_id", e.AggregateID, "sequence", e.Sequence, "last_error", e.LastError)
	}
	p.Removed = len(dropped)
	return p, nil
}

// oldDead are the executions whose first unsettled event has been DEAD for so long.
func oldDead(ctx context.Context, q *dbsqlc.Queries, heads []head, age time.Duration) ([]uuid.UUID, error) {
	look := dbsqlc.EventsBehindHeadsParams{PerHead: 1}
	for _, h := range heads {
		look.AggregateIds = append(look.AggregateIds, h.AggregateID)
		look.Sequences = append(look.Sequences, h.NextSequence)
	}
	rows, err := q.EventsBehindHeads(ctx, look)
	var old []uuid.UUID
	for _, r := range rows {
		if outbox.Status(r.Status) == outbox.Dead && fromInterval(r.Remaining) <= -age {
			old = append(old, r.AggregateID)
		}
	}
	return old, err
}

func (t *txn) dropDead(ctx context.Context, executions []uuid.UUID, age time.Duration, call uuid.UUID) ([]dbsqlc.DropDeadEventsRow, error) {
	g, err := t.lock(ctx, executions, false)
	if err != nil {
		return nil, err
	}
	heads, err := t.lockHeads(ctx, g.ids())
	if err != nil {
		return nil, err
	}
	now, err := t.q.Now(ctx)
	if err != nil {
		return nil, err
	}
	p := dbsqlc.DropDeadEventsParams{Age: interval(age)}
	for _, h := range heads {
		p.AggregateIds = append(p.AggregateIds, h.AggregateID)
		p.Sequences = append(p.Sequences, h.NextSequence)
	}
	dropped, err := t.q.DropDeadEvents(ctx, p)
	if err != nil || len(dropped) == 0 {
		return nil, wrap("drop dead events", err)
	}
	notes := map[uuid.UUID]*task.EventsChange{}
	for _, e := range dropped {
		notes[e.AggregateID] = &task.EventsChange{
			Done: eventsDropped, By: "retention", Call: call, Events: 1, First: e.Sequence, Last: e.Sequence,
			Reason: fmt.Sprintf("it was DEAD for more than %s", age),
		}
		g.execs[e.AggregateID].EventsChanged(now.Time.UTC(), *notes[e.AggregateID])
	}
	if err := g.save(ctx); err != nil {
		return nil, err
	}
	return dropped, t.freeHeads(ctx, heads, notes)
}
