package postgres

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

var _ outbox.EventStore = (*Outbox)(nil)

// Bounds of one change of events.
const (
	changedExecutions = 200
	changedEvents     = 10_000 // of one transaction, unless a single execution has more
	changedAtOnce     = 5_000  // of one statement
)

// ChangeEvents does an operator's action on events of the next executions. Which those are is
// looked up first, without a lock; then they are locked, then their heads, and then the events
// are looked at.
func (o *Outbox) ChangeEvents(ctx context.Context, c outbox.Change) (outbox.Changed, error) {
	b, err := pickEvents(ctx, o.store.reads, c)
	if err != nil {
		return outbox.Changed{}, outwardOrNil(ctx, "find events to change", err)
	}
	var changed outbox.Changed
	switch {
	case len(b.executions) == 0:
	case c.DryRun:
		changed, err = countEvents(ctx, o.store.reads, c, b.heads)
		err = outwardOrNil(ctx, "count events", err)
	default:
		err = o.store.tx(ctx, "change events", func(ctx context.Context, t *txn) error {
			changed = outbox.Changed{}
			return t.changeEvents(ctx, c, b.executions, &changed)
		})
	}
	changed.Next, changed.More = b.next, b.more
	return changed, err
}

// picked are executions whose events a change is about; they are not locked yet.
type picked struct {
	executions []uuid.UUID
	heads      []head
	next       uuid.UUID // up to which the executions were looked at
	more       bool
}

func pickEvents(ctx context.Context, q *dbsqlc.Queries, c outbox.Change) (picked, error) {
	if len(c.IDs) > 0 {
		return pickNamed(ctx, q, c)
	}
	heads, err := headsInOrder(ctx, q, after(c.After), uuid.Max, changedExecutions, onlyOf(c.Statuses, outbox.Dead))
	if err != nil || len(heads) == 0 {
		return picked{}, err
	}
	ids := make([]uuid.UUID, len(heads))
	for i, h := range heads {
		ids[i] = h.AggregateID
	}
	rows, err := q.AggregatesOfHeads(ctx, ids)
	if err != nil {
		return picked{}, fmt.Errorf("find executions of heads: %w", err)
	}
	of := make(map[uuid.UUID]dbsqlc.AggregatesOfHeadsRow, len(rows))
	for _, r := range rows {
		of[r.ID] = r
	}
	p := picked{more: len(heads) == changedExecutions}
	weight := int64(0)
	for _, h := range heads {
		x, found := of[h.AggregateID]
		if found && (c.Namespace == "" || x.Namespace == c.Namespace) {
			weight += x.Sequence - h.NextSequence + 1
			if weight > changedEvents && len(p.executions) > 0 {
				p.more = true
				break
			}
			p.executions = append(p.executions, h.AggregateID)
			p.heads = append(p.heads, h)
		}
		p.next = h.AggregateID
	}
	return p, nil
}

// after is the id that follows another one.
func after(id uuid.UUID) uuid.UUID {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			return id
		}
	}
	return uuid.Max
}

// pickNamed finds the executions of named events, every one of which has to be there.
func pickNamed(ctx context.Context, q *dbsqlc.Queries, c outbox.Change) (picked, error) {
	rows, err := q.EventAggregates(ctx, c.IDs)
	if err != nil {
		return picked{}, fmt.Errorf("find events: %w", err)
	}
	found, executions := set{}, set{}
	for _, r := range rows {
		found[r.ID] = true
		if bytes.Compare(r.AggregateID[:], c.After[:]) > 0 {
			executions[r.AggregateID] = true
		}
	}
	for _, id := range c.IDs {
		if !found[id] && c.After == uuid.Nil { // later on retention may have taken it
			return picked{}, own(&scheduler.NotFoundError{Kind: scheduler.KindEvent, ID: id.String()})
		}
	}
	p := picked{executions: executions.ids()}
	slices.SortFunc(p.executions, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	if p.more = len(p.executions) > changedExecutions; p.more {
		p.executions = p.executions[:changedExecutions]
	}
	if n := len(p.executions); n > 0 {
		p.next = p.executions[n-1]
	}
	for _, id := range p.executions {
		p.heads = append(p.heads, head{AggregateID: id})
	}
	return p, nil
}

func (t *txn) changeEvents(ctx context.Context, c outbox.Change, executions []uuid.UUID, changed *outbox.Changed) error {
	g, err := t.lock(ctx, executions, true)
	if err != nil {
		return err
	}
	heads, err := t.lockHeads(ctx, g.ids())
	if err != nil {
		return err
	}
	now, err := t.q.Now(ctx)
	if err != nil {
		return err
	}
	if err := t.changedBefore(ctx, g, c, changed); err != nil {
		return err
	}
	notes, err := t.writeChanges(ctx, c, heads)
	if err != nil {
		return err
	}
	if len(notes) == 0 {
		t.vouch() // the answer rests on what an earlier commit wrote
		return nil
	}
	for id, note := range notes {
		g.execs[id].EventsChanged(now.Time.UTC(), *note)
		changed.Events += note.Events
		changed.Executions++
	}
	if err := g.save(ctx); err != nil {
		return err
	}
	return t.freeHeads(ctx, heads, notes)
}

// lockHeads locks heads, which waits for relays' claims and settlements under way.
func (t *txn) lockHeads(ctx context.Context, executions []uuid.UUID) ([]dbsqlc.LockHeadsRow, error) {
	defer t.locking(time.Now())
	heads, err := t.q.LockHeads(ctx, executions)
	return heads, wrap("lock heads", err)
}

// changedBefore finds what an earlier try, whose commit was not answered, has done.
func (t *txn) changedBefore(ctx context.Context, g *gate, c outbox.Change, changed *outbox.Changed) error {
	if !t.again {
		return nil
	}
	var p dbsqlc.EventsChangedBeforeParams
	for id, e := range g.execs {
		p.ExecutionIds = append(p.ExecutionIds, id)
		p.Milestones = append(p.Milestones, e.EventsChangedMilestone(string(c.Action), c.Call))
	}
	rows, err := t.q.EventsChangedBefore(ctx, p)
	for _, r := range rows {
		changed.Events += int(r.Events)
		changed.Executions++
	}
	return wrap("find own changes", err)
}

// writeChanges changes events behind locked heads, some at a time, and tells what was done with
// each execution's.
func (t *txn) writeChanges(ctx context.Context, c outbox.Change, heads []dbsqlc.LockHeadsRow) (map[uuid.UUID]*task.EventsChange, error) {
	p := dbsqlc.ChangeEventsParams{
		ToStatus: string(c.Action.To()), Anew: c.Action == outbox.Redrive, CreatedBefore: createdBefore(c.Selection),
		FromStatuses: fromStatuses(c), Ids: orEmpty(c.IDs), Events: changedAtOnce,
	}
	for _, h := range heads {
		p.AggregateIds = append(p.AggregateIds, h.AggregateID)
		p.Sequences = append(p.Sequences, h.NextSequence)
	}
	notes := map[uuid.UUID]*task.EventsChange{}
	for n := changedAtOnce; n == changedAtOnce && len(heads) > 0; {
		rows, err := t.q.ChangeEvents(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("change events: %w", err)
		}
		n = len(rows)
		for _, r := range rows {
			note := notes[r.AggregateID]
			if note == nil {
				note = &task.EventsChange{
					Done: string(c.Action), By: "operator", Call: c.Call, Reason: c.Reason, First: r.Sequence, Last: r.Sequence,
				}
				notes[r.AggregateID] = note
			}
			note.Events++
			note.First, note.Last = min(note.First, r.Sequence), max(note.Last, r.Sequence)
		}
	}
	return notes, nil
}

// freeHeads makes heads lead to what is unsettled now. One that a relay has claimed is put
// right by that relay: its claim must not be lost.
func (t *txn) freeHeads(ctx context.Context, heads []dbsqlc.LockHeadsRow, notes map[uuid.UUID]*task.EventsChange) error {
	var left dbsqlc.FirstUnsettledParams
	for _, h := range heads {
		if notes[h.AggregateID] != nil && !h.Claimed {
			left.AggregateIds = append(left.AggregateIds, h.AggregateID)
			left.Sequences = append(left.Sequences, h.NextSequence)
		}
	}
	if len(left.AggregateIds) == 0 {
		return nil
	}
	return t.moveHeads(ctx, left)
}

func countEvents(ctx context.Context, q *dbsqlc.Queries, c outbox.Change, heads []head) (outbox.Changed, error) {
	p := dbsqlc.CountEventsParams{CreatedBefore: createdBefore(c.Selection), FromStatuses: fromStatuses(c), Ids: orEmpty(c.IDs)}
	for _, h := range heads {
		p.AggregateIds = append(p.AggregateIds, h.AggregateID)
		p.Sequences = append(p.Sequences, h.NextSequence)
	}
	n, err := q.CountEvents(ctx, p)
	return outbox.Changed{Events: int(n.Events), Executions: int(n.Aggregates)}, wrap("count events", err)
}

// fromStatuses are the states that the action may change and the selection is about.
func fromStatuses(c outbox.Change) []string {
	list := []string{}
	for _, s := range c.Action.From() {
		if len(c.Statuses) == 0 || slices.Contains(c.Statuses, s) {
			list = append(list, string(s))
		}
	}
	return list
}

func createdBefore(s outbox.Selection) pgtype.Timestamptz {
	if s.CreatedBefore.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return instant(s.CreatedBefore)
}
