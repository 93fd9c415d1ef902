package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// Outbox is the store as the relay sees it.
type Outbox struct{ s *Store }

// Outbox is where the store's events wait.
func (s *Store) Outbox() *Outbox { return &Outbox{s} }

// Claim claims heads that are due, the longest due first, and the events that they lead.
func (o *Outbox) Claim(ctx context.Context, c outbox.Claim) (runs []outbox.Run, err error) {
	err = o.s.tx(ctx, "claim events", func(t *txn) error {
		due := sorted(t.heads, func(h head) bool {
			return !h.dead && !h.availableAt.After(t.at) && (!h.claims.After(t.at) || h.claim == c.ID)
		})
		slices.SortStableFunc(due, func(a, b uuid.UUID) int { return t.heads[a].availableAt.Compare(t.heads[b].availableAt) })
		for _, id := range due[:min(len(due), c.Heads)] {
			runs = append(runs, t.claimRun(id, c))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return runs, nil
}

// claimRun claims the first unsettled events of an execution. Those behind a hole are claimed
// too, and not to be published now.
func (t *txn) claimRun(id uuid.UUID, c outbox.Claim) outbox.Run {
	h := t.heads[id]
	h.claim, h.claims = c.ID, t.at.Add(c.Expires)
	put(t, t.heads, id, h)
	run := outbox.Run{Claim: c.ID, AggregateID: id, From: h.next}
	whole := true
	for seq := h.next; seq < h.next+int64(c.Events); seq++ {
		k := eventKey{id, seq}
		e, there := t.events[k]
		if !there || e.status == outbox.Published || e.status == outbox.Dead || e.status == outbox.Skipped {
			whole = false
			continue
		}
		e.status, e.claim = outbox.Publishing, c.ID
		put(t, t.events, k, e)
		run.Claimed = append(run.Claimed, e.ID)
		if whole {
			run.Events = append(run.Events, e.Event)
		}
	}
	return run
}

// Settle writes what came of claimed runs, those whose claim is still ours.
func (o *Outbox) Settle(ctx context.Context, results []outbox.RunResult) (lost int, err error) {
	err = o.s.tx(ctx, "settle events", func(t *txn) error {
		for i := range results {
			r := &results[i]
			if h, there := t.heads[r.Run.AggregateID]; !there || h.claim != r.Run.Claim {
				lost++
				continue
			}
			if err := t.settleEvents(r); err != nil {
				return err
			}
			t.moveHead(r.Run.AggregateID)
		}
		return nil
	})
	return lost, err
}

func (t *txn) settleEvents(r *outbox.RunResult) error {
	of := map[uuid.UUID]outbox.Settled{}
	for _, s := range r.Settled() {
		of[s.ID] = s
	}
	for seq := r.Run.From; len(of) > 0; seq++ {
		k := eventKey{r.Run.AggregateID, seq}
		e, there := t.events[k]
		if !there {
			return fmt.Errorf("settle %d events of execution %s: %w", len(of), r.Run.AggregateID, errStale)
		}
		s, settled := of[e.ID]
		if !settled {
			continue
		}
		if e.claim != r.Run.Claim || e.status != outbox.Publishing {
			return fmt.Errorf("settle event %s: %w", e.ID, errStale)
		}
		delete(of, e.ID)
		e.status, e.claim, e.availableAt = s.Status, uuid.Nil, t.at.Add(s.Pause)
		e.Attempts += s.Tries
		put(t, t.events, k, e)
	}
	return nil
}

// moveHead puts a head right: due with its first unsettled event, never behind a dead one, and
// gone when nothing is left.
func (t *txn) moveHead(id uuid.UUID) {
	for seq := t.heads[id].next; ; seq++ {
		e, there := t.events[eventKey{id, seq}]
		switch {
		case !there:
			drop(t, t.heads, id)
			return
		case e.status == outbox.Published || e.status == outbox.Skipped:
			continue
		}
		put(t, t.heads, id, head{next: seq, dead: e.status == outbox.Dead, availableAt: e.availableAt})
		return
	}
}

// NextDue is how long until a head is due.
func (o *Outbox) NextDue(context.Context) (wait time.Duration, ok bool, err error) {
	o.s.read(func(t *txn) {
		for _, h := range t.heads {
			if h.dead {
				continue
			}
			in := max(h.availableAt.Sub(t.at), h.claims.Sub(t.at))
			if !ok || in < wait {
				wait, ok = in, true
			}
		}
	})
	return wait, ok, nil
}
