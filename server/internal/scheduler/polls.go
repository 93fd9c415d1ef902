package scheduler

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// How a parked poll stands. Whoever moves it away from parked answers it.
const (
	pollParked int32 = iota
	pollAnswered
	pollGone // its caller left, or its wait ended
)

// parkedPoll is a poll that waits in memory. It holds no connection.
type parkedPoll struct {
	Poll
	state  atomic.Int32
	answer chan pollResult // has room for the one answer

	// The rest is under the registry's lock, and is changed by the registry alone.
	session  *sessionInfo // nil: not known here yet
	granted  bool         // a dispatch has leases for it
	full     bool         // its worker had no free slot, or nothing was placed: left out until something changes
	onlyOnce bool         // wait_timeout 0: answered after a round
	parkedIn uint64       // the round that was under way, or over, when it came
	counted  *reach       // among whose polls that take part it is; nil: it does not
}

type pollResult struct {
	PollAnswer
	err error
}

// sessionInfo is a session as last looked up: what placing needs of it.
type sessionInfo struct {
	*reach
	id    uuid.UUID
	state WorkerState
	used  time.Time // when a poll of it last came; monotonic
}

// keepSession is how long a session is remembered after its last poll: without it a poll is
// looked up before it can be served.
const keepSession = 10 * time.Minute

// finish answers a poll, if nobody has.
func (p *parkedPoll) finish(r pollResult) bool {
	if !p.state.CompareAndSwap(pollParked, pollAnswered) {
		return false
	}
	p.answer <- r
	return true
}

// registry holds the parked polls of a replica, in order of arrival. What a round asks of it costs
// no more where ten thousand polls wait than where ten do.
type registry struct {
	mu       sync.Mutex
	polls    pollSet
	order    []*parkedPoll // may hold polls that are gone: tidied when half of it is
	left     pollSet       // those that are left out
	unknown  pollSet       // not looked up since they came, or since their sessions may have changed
	once     pollSet       // those that do not wait
	byKey    map[PollKey]*parkedPoll
	sessions map[uuid.UUID]*sessionInfo // by worker: its current session, as last seen
	reaches  map[string]*reach          // by what they reach
	limit    int
	round    uint64
	freed    bool // since the round began slots became free
	stopped  bool
}

type pollSet map[*parkedPoll]struct{}

func newRegistry(limit int) *registry {
	return &registry{
		polls: pollSet{}, left: pollSet{}, unknown: pollSet{}, once: pollSet{}, byKey: map[PollKey]*parkedPoll{},
		sessions: map[uuid.UUID]*sessionInfo{}, reaches: map[string]*reach{}, limit: limit,
	}
}

// park takes a poll in. A repeat of a request id takes the place of the one before, which is
// answered empty.
func (r *registry) park(p *parkedPoll) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		p.finish(pollResult{})
		return nil
	}
	if len(r.polls) >= r.limit {
		return &ExhaustedError{
			Reason: ReasonTooManyPolls, Limit: r.limit, RetryAfter: time.Second,
			Message: "this replica has as many parked polls as it takes",
		}
	}
	if s := r.sessions[p.WorkerID]; s != nil && s.id == p.SessionID {
		p.session, s.used = s, stopwatch()
	}
	if key := p.key(); p.RequestID != "" {
		if before := r.byKey[key]; before != nil && before.finish(pollResult{}) {
			r.remove(before)
		}
		r.byKey[key] = p
	}
	p.parkedIn = r.round
	r.polls[p], r.unknown[p] = struct{}{}, struct{}{}
	if p.onlyOnce {
		r.once[p] = struct{}{}
	}
	r.order = append(r.order, p)
	r.recount(p)
	return nil
}

func (p *parkedPoll) key() PollKey { return PollKey{WorkerID: p.WorkerID, RequestID: p.RequestID} }

// sessionOf is the session of a poll as known here, or nil.
func (r *registry) sessionOf(p *parkedPoll) *sessionInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.session
}

// leave takes a poll out, whoever answered it.
func (r *registry) leave(p *parkedPoll) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(p)
}

func (r *registry) remove(p *parkedPoll) {
	for _, set := range []pollSet{r.polls, r.left, r.unknown, r.once} {
		delete(set, p)
	}
	r.recount(p)
	if r.byKey[p.key()] == p {
		delete(r.byKey, p.key())
	}
	if len(r.order) > 64 && len(r.order) > 2*len(r.polls) {
		kept := r.order[:0]
		for _, q := range r.order {
			if _, parked := r.polls[q]; parked {
				kept = append(kept, q)
			}
		}
		clear(r.order[len(kept):])
		r.order = kept
	}
}

// each calls f for every parked poll in order of arrival, under the lock.
func (r *registry) each(f func(p *parkedPoll)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.order {
		if _, parked := r.polls[p]; parked && p.state.Load() == pollParked {
			f(p)
		}
	}
}

// isGranted tells whether a dispatch has leases for a poll.
func (r *registry) isGranted(p *parkedPoll) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.granted
}

// grant notes that polls get leases, and tells of each whether it had none before.
func (r *registry) grant(polls ...*parkedPoll) (first []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first = make([]bool, len(polls))
	for i, p := range polls {
		first[i], p.granted = !p.granted, true
		delete(r.unknown, p)
		r.recount(p)
	}
	return first
}

// fresh are polls to look up.
func (r *registry) fresh(limit int) []*parkedPoll {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*parkedPoll
	for p := range r.unknown {
		if len(list) == limit {
			break
		}
		if p.state.Load() == pollParked {
			list = append(list, p)
		}
	}
	return list
}

// doubt makes polls be looked up again.
func (r *registry) doubt(polls ...*parkedPoll) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range polls {
		r.doubted(p)
	}
}

func (r *registry) doubted(p *parkedPoll) {
	if _, parked := r.polls[p]; parked && !p.granted {
		r.unknown[p] = struct{}{}
	}
}

// beginRound counts rounds, so that a round answers only polls that it has seen.
func (r *registry) beginRound() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	r.freed = false
	return r.round
}

// answerOnce answers the polls that do not wait and were there when a round began.
func (r *registry) answerOnce(round uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.once {
		if _, unknown := r.unknown[p]; !p.granted && !unknown && p.parkedIn < round {
			p.finish(pollResult{})
		}
	}
}

// offers are polls that can serve a group of which something is due, as placing sees them: of each
// group as many as width. cut tells that there may be more.
func (r *registry) offers(due map[Group]bool, maxBytes, width int) (list []*parkedPoll, offers []task.Offer, cut bool) {
	left := make(map[Group]int, len(due)) // of the width
	for g := range due {
		left[g] = width
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.order {
		if len(left) == 0 || len(list) == offerLimit {
			return list, offers, true
		}
		if p.counted == nil || p.state.Load() != pollParked || !p.session.takes(left) {
			continue
		}
		list = append(list, p)
		offers = append(offers, task.Offer{
			WorkerID: p.WorkerID, Namespace: p.session.state.Namespace, Node: p.session.state.Node,
			Capabilities: p.session.set, Room: p.MaxLeases, Bytes: maxBytes,
		})
	}
	return list, offers, len(left) < len(due)
}

// putLast puts polls behind all others, so that what they could not take goes to the next one
// that can: a worker whose row a frozen replica holds must not be offered first for ever.
func (r *registry) putLast(polls map[*parkedPoll]bool) {
	if len(polls) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.order, func(a, b *parkedPoll) int {
		switch {
		case polls[a] == polls[b]:
			return 0
		case polls[a]:
			return 1
		default:
			return -1
		}
	})
}

// groups are what the parked polls that take part can serve.
func (r *registry) groups() []Group {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[Group]bool{}
	for _, what := range r.reaches {
		if what.polls == 0 {
			continue
		}
		for _, g := range what.groups {
			seen[g] = true
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// learn takes in how workers stand: polls of sessions that are not current are looked up anew.
func (r *registry) learn(states map[uuid.UUID]WorkerState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, w := range states {
		old := r.sessions[id]
		if old == nil || old.id != w.SessionID || old.state.Draining != w.Draining {
			r.sessions[id] = r.newSession(w.SessionID, w)
		}
	}
	for p := range r.polls {
		if w, told := states[p.WorkerID]; told && (w.SessionID != p.SessionID || w.Draining) {
			p.session = nil
			r.doubted(p)
			r.recount(p)
		}
	}
	for id, s := range r.sessions {
		if stopwatch().Sub(s.used) > keepSession {
			delete(r.sessions, id)
		}
	}
	r.tidyReaches()
}

// know notes that a poll's session is current.
func (r *registry) know(p *parkedPoll, w WorkerState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[p.WorkerID]
	if s == nil || s.id != p.SessionID {
		s = r.newSession(p.SessionID, w)
		r.sessions[p.WorkerID] = s
	}
	p.session, p.full = s, false
	delete(r.unknown, p)
	delete(r.left, p)
	r.recount(p)
}

// recheckKey makes a poll be looked up: its request id was answered before.
func (r *registry) recheckKey(key PollKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byKey[PollKey{WorkerID: key.WorkerID, RequestID: key.RequestID}]; p != nil {
		r.doubted(p)
	}
}

// recheck makes every parked poll be looked up again: some session may have changed.
func (r *registry) recheck() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.polls {
		r.doubted(p)
	}
}

// unblock lets polls that were left out take part again, and tells whether there were any.
func (r *registry) unblock() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freed = true
	if len(r.left) == 0 {
		return false
	}
	for p := range r.left {
		p.full = false
		r.recount(p)
	}
	clear(r.left)
	return true
}

// leaveOut leaves polls out until something changes; none of them if something has changed since
// the round began.
func (r *registry) leaveOut(polls []*parkedPoll) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed {
		return len(polls) == 0
	}
	for _, p := range polls {
		if _, parked := r.polls[p]; parked {
			p.full = true
			r.left[p] = struct{}{}
			r.recount(p)
		}
	}
	return true
}

// count is how many polls are parked.
func (r *registry) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.polls)
}

func (r *registry) workers() []uuid.UUID {
	seen := map[uuid.UUID]bool{}
	r.each(func(p *parkedPoll) { seen[p.WorkerID] = true })
	ids := make([]uuid.UUID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	return ids
}

// stop answers every poll empty, and those that come later.
func (r *registry) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	for p := range r.polls {
		if !p.granted {
			p.finish(pollResult{})
		}
	}
}
