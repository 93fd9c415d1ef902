package scheduler

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	deliverTimeout = 10 * time.Second
	returnTries    = 3
)

// deliverAll starts the deliveries of a dispatch: the next round does not wait for them.
func (d *dispatcher) deliverAll(ctx context.Context, began time.Time, placed []task.Assignment, items []DispatchItem, done Dispatched, polls []*parkedPoll) {
	known := make(map[uuid.UUID]bool, len(done.Leases))
	for i := range done.Leases {
		known[done.Leases[i].AttemptID] = true
	}
	g := grants{leases: done.Leases, filled: done.Filled, of: map[uuid.UUID]*parkedPoll{}}
	for i, a := range placed {
		attempt := items[i].AttemptID
		if !done.Granted[attempt] {
			continue
		}
		g.of[attempt] = polls[a.Offer]
		if !known[attempt] {
			g.found = append(g.found, attempt)
		}
	}
	d.polls.grant(slices.Collect(maps.Values(g.of))...)
	if len(g.of) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	d.beside.run(func() { d.deliver(ctx, began, g) })
}

// grants are what a dispatch has granted.
type grants struct {
	leases []LeaseView
	filled bool                      // those have their payloads
	found  []uuid.UUID               // attempts that an earlier try of it had made: nothing else is known of them
	of     map[uuid.UUID]*parkedPoll // by attempt
}

// deliver reads what the workers get, and answers their polls. It has a time of its own: what
// is committed is delivered even while the server stops.
func (d *dispatcher) deliver(ctx context.Context, began time.Time, g grants) {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	ctx, end := d.tracer.Child(ctx, "deliver")
	views, err := d.contents(ctx, g)
	defer func() { end(err, slog.Int("leases", len(views))) }()
	leases := map[*parkedPoll][]LeaseView{}
	for _, p := range g.of {
		leases[p] = nil
	}
	if err != nil {
		d.log.Warn("grants were not delivered; repeats of the polls get them", "grants", len(g.of), "error", err)
		for p := range leases {
			p.finish(pollResult{err: &UnavailableError{Cause: err, RetryAfter: time.Second}})
		}
		return
	}
	for i := range views {
		p := g.of[views[i].AttemptID]
		leases[p] = append(leases[p], views[i])
		d.traceLease(ctx, &views[i])
	}
	for p, list := range leases {
		d.hand(p, list, began)
	}
}

// traceLease leaves a span in the producer's own trace, if it sent one: its step was leased.
func (d *dispatcher) traceLease(ctx context.Context, v *LeaseView) {
	if len(v.TraceContext) == 0 {
		return
	}
	_, end := d.tracer.Continue(ctx, v.TraceContext, "lease")
	end(nil, slog.String("execution_id", v.ExecutionID.String()), slog.String("step", v.StepName),
		slog.Int("attempt", v.AttemptNumber), slog.Int64("lease_version", v.LeaseVersion), slog.String("worker_id", v.WorkerID.String()))
}

// contents reads what leases bring, again if the store is away for a moment.
func (d *dispatcher) contents(ctx context.Context, g grants) ([]LeaseView, error) {
	for {
		views, err := g.leases, error(nil)
		if !g.filled {
			err = d.store.Fill(ctx, g.leases)
		}
		if err == nil && len(g.found) > 0 {
			var found []LeaseView
			found, err = d.store.Contents(ctx, g.found)
			views = append(found, views...)
		}
		if err == nil || !wait(ctx, errorPause) {
			return views, err
		}
	}
}

// hand answers a poll with its leases. If its caller is gone they are handed back; nothing is
// sent once that has begun.
func (d *dispatcher) hand(p *parkedPoll, leases []LeaseView, began time.Time) {
	answer := PollAnswer{Leases: leases, Held: max(began.Sub(p.Received), 0)}
	if !p.finish(pollResult{PollAnswer: answer}) {
		d.handBack(leases)
	}
}

// replay answers the repeat of a poll with the same live grants.
func (d *dispatcher) replay(p *parkedPoll, live []uuid.UUID) {
	if !d.polls.grant(p)[0] {
		return
	}
	d.beside.run(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deliverTimeout)
		defer cancel()
		began := stopwatch()
		leases, err := d.store.Replay(ctx, live)
		if err != nil {
			p.finish(pollResult{err: err})
			return
		}
		d.hand(p, leases, began)
	})
}

// firstDelivery is the number of a grant's own delivery; each replay raises it.
const firstDelivery = 1

// handBack gives grants back that reached nobody, by themselves and in the background. Once a
// poll has been replayed that cannot be proved any more: one delivery may have reached the
// worker although another found its caller gone. Such a lease ends by its own deadline.
func (d *dispatcher) handBack(leases []LeaseView) {
	var grants []Undelivered
	for i := range leases {
		if leases[i].Delivery == firstDelivery {
			grants = append(grants, Undelivered{AttemptID: leases[i].AttemptID, LeaseVersion: leases[i].LeaseVersion, Delivery: firstDelivery})
		}
	}
	if len(grants) == 0 {
		return
	}
	d.beside.run(func() {
		ctx, cancel := context.WithTimeout(context.Background(), deliverTimeout)
		defer cancel()
		for range returnTries {
			err := d.store.Return(ctx, grants)
			if err == nil {
				d.tell(HintSlots, HintWork, HintChange)
				return
			}
			d.log.Warn("undelivered grants were not handed back yet", "grants", len(grants), "error", err)
			if !wait(ctx, errorPause) {
				return
			}
		}
	})
}
