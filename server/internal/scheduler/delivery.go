package scheduler

import (
	"context"
	"log/slog"
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
	byPoll := map[*parkedPoll][]uuid.UUID{}
	var all []uuid.UUID
	d.polls.mu.Lock()
	for i, a := range placed {
		if !done.Granted[items[i].AttemptID] {
			continue
		}
		p := polls[a.Offer]
		p.granted = true
		byPoll[p] = append(byPoll[p], items[i].AttemptID)
		all = append(all, items[i].AttemptID)
	}
	d.polls.mu.Unlock()
	if len(all) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	d.beside.run(func() { d.deliver(ctx, began, all, byPoll) })
}

// deliver reads what the workers get, and answers their polls. It has a time of its own: what
// is committed is delivered even while the server stops.
func (d *dispatcher) deliver(ctx context.Context, began time.Time, all []uuid.UUID, byPoll map[*parkedPoll][]uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	ctx, end := d.tracer.Child(ctx, "deliver")
	views, err := d.contents(ctx, all)
	defer func() { end(err, slog.Int("leases", len(views))) }()
	if err != nil {
		d.log.Warn("grants were not delivered; repeats of the polls get them", "grants", len(all), "error", err)
		for p := range byPoll {
			p.finish(pollResult{err: &UnavailableError{Cause: err, RetryAfter: time.Second}})
		}
		return
	}
	of := make(map[uuid.UUID]*parkedPoll, len(all))
	for p, ids := range byPoll {
		for _, id := range ids {
			of[id] = p
		}
	}
	leases := map[*parkedPoll][]LeaseView{}
	for _, v := range views {
		p := of[v.AttemptID]
		leases[p] = append(leases[p], v)
		d.traceLease(ctx, &v)
	}
	for p := range byPoll {
		d.hand(p, leases[p], began)
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

// contents reads leases, again if the store is away for a moment.
func (d *dispatcher) contents(ctx context.Context, ids []uuid.UUID) ([]LeaseView, error) {
	for {
		views, err := d.store.Contents(ctx, ids)
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
	d.polls.mu.Lock()
	busy := p.granted
	p.granted, p.fresh = true, false
	d.polls.mu.Unlock()
	if busy {
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
