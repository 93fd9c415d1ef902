package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

var _ outbox.Source = (*Outbox)(nil)

// Outbox is the store as the relay sees it.
type Outbox struct{ store *Store }

// Outbox is where the store's events wait.
func (s *Store) Outbox() *Outbox { return &Outbox{s} }

// Claim claims heads that are due; what they lead is looked at in a later statement.
func (o *Outbox) Claim(ctx context.Context, c outbox.Claim) ([]outbox.Run, error) {
	var runs []outbox.Run
	err := o.store.tx(ctx, "claim events", func(ctx context.Context, t *txn) error {
		runs = nil
		heads, err := t.q.ClaimHeads(ctx, dbsqlc.ClaimHeadsParams{ClaimID: c.ID, ClaimDuration: interval(c.Expires), Heads: int32(c.Heads)})
		if err != nil {
			return fmt.Errorf("claim heads: %w", err)
		}
		if len(heads) == 0 {
			return nil
		}
		p := dbsqlc.StartPublishingParams{ClaimID: c.ID, ClaimDuration: interval(c.Expires), Events: int32(c.Events)}
		next := make(map[uuid.UUID]int64, len(heads))
		for _, h := range heads {
			p.AggregateIds = append(p.AggregateIds, h.AggregateID)
			p.Sequences = append(p.Sequences, h.NextSequence)
			next[h.AggregateID] = h.NextSequence
		}
		rows, err := t.q.StartPublishing(ctx, p)
		if err != nil {
			return fmt.Errorf("start publishing: %w", err)
		}
		runs, err = runsOf(c.ID, next, rows)
		return err
	})
	return runs, err
}

// runsOf puts claimed events in order, each aggregate's from its first unsettled one up to the
// first hole. A head without a run is settled with an empty one, which puts it right.
func runsOf(claim uuid.UUID, next map[uuid.UUID]int64, rows []dbsqlc.StartPublishingRow) ([]outbox.Run, error) {
	slices.SortFunc(rows, func(a, b dbsqlc.StartPublishingRow) int { return int(a.Sequence - b.Sequence) })
	runs := make(map[uuid.UUID]*outbox.Run, len(next))
	for id := range next {
		runs[id] = &outbox.Run{Claim: claim, AggregateID: id, From: next[id]}
	}
	for i := range rows {
		r := &rows[i]
		run := runs[r.AggregateID]
		run.Claimed = append(run.Claimed, r.ID)
		if r.Sequence != run.From+int64(len(run.Events)) {
			continue // behind a hole
		}
		trace, err := fromJSONMap(r.TraceContext)
		if err != nil {
			return nil, err
		}
		run.Events = append(run.Events, outbox.Event{
			ID: r.ID, Namespace: r.Namespace, AggregateID: r.AggregateID, Type: r.EventType, Sequence: r.Sequence,
			Data: r.Payload, CreatedAt: r.CreatedAt.Time.UTC(), Attempts: int(r.Attempts), TraceContext: trace,
		})
	}
	list := make([]outbox.Run, 0, len(runs))
	for _, run := range runs {
		list = append(list, *run)
	}
	return list, nil
}

// Settle writes what came of claimed runs, those whose claim is still ours.
func (o *Outbox) Settle(ctx context.Context, results []outbox.RunResult) (lost int, err error) {
	err = o.store.tx(ctx, "settle events", func(ctx context.Context, t *txn) error {
		var lock dbsqlc.LockClaimedHeadsParams
		for _, r := range results {
			lock.AggregateIds = append(lock.AggregateIds, r.Run.AggregateID)
			lock.ClaimIds = append(lock.ClaimIds, r.Run.Claim)
		}
		heads, err := t.q.LockClaimedHeads(ctx, lock)
		if err != nil {
			return fmt.Errorf("lock heads: %w", err)
		}
		ours := make(map[uuid.UUID]uuid.UUID, len(heads))
		for _, h := range heads {
			ours[h.AggregateID] = h.ClaimID.UUID
		}
		var events dbsqlc.SettleEventsParams
		var left dbsqlc.FirstUnsettledParams
		lost = 0
		for _, r := range results {
			if ours[r.Run.AggregateID] != r.Run.Claim {
				lost++
				continue
			}
			addSettled(&events, r)
			left.AggregateIds = append(left.AggregateIds, r.Run.AggregateID)
			left.Sequences = append(left.Sequences, r.Run.From)
		}
		if t.again { // an earlier try may have settled them: the claim is gone then
			lost = 0
		}
		return t.settle(ctx, events, left)
	})
	return lost, err
}

// addSettled adds what becomes of a run's events.
func addSettled(p *dbsqlc.SettleEventsParams, r outbox.RunResult) {
	for _, e := range r.Settled() {
		p.Ids = append(p.Ids, e.ID)
		p.ClaimIds = append(p.ClaimIds, r.Run.Claim)
		p.Statuses = append(p.Statuses, string(e.Status))
		p.LastErrors = append(p.LastErrors, e.Reason)
		p.Tries = append(p.Tries, int32(e.Tries))
		p.Pauses = append(p.Pauses, interval(e.Pause))
	}
}

// settle writes events, then looks what is left of their aggregates, and moves or removes the
// heads. Writers of further events wait for the head, and make a removed one anew.
func (t *txn) settle(ctx context.Context, events dbsqlc.SettleEventsParams, left dbsqlc.FirstUnsettledParams) error {
	if len(left.AggregateIds) == 0 {
		return nil
	}
	if n, err := t.q.SettleEvents(ctx, events); err != nil {
		return fmt.Errorf("settle events: %w", err)
	} else if int(n) != len(events.Ids) {
		return fmt.Errorf("%w: %d of %d events", errStale, n, len(events.Ids))
	}
	return t.moveHeads(ctx, left)
}

// moveHeads puts heads that are locked right: due with their first unsettled event, infinitely
// far behind a dead one, and gone when nothing is left.
func (t *txn) moveHeads(ctx context.Context, left dbsqlc.FirstUnsettledParams) error {
	rows, err := t.q.FirstUnsettled(ctx, left)
	if err != nil {
		return fmt.Errorf("look what is left: %w", err)
	}
	var move dbsqlc.MoveHeadsParams
	settled := setOf(left.AggregateIds)
	for _, r := range rows {
		delete(settled, r.AggregateID)
		move.AggregateIds = append(move.AggregateIds, r.AggregateID)
		move.Sequences = append(move.Sequences, r.Sequence)
		move.Deads = append(move.Deads, outbox.Status(r.Status) == outbox.Dead)
		move.AvailableAts = append(move.AvailableAts, r.AvailableAt)
	}
	if len(move.AggregateIds) > 0 {
		if err := t.q.MoveHeads(ctx, move); err != nil {
			return fmt.Errorf("move heads: %w", err)
		}
	}
	if len(settled) == 0 {
		return nil
	}
	return wrap("delete heads", t.q.DeleteHeads(ctx, settled.ids()))
}

// NextDue is how long until a head is due.
func (o *Outbox) NextDue(ctx context.Context) (time.Duration, bool, error) {
	remaining, err := o.store.reads.NextHeadDue(ctx)
	return fromInterval(remaining), remaining.Valid, outwardOrNil(ctx, "next event due", err)
}
