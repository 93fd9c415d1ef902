package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
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
	freeTimeout    = 3 * time.Second
	roundBytes     = 64 << 20 // of a round's answers in memory
	errorPause     = 250 * time.Millisecond
	answerReserve  = 64 << 10 // bytes of an answer that are not leases
	fewGroups      = 100      // a claim looks for as many by itself
	narrow         = 32       // polls of a group that a round offers at first
	widening       = 4        // times as many in the next one, if those were too few
)

// dispatcher is the one that claims for all parked polls of a replica, in rounds. A thousand
// parked polls make one claim a round; work is never taken beyond the free slots parked here.
type dispatcher struct {
	store    dispatchStore
	presence *presence
	log      *slog.Logger
	polls    *registry
	maxBytes int

	tell     func(...Hint) // this replica and the others
	observer Observer
	rounds   DispatchObserver
	tracer   Tracer

	wake   chan struct{}
	mu     sync.Mutex
	hinted bool           // something may be due
	quiet  map[Group]bool // groups of which nothing is due before the next look
	beside background

	// Of the loop alone; monotonic.
	lookedAt time.Time          // when polls were last looked up
	sawAt    time.Time          // when it was last looked what is due
	more     map[task.Need]bool // groups of which a claim came back full: there is more
	width    int                // polls of a group that the next round offers

	ours atomic.Bool // this replica has just committed something that is due
}

type dispatchStore interface {
	DispatchStore
	DeliveryStore
}

func newDispatcher(store dispatchStore, p *presence, log *slog.Logger, limit, maxMessage int) *dispatcher {
	return &dispatcher{
		store: store, presence: p, log: log, polls: newRegistry(limit),
		maxBytes: max(maxMessage-answerReserve, maxMessage/2), wake: make(chan struct{}, 1), quiet: map[Group]bool{}, width: narrow,
		observer: nobody{}, rounds: nobody{}, tracer: untraced{},
	}
}

// hearOwn takes a hint of this replica's own in.
func (d *dispatcher) hearOwn(h Hint) {
	if h == HintWork {
		d.ours.Store(true)
	}
	d.hear(h)
}

// hear takes a hint in.
func (d *dispatcher) hear(h Hint) {
	switch h {
	case HintSession:
		d.polls.recheck()
	case HintSlots:
		if !d.polls.unblock() {
			return // nobody waits for a slot
		}
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
	for _, g := range s.groups {
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
			d.beside.end()
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
// when to look polls up again. Polls are looked up between the rounds: a backlog keeps no
// repeat and no superseded session waiting.
func (d *dispatcher) work(ctx context.Context, planned time.Duration) (look, lookup time.Duration) {
	for ctx.Err() == nil {
		lookup, err := d.lookUp(ctx)
		if err == nil {
			if !d.takeHint() {
				d.observer.Looped(LoopDispatcher)
				return planned, lookup
			}
			planned, err = d.round(ctx)
		}
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("dispatch round failed", "error", err)
			}
			d.expectWork()
			wait(ctx, errorPause)
			continue
		}
		d.observer.Looped(LoopDispatcher)
		if planned == 0 {
			planned = lookAtLeast
			d.expectWork()
		}
	}
	return lookAtLeast, lookAtLeast
}

func (d *dispatcher) takeHint() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	hinted := d.hinted
	d.hinted = false
	return hinted
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
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
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
	case len(st.Live) > 0: // a drain takes no grant back
		d.replay(p, st.Live)
	case st.Worker.Draining:
		p.finish(pollResult{PollAnswer: PollAnswer{Draining: true}})
	case st.Answered: // and what it was granted is over
		p.finish(pollResult{})
	default:
		d.polls.know(p, st.Worker)
		d.arrived(p)
	}
}

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

// lookUnlessMore looks, unless the last claim of what the polls can serve came back full, or this
// replica has work of its own: the next claim then offers all groups, and finds by
// itself of which something is due. So no more than a second passes between two looks, and a claim
// that brings nothing is followed by one at once.
func (d *dispatcher) lookUnlessMore(ctx context.Context) (due map[Group]bool, again time.Duration, err error) {
	groups := d.polls.groups()
	if len(groups) == 0 {
		return nil, lookAtLeast, nil
	}
	ours := d.ours.Swap(false)
	more := ours || slices.ContainsFunc(groups, func(g Group) bool { return d.more[task.Need(g)] })
	if !more && len(d.more) > 0 {
		return d.look(ctx, groups) // others than those of which there is more
	}
	d.more = nil
	if !more || len(groups) > fewGroups || stopwatch().Sub(d.sawAt) >= lookAtLeast {
		d.sawAt = stopwatch()
		return d.look(ctx, groups)
	}
	due = make(map[Group]bool, len(groups))
	for _, g := range groups {
		due[g] = true
	}
	return due, 0, nil
}

// look asks of which groups something is due for the parked polls, and remembers those that
// are quiet until the next look.
func (d *dispatcher) look(ctx context.Context, groups []Group) (due map[Group]bool, again time.Duration, err error) {
	waiting, err := d.store.NextDue(ctx, groups)
	if err != nil {
		return nil, 0, err
	}
	again = lookAtLeast
	due = map[Group]bool{}
	for _, w := range waiting {
		if w.In <= 0 {
			due[w.Group] = true
		} else {
			again = min(again, max(w.In, time.Millisecond))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.hinted { // else something may have come since
		clear(d.quiet)
		for _, g := range groups {
			d.quiet[g] = !due[g]
		}
	}
	return due, again, nil
}

// dispatch grants what was placed, gives the rest of the claim back, and starts the deliveries.
func (d *dispatcher) dispatch(ctx context.Context, claim uuid.UUID, claimed Claimed, placed []task.Assignment, polls []*parkedPoll) (done Dispatched, err error) {
	items := make([]DispatchItem, len(placed))
	held := stopwatch()
	if len(placed) > 0 {
		for i, a := range placed {
			p, r := polls[a.Offer], claimed.Requests[a.Waiting]
			items[i] = DispatchItem{
				Waiting: r, AttemptID: newID(), WorkerID: p.WorkerID,
				SessionID: p.SessionID, RequestID: p.RequestID, Duration: p.Duration,
			}
		}
		if done, err = d.store.Dispatch(ctx, DispatchCommand{ClaimID: claim, Items: items}); err != nil {
			d.lost(ctx, claim, items, polls, placed)
			return Dispatched{}, err
		}
	}
	for _, waited := range done.Waited {
		d.rounds.Leased(waited)
	}
	d.freeRest(ctx, claim, claimed, items, done)
	d.deliverAll(ctx, held, placed, items, done, polls)
	if len(done.Granted) > 0 {
		d.tell(HintChange)
	}
	d.polls.putLast(notGranted(placed, items, done, polls))
	for _, key := range done.Answered {
		d.polls.recheckKey(key)
	}
	return done, nil
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

// lost deals with a dispatch of which nobody knows: what it did not grant is given back, if
// the store can be reached; otherwise the claim ends by itself. What it granted is found when
// the polls are looked up.
func (d *dispatcher) lost(ctx context.Context, claim uuid.UUID, items []DispatchItem, polls []*parkedPoll, placed []task.Assignment) {
	for _, a := range placed {
		d.polls.doubt(polls[a.Offer])
	}
	steps := make([]uuid.UUID, len(items))
	for i, it := range items {
		steps[i] = it.StepID
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	if err := d.store.Free(ctx, claim, steps); err != nil && ctx.Err() == nil {
		d.log.Warn("claims were not given back; they end by themselves", "claims", len(steps), "error", err)
	}
}
