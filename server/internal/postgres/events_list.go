package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

// Bounds of what one page of events looks at.
const (
	eventsLookedAt = 40_000
	eventsPerLook  = 5_000
	headsPerLook   = 100
	eventsPerHead  = 100
	leadersPerLook = 1_000
)

// ListEvents reads a page of events. What is unsettled is found by the heads, however many
// events are settled; other filters are looked at event by event, up to a bound.
func (o *Outbox) ListEvents(ctx context.Context, q outbox.ListQuery) (outbox.EventPage, error) {
	var page outbox.EventPage
	err := o.store.snapshot(ctx, "list events", func(db *dbsqlc.Queries) error {
		w := eventWalk{q: db, query: q, at: q.After}
		var err error
		if page, err = w.page(ctx); err != nil || !q.Payload || len(page.Events) == 0 {
			return err
		}
		return readEventPayloads(ctx, db, page.Events)
	})
	return page, err
}

// eventWalk goes through events in the order of lists.
type eventWalk struct {
	q      *dbsqlc.Queries
	query  outbox.ListQuery
	at     outbox.Position // everything up to here was looked at
	looked int
}

// page walks until the page is full, the events end, or enough was looked at.
func (w *eventWalk) page(ctx context.Context) (outbox.EventPage, error) {
	look := w.events
	if onlyOf(w.query.Statuses, outbox.Failed, outbox.Dead) {
		look = w.leaders
	} else if onlyOf(w.query.Statuses, outbox.Pending, outbox.Publishing, outbox.Failed, outbox.Dead) {
		look = w.unsettled
	}
	var page outbox.EventPage
	for more := true; more && w.looked < eventsLookedAt; {
		var rows []dbsqlc.EventsInOrderRow
		var err error
		if rows, more, err = look(ctx); err != nil {
			return page, err
		}
		for i := range rows {
			if !w.wants(&rows[i]) {
				continue
			}
			page.Events = append(page.Events, eventView(&rows[i]))
			if len(page.Events) == w.query.Limit {
				page.Next = &outbox.Position{AggregateID: rows[i].AggregateID, Sequence: rows[i].Sequence}
				return page, nil
			}
		}
		if !more {
			return page, nil
		}
	}
	page.Next = &w.at
	return page, nil
}

func onlyOf(list []outbox.Status, allowed ...outbox.Status) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(s outbox.Status) bool { return !slices.Contains(allowed, s) })
}

func (w *eventWalk) wants(r *dbsqlc.EventsInOrderRow) bool {
	q := &w.query
	return r.Namespace == q.Namespace &&
		(len(q.Statuses) == 0 || slices.Contains(q.Statuses, outbox.Status(r.Status))) &&
		(q.CreatedBefore.IsZero() || r.CreatedAt.Time.Before(q.CreatedBefore))
}

// last is the last aggregate that can have what is asked for.
func (w *eventWalk) last() uuid.UUID {
	if w.query.AggregateID != uuid.Nil {
		return w.query.AggregateID
	}
	return uuid.Max
}

// start is the position after which the events are that can be asked for.
func (w *eventWalk) start() outbox.Position {
	if first := w.query.AggregateID; w.at == (outbox.Position{}) && first != uuid.Nil {
		return outbox.Position{AggregateID: first}
	}
	return w.at
}

// events looks at all events, a few at first: most pages are full soon.
func (w *eventWalk) events(ctx context.Context) ([]dbsqlc.EventsInOrderRow, bool, error) {
	n := min(max(2*w.looked, w.query.Limit), eventsPerLook)
	after := w.start()
	rows, err := w.q.EventsInOrder(ctx, dbsqlc.EventsInOrderParams{
		AfterID: after.AggregateID, AfterSequence: after.Sequence, LastID: w.last(), Events: int32(n),
	})
	if err != nil {
		return nil, false, fmt.Errorf("read events: %w", err)
	}
	w.advance(rows)
	return rows, len(rows) == n, nil
}

func (w *eventWalk) advance(rows []dbsqlc.EventsInOrderRow) {
	w.looked += len(rows)
	if n := len(rows); n > 0 {
		w.at = outbox.Position{AggregateID: rows[n-1].AggregateID, Sequence: rows[n-1].Sequence}
	}
}

// leaders looks at the first unsettled event of each aggregate: no other is FAILED or DEAD.
func (w *eventWalk) leaders(ctx context.Context) ([]dbsqlc.EventsInOrderRow, bool, error) {
	heads, err := headsInOrder(ctx, w.q, w.start().AggregateID, w.last(), leadersPerLook, onlyOf(w.query.Statuses, outbox.Dead))
	if err != nil || len(heads) == 0 {
		return nil, false, err
	}
	rows, err := w.behind(ctx, heads, 1)
	w.at = outbox.Position{AggregateID: heads[len(heads)-1].AggregateID, Sequence: math.MaxInt64}
	w.looked += len(heads)
	return rows, len(heads) == leadersPerLook, err
}

// unsettled looks at the events that the heads lead, as far as each of them was read.
func (w *eventWalk) unsettled(ctx context.Context) ([]dbsqlc.EventsInOrderRow, bool, error) {
	heads, err := headsInOrder(ctx, w.q, w.start().AggregateID, w.last(), headsPerLook, false)
	if err != nil || len(heads) == 0 {
		return nil, false, err
	}
	rows, err := w.behind(ctx, heads, eventsPerHead)
	if err != nil {
		return nil, false, err
	}
	w.looked += len(heads)
	run := 0
	for i := range rows {
		if i > 0 && rows[i].AggregateID != rows[i-1].AggregateID {
			run = 0
		}
		if run++; run == eventsPerHead { // this one may have more: what comes after it is for the next look
			w.advance(rows[:i+1])
			return rows[:i+1], true, nil
		}
	}
	w.advance(rows)
	w.at = outbox.Position{AggregateID: heads[len(heads)-1].AggregateID, Sequence: math.MaxInt64}
	return rows, len(heads) == headsPerLook, nil
}

// behind reads the first events of heads, those after the position.
func (w *eventWalk) behind(ctx context.Context, heads []head, perHead int) ([]dbsqlc.EventsInOrderRow, error) {
	p := dbsqlc.EventsBehindHeadsParams{PerHead: int32(perHead)}
	for _, h := range heads {
		from := h.NextSequence
		if h.AggregateID == w.at.AggregateID {
			if w.at.Sequence == math.MaxInt64 || perHead == 1 && w.at.Sequence >= from {
				continue // it was looked at
			}
			from = max(from, w.at.Sequence+1)
		}
		p.AggregateIds = append(p.AggregateIds, h.AggregateID)
		p.Sequences = append(p.Sequences, from)
	}
	if len(p.AggregateIds) == 0 {
		return nil, nil
	}
	found, err := w.q.EventsBehindHeads(ctx, p)
	rows := make([]dbsqlc.EventsInOrderRow, len(found))
	for i := range found {
		rows[i] = dbsqlc.EventsInOrderRow(found[i])
	}
	return rows, wrap("read events", err)
}

// head leads to the first unsettled event of an aggregate.
type head = dbsqlc.HeadsInOrderRow

func headsInOrder(ctx context.Context, q *dbsqlc.Queries, from, last uuid.UUID, n int, dead bool) ([]head, error) {
	if !dead {
		heads, err := q.HeadsInOrder(ctx, dbsqlc.HeadsInOrderParams{FromID: from, LastID: last, Heads: int32(n)})
		return heads, wrap("read heads", err)
	}
	rows, err := q.DeadHeadsInOrder(ctx, dbsqlc.DeadHeadsInOrderParams{FromID: from, LastID: last, Heads: int32(n)})
	heads := make([]head, len(rows))
	for i, r := range rows {
		heads[i] = head(r)
	}
	return heads, wrap("read heads of dead events", err)
}

func eventView(r *dbsqlc.EventsInOrderRow) outbox.EventView {
	return outbox.EventView{
		Event: outbox.Event{
			ID: r.ID, Namespace: r.Namespace, AggregateID: r.AggregateID, Type: r.EventType, Sequence: r.Sequence,
			CreatedAt: r.CreatedAt.Time.UTC(), Attempts: int(r.Attempts),
		},
		Status: outbox.Status(r.Status), LastError: r.LastError, AvailableAt: r.AvailableAt.Time.UTC(),
		Available: fromInterval(r.Remaining), PublishedAt: fromInstant(r.PublishedAt),
	}
}

func readEventPayloads(ctx context.Context, q *dbsqlc.Queries, events []outbox.EventView) error {
	ids := make([]uuid.UUID, len(events))
	at := make(map[uuid.UUID]*outbox.EventView, len(events))
	for i := range events {
		ids[i], at[events[i].ID] = events[i].ID, &events[i]
	}
	rows, err := q.EventPayloads(ctx, ids)
	for _, r := range rows {
		at[r.ID].Data = r.Payload
	}
	return wrap("read payloads of events", err)
}
