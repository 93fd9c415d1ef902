package scheduler

import (
	"context"
	"time"
)

// Poll waits for leases. No work by the end of the wait, or about a second before the call's
// own deadline, or when the server stops: an empty answer.
func (s *Scheduler) Poll(ctx context.Context, poll Poll) (PollAnswer, error) {
	s.presence.seen(poll.WorkerID)
	return s.dispatcher.poll(ctx, poll)
}

func (d *dispatcher) poll(ctx context.Context, poll Poll) (PollAnswer, error) {
	p := &parkedPoll{Poll: poll, answer: make(chan pollResult, 1), onlyOnce: poll.Wait <= 0}
	if err := d.polls.park(p); err != nil {
		return PollAnswer{}, err
	}
	defer d.polls.leave(p)
	d.arrived(p)
	timer := time.NewTimer(patience(ctx, poll.Wait))
	defer timer.Stop()
	var r pollResult
	select {
	case r = <-p.answer:
	case <-timer.C:
		r = d.endWait(ctx, p)
	case <-ctx.Done():
		r = d.giveUp(p)
	}
	if ctx.Err() != nil { // nobody is there to hear it
		d.handBack(r.Leases)
		return PollAnswer{}, ctx.Err()
	}
	return r.PollAnswer, r.err
}

// endWait ends a poll whose time is over. Grants that are committed and on their way are awaited a
// little longer: now they would only go back, and where the store is slow that would go on for ever.
func (d *dispatcher) endWait(ctx context.Context, p *parkedPoll) pollResult {
	if !d.polls.isGranted(p) {
		return d.giveUp(p)
	}
	timer := time.NewTimer(deliveryMargin)
	defer timer.Stop()
	select {
	case r := <-p.answer:
		return r
	case <-timer.C:
	case <-ctx.Done():
	}
	return d.giveUp(p)
}

// giveUp ends a poll's wait: empty, unless an answer is on its way already.
func (d *dispatcher) giveUp(p *parkedPoll) pollResult {
	if p.state.CompareAndSwap(pollParked, pollGone) {
		return pollResult{}
	}
	return <-p.answer
}

const (
	deadlineMargin = time.Second // an empty answer leaves before the call's own deadline
	deliveryMargin = deadlineMargin / 2
	onceLimit      = 2 * time.Second // for a poll that does not wait: the store may be slow or away
)

// patience is how long a poll waits: a poll without a wait is answered by the round that saw it.
func patience(ctx context.Context, d time.Duration) time.Duration {
	if d <= 0 {
		d = onceLimit
	}
	if deadline, limited := ctx.Deadline(); limited {
		left := time.Until(deadline)
		d = min(d, max(left-deadlineMargin, left/2))
	}
	return d
}
