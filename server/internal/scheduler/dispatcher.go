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
	rounds uint64
	lookup time.Time // when polls were last looked up; monotonic
	wg     sync.WaitGroup
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
	d.mu.Lock()
	d.hinted = true
	d.mu.Unlock()
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
	d.mu.Lock()
	if p.onlyOnce || p.session == nil || !d.isQuiet(p.session) {
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
	next := lookAtLeast
	for {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			d.wg.Wait()
			return
		case <-d.wake:
			timer.Stop()
		case <-timer.C:
			d.polls.unblock()
			d.mu.Lock()
			d.hinted = true
			d.mu.Unlock()
		}
		next = d.work(ctx)
	}
}

// work makes rounds while there is something to do, and returns when to look again.
func (d *dispatcher) work(ctx context.Context) time.Duration {
	limited, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	pauseForLookup, err := d.lookUp(limited)
	if err == nil {
		var again time.Duration
		again, err = d.claimRounds(limited)
		pauseForLookup = min(pauseForLookup, again)
	}
	if err == nil {
		return pauseForLookup
	}
	if ctx.Err() == nil {
		d.log.Warn("dispatch round failed", "error", err)
	}
	return errorPause
}

// lookUp looks new polls up, all together and twice a second at most: whether their sessions
// are current, and whether their request ids were answered before.
func (d *dispatcher) lookUp(ctx context.Context) (again time.Duration, err error) {
	fresh := d.polls.fresh(lookupLimit)
	if len(fresh) == 0 {
		return lookAtLeast, nil
	}
	if since := stopwatch().Sub(d.lookup); since < lookupInterval {
		return lookupInterval - since, nil
	}
	d.lookup = stopwatch()
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

// know notes that a poll's session is current.
func (r *registry) know(p *parkedPoll, w WorkerState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[p.WorkerID]
	if s == nil || s.id != p.SessionID {
		s = newSessionInfo(p.SessionID, w)
		r.sessions[p.WorkerID] = s
	}
	p.session, p.fresh = s, false
}

// claimRounds claims and dispatches while that gives work out, then finds when to look again.
func (d *dispatcher) claimRounds(ctx context.Context) (time.Duration, error) {
	for ctx.Err() == nil {
		d.mu.Lock()
		hinted := d.hinted
		d.hinted = false
		d.mu.Unlock()
		if !hinted {
			return lookAtLeast, nil
		}
		again, err := d.round(ctx)
		if err != nil {
			d.mu.Lock()
			d.hinted = true
			d.mu.Unlock()
			return 0, err
		}
		if again == 0 {
			d.mu.Lock()
			d.hinted = true
			d.mu.Unlock()
			continue
		}
		if again < lookAtLeast { // due soon: the timer sets the hint
			return again, nil
		}
	}
	return lookAtLeast, nil
}

// round is claim, place, dispatch; deliveries go on by themselves. It returns 0 when another
// round may give more out at once.
func (d *dispatcher) round(ctx context.Context) (again time.Duration, err error) {
	d.rounds++
	polls, offers := d.polls.offers(d.rounds, d.maxBytes, offerLimit)
	if len(offers) == 0 {
		d.answerOnce(polls)
		return lookAtLeast, nil
	}
	wait, due, err := d.look(ctx)
	if err != nil || !due {
		d.answerOnce(polls)
		return wait, err
	}
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
	case left > 0 && granted == 0:
		return leftoverPause, nil
	case granted > 0:
		return 0, nil
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
			return 0, 0, err // the claim ends by itself
		}
	}
	d.freeRest(ctx, claim, claimed, items, done)
	d.deliverAll(held, placed, items, done, polls)
	for _, key := range done.Answered {
		d.polls.recheckKey(key)
	}
	return len(done.Granted), len(items) - len(done.Granted) - done.Dropped, nil
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
			p.full = true
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

// recheckKey makes a poll be looked up: its request id was answered before.
func (r *registry) recheckKey(key PollKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byKey[PollKey{WorkerID: key.WorkerID, RequestID: key.RequestID}]; p != nil {
		p.fresh = true
	}
}
