package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	lookPause      = 50 * time.Millisecond // between two looks at least: hints of that time are one
	lookShare      = 4                     // and this many times what the last one took
	lookTimeout    = 5 * time.Second
	lookExecutions = 500 // of one query for revisions
	readExecutions = 50  // of one read of entries
	readEntries    = 1000
	keepBatches    = 2 * time.Second // for those that come a little later than the first
	keepEntries    = 10_000          // of all executions together
	farBehind      = 100             // entries: one that resumes so far back reads them by itself
)

// hub is the one that looks for all watches of a replica. It asks how far the watched executions
// have come, in one query for all of them, and reads what happened to those that moved, once for
// all that watch them. It looks when a hint says that something was committed, and at least once
// a second; while nothing is watched it does nothing at all. Those that come to go on from where
// they were are looked up together too: after a restart of another replica they come all at once.
//
// Watches wait here without a connection. One that is slow holds up nobody and costs no memory:
// what the hub has forgotten meanwhile it reads by itself.
type hub struct {
	store    WatchStore
	log      *slog.Logger
	observer Observer
	limit    int
	alone    chan struct{} // a place for one that reads by itself: the others wait
	wake     chan struct{}
	done     chan struct{} // closed when it has ended
	away     bool          // the last look failed; of the loop alone

	mu      sync.Mutex
	open    int // watches
	topics  map[uuid.UUID]*topic
	kept    []*batch // oldest first
	entries int      // in kept
}

// topic is an execution that is watched.
type topic struct {
	id       uuid.UUID
	watchers int
	batches  []*batch // the last that was read, without a gap
	standing
}

// standing is how a topic stands.
type standing struct {
	at      int64         // everything up to here was read, or is known to those that watch
	unseen  bool          // it was not looked up yet: whether it is there, and open, and at that revision
	err     error         // of the look, while it is unseen
	ended   bool          // the execution has ended at that revision
	gone    bool          // it is not there any more
	rewound int           // how often it was found behind where it had been
	back    int64         // to where, the last time
	moved   chan struct{} // closed, and made anew, when any of that has changed
}

// batch is what happened after from, up to to.
type batch struct {
	of       *topic
	from, to int64
	changes  Changes
	read     time.Time // monotonic
}

func newHub(store WatchStore, log *slog.Logger, limit int) *hub {
	return &hub{
		store: store, log: log, observer: nobody{}, limit: limit,
		alone: make(chan struct{}, 1), wake: make(chan struct{}, 1), done: make(chan struct{}),
		topics: map[uuid.UUID]*topic{},
	}
}

// admit counts a watch in, if there is room for it.
func (h *hub) admit() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= h.limit {
		return &ExhaustedError{
			Reason: ReasonTooManyStreams, Limit: h.limit, RetryAfter: time.Second,
			Message: "this replica has as many streams as it takes",
		}
	}
	h.open++
	return nil
}

func (h *hub) leave() {
	h.mu.Lock()
	h.open--
	h.mu.Unlock()
}

func (h *hub) watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

// join begins to watch an execution of which everything up to a revision is known; seen tells
// that it was there, and open. What was committed since is looked for at once.
func (h *hub) join(id uuid.UUID, at int64, seen bool) (t *topic, rewound int) {
	h.mu.Lock()
	t = h.topics[id]
	first := t == nil
	if first {
		t = &topic{id: id, standing: standing{at: at, unseen: !seen, moved: make(chan struct{})}}
		h.topics[id] = t
	}
	t.watchers++
	rewound = t.rewound
	h.mu.Unlock()
	if first {
		h.ring()
	}
	return t, rewound
}

func (h *hub) part(t *topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.watchers--; t.watchers == 0 {
		delete(h.topics, t.id)
	}
}

// news is how a topic stands, and what comes next for one that knows everything up to a
// revision, if that is remembered.
func (h *hub) news(t *topic, at int64) (s standing, next *batch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range t.batches {
		if b.from <= at && at < b.to {
			next = b
		}
	}
	return t.standing, next
}

// ring makes the hub look soon, if there is anything to look for. It never waits.
func (h *hub) ring() {
	if !h.watching() {
		return
	}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *hub) watching() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) > 0
}

// run looks until the context ends; then no watch goes on.
func (h *hub) run(ctx context.Context) {
	defer close(h.done)
	for h.await(ctx) {
		began := stopwatch()
		more, err := h.look(ctx)
		h.note(ctx, err)
		if err != nil {
			h.refuse(err)
		} else {
			h.observer.Looped(LoopWatches)
		}
		if more {
			h.ring()
		}
		took := stopwatch().Sub(began)
		if !wait(ctx, min(max(lookShare*took, lookPause), lookAtLeast)) {
			return
		}
	}
}

// await waits until it is time to look.
func (h *hub) await(ctx context.Context) bool {
	timeout := idleBeat
	if h.watching() {
		timeout = lookAtLeast
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-h.wake:
	case <-timer.C:
	}
	return true
}

// note logs when the store goes away and when it is back, and not each look in between.
func (h *hub) note(ctx context.Context, err error) {
	switch away := err != nil; {
	case ctx.Err() != nil || away == h.away:
		return
	case away:
		h.log.Warn("watches see no changes for now", "error", err)
	default:
		h.log.Info("watches see changes again")
	}
	h.away = err != nil
}

// refuse tells those that have just come that the store is away.
func (h *hub) refuse(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.unseen {
			t.err = err
			t.tell()
		}
	}
}

// look asks which executions moved, and reads on. more tells that not everything was read.
func (h *hub) look(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for known := range slices.Chunk(h.known(), lookExecutions) {
		moved, err := h.store.Moved(ctx, known)
		if err != nil {
			return false, err
		}
		behind, again := h.take(known, moved)
		more = more || again
		for after := range slices.Chunk(behind, readExecutions) {
			changes, err := h.store.Changes(ctx, after, readEntries/len(after))
			if err != nil {
				return false, err
			}
			if h.add(after, changes) {
				more = true
			}
		}
	}
	return more, nil
}

// notSeen is a revision at which nothing ever is.
const notSeen = -1

// known is how far the executions that are watched were read. Batches that are old are forgotten.
func (h *hub) known() []Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget()
	list := make([]Revision, 0, len(h.topics))
	for id, t := range h.topics {
		switch {
		case t.gone:
		case t.unseen:
			list = append(list, Revision{ID: id, Revision: notSeen})
		default:
			list = append(list, Revision{ID: id, Revision: t.at})
		}
	}
	return list
}

// take notes which executions are gone, or behind where they were: a standby may have taken over
// that had not received all. It returns those that have something to read, and after what; again
// tells that some have to be looked at once more.
func (h *hub) take(known, moved []Revision) (after []Revision, again bool) {
	asked := make(map[uuid.UUID]int64, len(known))
	for _, k := range known {
		asked[k.ID] = k.Revision
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range moved {
		switch t := h.topics[m.ID]; {
		case t == nil: // nobody watches it any more
		case m.Revision == 0:
			t.gone = true
			t.tell()
		case t.unseen && asked[m.ID] != notSeen: // a newer topic than the one that was asked about
			again = true
		case m.Revision < t.at && !t.unseen && t.at != asked[m.ID]: // the same, which was looked at since
		case m.Revision < t.at:
			again = again || t.unseen
			t.at, t.back, t.batches, t.ended = m.Revision, m.Revision, nil, false
			t.rewound++
			t.tell()
		case t.unseen && m.Revision > t.at+farBehind:
			again = true
			t.at = m.Revision
			t.tell()
		default:
			after = append(after, Revision{ID: m.ID, Revision: t.at})
		}
	}
	return after, again
}

// add hands what was read to those that wait for it.
func (h *hub) add(after []Revision, changes []Changes) (more bool) {
	limit := readEntries / len(after)
	from := make(map[uuid.UUID]int64, len(after))
	for _, a := range after {
		from[a.ID] = a.Revision
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range changes {
		t := h.topics[c.Execution.ID]
		if t == nil || t.at != from[t.id] || c.Execution.Revision < t.at {
			continue // it is another topic by now, or behind; the next look tells
		}
		if to := c.upTo(limit); to > t.at {
			b := &batch{of: t, from: t.at, to: to, changes: c, read: stopwatch()}
			t.at, t.batches = to, append(t.batches, b)
			h.kept = append(h.kept, b)
			h.entries += len(c.Entries)
		}
		t.unseen, t.err = false, nil
		t.ended = c.endedAt(t.at)
		t.tell()
		more = more || t.at < c.Execution.Revision
	}
	h.forget()
	return more
}

// forget drops batches that are old, or too many. The lock is held.
func (h *hub) forget() {
	n := 0
	for _, b := range h.kept {
		if h.entries <= keepEntries && stopwatch().Sub(b.read) < keepBatches {
			break
		}
		n++
		h.entries -= len(b.changes.Entries)
		if len(b.of.batches) > 0 && b.of.batches[0] == b {
			b.of.batches = slices.Delete(b.of.batches, 0, 1)
		}
	}
	h.kept = slices.Delete(h.kept, 0, n)
}

// tell wakes those that watch. The hub's lock is held.
func (t *topic) tell() {
	close(t.moved)
	t.moved = make(chan struct{})
}
