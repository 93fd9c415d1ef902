package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasehold/leasehold/server/internal/task"
)

// round is look, claim, place, dispatch; deliveries go on by themselves. It returns 0 when
// another round may give more out at once, else when to look again.
func (d *dispatcher) round(ctx context.Context) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	began, did := stopwatch(), Round{}
	defer func() {
		did.Took, did.Err = stopwatch().Sub(began), err
		d.rounds.Round(did)
	}()
	round := d.polls.beginRound()
	due, again, err := d.lookUnlessMore(ctx)
	if err != nil {
		return 0, err
	}
	polls, offers, cut := d.polls.offers(due, d.maxBytes, d.width)
	var gave given
	if len(offers) > 0 {
		if gave, err = d.give(ctx, polls, offers, &did); err != nil {
			return 0, err
		}
	}
	d.polls.answerOnce(round)
	short := cut && (gave.full || gave.leftOut)
	d.width = narrow
	if short {
		d.width = min(len(polls)*widening, offerLimit)
	}
	switch {
	case did.Granted > 0 || gave.dropped > 0 || short:
		return 0, nil
	case did.Left > 0:
		return leftoverPause, nil
	default:
		return again, nil
	}
}

// given is what came of offers, beside what was granted.
type given struct {
	dropped int
	full    bool // the claim got as much as there is room for: others have room for more
	leftOut bool // some polls are left out of the next round
}

// give claims for offers, and dispatches what can be placed. It notes what the round did.
func (d *dispatcher) give(ctx context.Context, polls []*parkedPoll, offers []task.Offer, did *Round) (gave given, err error) {
	ctx, end := d.tracer.Root(ctx, "dispatch round") // not for one that looks in vain
	defer func() {
		end(err, slog.Int("claimed", did.Claimed), slog.Int("granted", did.Granted), slog.Int("left", did.Left))
	}()
	claim := newID()
	command := ClaimCommand{ClaimID: claim, Offers: offers, Limit: roundLimit, Expires: claimExpires}
	claimed, err := d.store.Claim(ctx, command)
	if err != nil {
		return gave, err
	}
	did.Claimed = len(claimed.Requests)
	more := fullOf(command, claimed)
	_, endPlace := d.tracer.Child(ctx, "place")
	placed := withinBytes(claimed.Requests, task.Place(claimed.Requests, offers, claimed.Free))
	endPlace(nil, slog.Int("placed", len(placed)))
	done, err := d.dispatch(ctx, claim, claimed, placed, polls)
	if err != nil {
		return gave, err
	}
	did.Granted = len(done.Granted)
	did.Left = len(placed) - did.Granted - done.Dropped
	if did.Granted > 0 {
		d.more = more
	}
	leftOut := d.leaveOut(polls, offers, claimed, did.Granted)
	return given{dropped: done.Dropped, full: more != nil, leftOut: leftOut}, nil
}

// fullOf are the groups of a claim that got as much as the polls have room for that can take of it.
func fullOf(c ClaimCommand, claimed Claimed) map[task.Need]bool {
	groups := map[task.Need]bool{}
	for i := range claimed.Requests {
		r := &claimed.Requests[i]
		groups[task.Need{Namespace: r.Namespace, Capability: r.Capability, Node: r.Node}] = true
	}
	able := ClaimCommand{}
	for _, o := range c.Offers {
		reach := task.Reach{Namespace: o.Namespace, Node: o.Node, Capabilities: o.Capabilities}
		for g := range groups {
			if reach.Hinders(g) == task.NotHindered {
				able.Offers = append(able.Offers, o)
				break
			}
		}
	}
	if _, total := able.Rooms(claimed.Free); len(claimed.Requests) < min(total, c.Limit) {
		return nil
	}
	return groups
}

// withinBytes bounds what the answers of a round weigh together in memory, one at least.
func withinBytes(requests []task.Waiting, placed []task.Assignment) []task.Assignment {
	bytes := 0
	for i, a := range placed {
		if bytes += requests[a.Waiting].AnswerBytes; bytes > roundBytes && i > 0 {
			return placed[:i]
		}
	}
	return placed
}

// leaveOut notes polls that cannot take anything now, until something changes: those whose
// worker has no free slot, and all that were offered when nothing of a claim could be placed. It
// tells whether there are any.
func (d *dispatcher) leaveOut(polls []*parkedPoll, offers []task.Offer, claimed Claimed, granted int) bool {
	var out []*parkedPoll
	for i, p := range polls {
		if claimed.Free[offers[i].WorkerID] <= 0 || granted == 0 && len(claimed.Requests) > 0 {
			out = append(out, p)
		}
	}
	if !d.polls.leaveOut(out) {
		d.expectWork() // slots became free since they were counted
		return false
	}
	return len(out) > 0
}
