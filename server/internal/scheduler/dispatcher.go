package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	roundLimit     = 200                    // leases of one round: a transaction's locks stay few
	offerLimit     = 1000                   // polls of one round
	claimExpires   = 10 * time.Second       // of a claim whose replica died
	lookAtLeast    = time.Second            // a hint may be lost: nobody waits longer than that
	lookupInterval = 500 * time.Millisecond // new polls are looked up together
	lookupLimit    = 20_000
	leftoverPause  = 15 * time.Millisecond // until rows that others held are tried again
	roundTimeout   = 15 * time.Second
	errorPause     = 250 * time.Millisecond
	answerReserve  = 64 << 10 // bytes of an answer that are not leases
)

// dispatcher is the one that claims for all parked polls of a replica, in rounds. A thousand
// parked polls make one claim a round; work is never taken beyond the free slots parked here.
type dispatcher struct {
	store    dispatchStore
	presence *presence
	log      *slog.Logger
	polls    *registry
	maxBytes int

	wake   chan struct{}
	mu     sync.Mutex
	hinted bool           // something may be due
	quiet  map[Group]bool // groups of which nothing is due before the next look
	wg     sync.WaitGroup

	// Of the loop alone.
	backlog  bool      // the last round gave something out: claim without a look
	lookedAt time.Time // when polls were last looked up; monotonic
}

type dispatchStore interface {
	DispatchStore
	DeliveryStore
}

func newDispatcher(store dispatchStore, p *presence, log *slog.Logger, limit, maxMessage int) *dispatcher {
	return &dispatcher{
		store: store, presence: p, log: log, polls: newRegistry(limit),
		maxBytes: max(maxMessage-answerReserve, maxMessage/2), wake: make(chan struct{}, 1), quiet: map[Group]bool{},
	}
}

// hear takes a hint in.
func (d *dispatcher) hear(h Hint) {
	switch h {
	case HintSession:
		d.polls.recheck()
	case HintSlots:
		d.polls.unblock()
	case HintWork:
	}
	d.expectWork()
	d.ring()
}

func (d *dispatcher) learn(states map[uuid.UUID]WorkerState) {
	d.polls.learn(states)
	d.ring()
}

func (d *dispatcher) parkedWorkers() []uuid.UUID { return d.polls.workers() }

func (d *dispatcher) stop() { d.polls.stop() }

func (d *dispatcher) ring() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// arrived tells of a new poll. One that serves only what is known to be quiet needs no claim.
func (d *dispatcher) arrived(p *parkedPoll) {
	session := d.polls.sessionOf(p)
	d.mu.Lock()
	if session != nil && (p.onlyOnce || !d.isQuiet(session)) {
		d.hinted = true
	}
	d.mu.Unlock()
	d.ring()
}

func (d *dispatcher) isQuiet(s *sessionInfo) bool {
	groups := map[Group]bool{}
	addGroups(groups, s)
	for g := range groups {
		if !d.quiet[g] {
			return false
		}
	}
	return true
}

// run makes rounds until the context ends, and waits for what is being delivered.
func (d *dispatcher) run(ctx context.Context) {
	look, lookup := lookAtLeast, lookAtLeast // from now
	for {
		began := stopwatch()
		timer := time.NewTimer(min(look, lookup))
		select {
		case <-ctx.Done():
			timer.Stop()
			d.wg.Wait()
			return
		case <-d.wake:
			timer.Stop()
		case <-timer.C:
		}
		if look -= stopwatch().Sub(began); look <= 0 {
			look = lookAtLeast
			d.polls.unblock()
			d.expectWork()
		}
		look, lookup = d.work(ctx, look)
	}
}

// expectWork makes the next round look, and forgets what was quiet: while no poll is parked a
// hint changes nothing else, and the next poll must not rely on what was seen before it.
func (d *dispatcher) expectWork() {
	d.mu.Lock()
	d.hinted = true
	clear(d.quiet)
	d.mu.Unlock()
}

// work makes rounds while there is something to do, and returns when to look for due work and
// when to look polls up again.
func (d *dispatcher) work(ctx context.Context, planned time.Duration) (look, lookup time.Duration) {
	limited, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	lookup, err := d.lookUp(limited)
	if err == nil {
		look, err = d.claimRounds(limited, planned)
	}
	if err == nil {
		return look, lookup
	}
	if ctx.Err() == nil {
		d.log.Warn("dispatch round failed", "error", err)
	}
	d.expectWork()
	wait(ctx, errorPause)
	d.ring()
	return lookAtLeast, lookupInterval
}

// lookUp looks new polls up, all together and twice a second at most: whether their sessions
// are current, and whether their request ids were answered before.
func (d *dispatcher) lookUp(ctx context.Context) (again time.Duration, err error) {
	fresh := d.polls.fresh(lookupLimit)
	if len(fresh) == 0 {
		return lookAtLeast, nil
	}
	if since := stopwatch().Sub(d.lookedAt); since < lookupInterval {
		return lookupInterval - since, nil
	}
	d.lookedAt = stopwatch()
	keys := make([]PollKey, len(fresh))
	for i, p := range fresh {
		keys[i] = PollKey{WorkerID: p.WorkerID, SessionID: p.SessionID, RequestID: p.RequestID}
	}
	states, err := d.store.Lookup(ctx, keys)
	if err != nil {
		return 0, err
	}
	for i, p := range fresh {
		d.lookedUp(p, states[i])
	}
	return lookAtLeast, nil
}

func (d *dispatcher) lookedUp(p *parkedPoll, st PollState) {
	switch {
	case st.Err != nil:
		p.finish(pollResult{err: st.Err})
	case st.Worker.Draining:
		p.finish(pollResult{PollAnswer: PollAnswer{Draining: true}})
	case len(st.Live) > 0:
		d.replay(p, st.Live)
	case st.Answered: // and what it was granted is over
		p.finish(pollResult{})
	default:
		d.polls.know(p, st.Worker)
		d.arrived(p)
	}
}

// claimRounds claims and dispatches while that gives work out, then tells when to look again.
func (d *dispatcher) claimRounds(ctx context.Context, planned time.Duration) (time.Duration, error) {
	for ctx.Err() == nil {
		d.mu.Lock()
		hinted := d.hinted
		d.hinted = false
		d.mu.Unlock()
		if !hinted {
			return planned, nil
		}
		again, err := d.round(ctx)
		if err != nil {
			return 0, err
		}
		planned = again
		if again == 0 {
			planned = lookAtLeast
			d.expectWork()
		}
	}
	return planned, nil
}

// round is claim, place, dispatch; deliveries go on by themselves. It returns 0 when another
// round may give more out at once.
func (d *dispatcher) round(ctx context.Context) (again time.Duration, err error) {
	polls, offers := d.polls.offers(d.maxBytes, offerLimit)
	if len(offers) == 0 {
		return lookAtLeast, nil
	}
	if !d.backlog {
		wait, due, err := d.look(ctx)
		if err != nil {
			return 0, err
		}
		if !due {
			d.answerOnce(polls)
			return wait, nil
		}
	}
	d.backlog = false
	claim := newID()
	claimed, err := d.store.Claim(ctx, ClaimCommand{ClaimID: claim, Offers: offers, Limit: roundLimit, Expires: claimExpires})
	if err != nil {
		return 0, err
	}
	placed := task.Place(claimed.Requests, offers, claimed.Free)
	granted, left, err := d.dispatch(ctx, claim, claimed, placed, polls)
	if err != nil {
		return 0, err
	}
	d.leaveOut(polls, offers, claimed, granted)
	d.answerOnce(polls)
	switch {
	case granted > 0:
		d.backlog = true
		return 0, nil
	case left > 0:
		return leftoverPause, nil
	default:
		return lookAtLeast, nil
	}
}

// look asks whether anything is due for the parked polls, and remembers what is quiet.
func (d *dispatcher) look(ctx context.Context) (wait time.Duration, due bool, err error) {
	groups := d.polls.groups()
	remaining, any, err := d.store.NextDue(ctx, groups)
	if err != nil {
		return 0, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.quiet)
	if any && remaining <= 0 {
		return 0, true, nil
	}
	for _, g := range groups {
		d.quiet[g] = true
	}
	if any {
		return min(max(remaining, time.Millisecond), lookAtLeast), false, nil
	}
	return lookAtLeast, false, nil
}

// dispatch grants what was placed, gives the rest of the claim back, and starts the deliveries.
func (d *dispatcher) dispatch(ctx context.Context, claim uuid.UUID, claimed Claimed, placed []task.Assignment, polls []*parkedPoll) (granted, left int, err error) {
	done := Dispatched{Granted: map[uuid.UUID]bool{}}
	items := make([]DispatchItem, len(placed))
	held := stopwatch()
	if len(placed) > 0 {
		for i, a := range placed {
			p, r := polls[a.Offer], claimed.Requests[a.Waiting]
			items[i] = DispatchItem{
				StepID: r.StepID, Number: r.Number, AttemptID: newID(), WorkerID: p.WorkerID,
				SessionID: p.SessionID, RequestID: p.RequestID, Duration: p.Duration,
			}
		}
		if done, err = d.store.Dispatch(ctx, DispatchCommand{ClaimID: claim, Items: items}); err != nil {
			d.lost(ctx, claim, items, polls, placed)
			return 0, 0, err
		}
	}
	d.freeRest(ctx, claim, claimed, items, done)
	d.deliverAll(held, placed, items, done, polls)
	d.polls.putLast(notGranted(placed, items, done, polls))
	for _, key := range done.Answered {
		d.polls.recheckKey(key)
	}
	return len(done.Granted), len(items) - len(done.Granted) - done.Dropped, nil
}

// notGranted are the polls of which something that was placed was left: another transaction
// may hold their workers.
func notGranted(placed []task.Assignment, items []DispatchItem, done Dispatched, polls []*parkedPoll) map[*parkedPoll]bool {
	left := map[*parkedPoll]bool{}
	for i, a := range placed {
		if !done.Granted[items[i].AttemptID] {
			left[polls[a.Offer]] = true
		}
	}
	return left
}

// freeRest gives back what was claimed and not granted, so that others can take it at once.
func (d *dispatcher) freeRest(ctx context.Context, claim uuid.UUID, claimed Claimed, items []DispatchItem, done Dispatched) {
	given := make(map[uuid.UUID]bool, len(items))
	for _, it := range items {
		if done.Granted[it.AttemptID] {
			given[it.StepID] = true
		}
	}
	var rest []uuid.UUID
	for _, r := range claimed.Requests {
		if !given[r.StepID] {
			rest = append(rest, r.StepID)
		}
	}
	if len(rest) == 0 {
		return
	}
	if err := d.store.Free(ctx, claim, rest); err != nil && ctx.Err() == nil {
		d.log.Warn("claims were not given back; they end by themselves", "claims", len(rest), "error", err)
	}
}

// leaveOut notes polls that cannot take anything now, until something changes: those whose
// worker has no free slot, and all that were offered when nothing of a claim could be placed.
func (d *dispatcher) leaveOut(polls []*parkedPoll, offers []task.Offer, claimed Claimed, granted int) {
	d.polls.mu.Lock()
	defer d.polls.mu.Unlock()
	for i, p := range polls {
		if claimed.Free[offers[i].WorkerID] <= 0 || granted == 0 && len(claimed.Requests) > 0 {
			d.polls.leaveOut(p)
		}
	}
}

// answerOnce answers the polls that do not wait, once a round has seen them.
func (d *dispatcher) answerOnce(polls []*parkedPoll) {
	d.polls.mu.Lock()
	defer d.polls.mu.Unlock()
	for _, p := range polls {
		if p.onlyOnce && !p.granted && !p.fresh {
			p.finish(pollResult{})
		}
	}
}

// lost deals with a dispatch of which nobody knows: what it did not grant is given back, if
// the store can be reached; otherwise the claim ends by itself. What it granted is found when
// the polls are looked up.
func (d *dispatcher) lost(ctx context.Context, claim uuid.UUID, items []DispatchItem, polls []*parkedPoll, placed []task.Assignment) {
	d.polls.mu.Lock()
	for _, a := range placed {
		polls[a.Offer].fresh = true
	}
	d.polls.mu.Unlock()
	steps := make([]uuid.UUID, len(items))
	for i, it := range items {
		steps[i] = it.StepID
	}
	if err := d.store.Free(ctx, claim, steps); err != nil && ctx.Err() == nil {
		d.log.Warn("claims were not given back; they end by themselves", "claims", len(steps), "error", err)
	}
}
