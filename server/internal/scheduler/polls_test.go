package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// crowd is a registry under random use, and what its polls' workers are.
type crowd struct {
	*registry
	workers []WorkerState
	ids     []uuid.UUID
	parked  []*parkedPoll
}

func newCrowd(t *rapid.T) *crowd {
	c := &crowd{registry: newRegistry(1000)}
	for i := range 6 {
		node := ""
		if i%2 == 1 {
			node = fmt.Sprint("n", i%3)
		}
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3, rapid.ID).Draw(t, "capabilities")
		c.workers = append(c.workers, WorkerState{SessionID: uuid.New(), Namespace: "default", Node: node, Slots: 1, Capabilities: names})
		c.ids = append(c.ids, uuid.New())
	}
	return c
}

func (c *crowd) one(t *rapid.T) *parkedPoll { return rapid.SampledFrom(c.parked).Draw(t, "poll") }

func (c *crowd) worker(p *parkedPoll) WorkerState { return c.workers[slices.Index(c.ids, p.WorkerID)] }

// TestRegistry_CountsWhoTakesPart: whatever happens to polls, the registry knows without a look at
// each of them what a look would tell. Caught: a change that is not counted (each was left out once).
func TestRegistry_CountsWhoTakesPart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := newCrowd(t)
		some := func(f func(p *parkedPoll)) func(t *rapid.T) {
			return func(t *rapid.T) {
				if len(c.parked) > 0 {
					f(c.one(t))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { c.check(t) },
			"park": func(t *rapid.T) {
				i := rapid.IntRange(0, len(c.ids)-1).Draw(t, "worker")
				p := &parkedPoll{Poll: Poll{WorkerID: c.ids[i], SessionID: c.workers[i].SessionID, MaxLeases: 1}, answer: make(chan pollResult, 1)}
				p.onlyOnce = rapid.Bool().Draw(t, "once")
				if err := c.park(p); err != nil {
					t.Fatal(err)
				}
				c.parked = append(c.parked, p)
			},
			"leave": some(func(p *parkedPoll) {
				c.leave(p)
				c.parked = slices.DeleteFunc(c.parked, func(q *parkedPoll) bool { return p == q })
			}),
			"know":  some(func(p *parkedPoll) { c.know(p, c.worker(p)) }),
			"grant": some(func(p *parkedPoll) { c.grant(p) }),
			"doubt": some(func(p *parkedPoll) { c.doubt(p) }),
			"another session": some(func(p *parkedPoll) {
				w := c.worker(p)
				w.SessionID = uuid.New()
				c.learn(map[uuid.UUID]WorkerState{p.WorkerID: w})
			}),
			"round":     func(*rapid.T) { c.beginRound() },
			"leave out": some(func(p *parkedPoll) { c.leaveOut([]*parkedPoll{p}) }),
			"unblock":   func(*rapid.T) { c.unblock() },
			"out and back": some(func(p *parkedPoll) {
				c.beginRound()
				c.leaveOut([]*parkedPoll{p})
				c.unblock()
			}),
			"recheck": func(*rapid.T) { c.recheck() },
		})
	})
}

// check compares what the registry counts with what its polls are.
func (c *crowd) check(t *rapid.T) {
	groups, served := map[Group]bool{}, map[Group]int{}
	for _, p := range c.parked {
		if !p.takesPart() {
			continue
		}
		for name := range p.session.set {
			in := []Group{{Namespace: "default", Capability: name}}
			if node := p.session.state.Node; node != "" {
				in = append(in, Group{Namespace: "default", Capability: name, Node: node})
			}
			for _, g := range in {
				groups[g] = true
				served[g]++
			}
		}
	}
	got := map[Group]bool{}
	for _, g := range c.groups() {
		got[g] = true
	}
	if !maps.Equal(got, groups) {
		t.Fatalf("groups %v, want %v", got, groups)
	}
	for g := range groups {
		list, offers, cut := c.offers(map[Group]bool{g: true}, 1<<20, 3)
		if want := min(served[g], 3); len(list) != want || len(offers) != want || cut != (served[g] >= 3) {
			t.Fatalf("%v: %d offers, cut %t, want %d of %d", g, len(list), cut, want, served[g])
		}
	}
	for _, p := range c.fresh(len(c.parked) + 1) {
		if p.granted || !slices.Contains(c.parked, p) {
			t.Fatal("a poll is to be looked up that is granted, or gone")
		}
	}
}

// full is a store whose workers have no slot left, but for one of them, and where one step waits.
type full struct {
	dispatchStore
	free   uuid.UUID
	offers []int // of the claims
}

func (f *full) NextDue(_ context.Context, groups []Group) (due []DueGroup, _ error) {
	for _, g := range groups {
		due = append(due, DueGroup{Group: g})
	}
	return due, nil
}

func (f *full) Claim(_ context.Context, c ClaimCommand) (Claimed, error) {
	f.offers = append(f.offers, len(c.Offers))
	claimed := Claimed{Free: map[uuid.UUID]int{}}
	for _, o := range c.Offers {
		claimed.Free[o.WorkerID] = 0
		if o.WorkerID == f.free {
			claimed.Free[o.WorkerID] = 1
			claimed.Requests = []task.Waiting{{StepID: uuid.New(), Number: 1, Namespace: o.Namespace, Capability: "a"}}
		}
	}
	return claimed, nil
}

func (f *full) Dispatch(_ context.Context, c DispatchCommand) (Dispatched, error) {
	done := Dispatched{Granted: map[uuid.UUID]bool{}, Filled: true}
	for _, it := range c.Items {
		done.Granted[it.AttemptID] = true
		done.Leases = append(done.Leases, LeaseView{AttemptID: it.AttemptID})
	}
	return done, nil
}

func (f *full) Free(context.Context, uuid.UUID, []uuid.UUID) error { return nil }

// TestRound_GoesOnBehindPollsWithoutSlots: a round offers few polls; when none of them has a slot the
// next ones are asked at once, more each time, until one takes the step. Caught: a wait after the
// first ones, and rounds that do not grow.
func TestRound_GoesOnBehindPollsWithoutSlots(t *testing.T) {
	t.Parallel()
	store := &full{free: uuid.New()}
	d := newDispatcher(store, newPresence(store, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler), 10_000, defaultMessage)
	d.tell = func(...Hint) {}
	var last *parkedPoll
	for i := range 2000 {
		p := &parkedPoll{Poll: Poll{WorkerID: uuid.New(), SessionID: uuid.New(), MaxLeases: 1}, answer: make(chan pollResult, 1)}
		if i == 1999 {
			p.WorkerID = store.free
		}
		if err := d.polls.park(p); err != nil {
			t.Fatal(err)
		}
		d.polls.know(p, WorkerState{SessionID: p.SessionID, Namespace: "default", Slots: 1, Capabilities: []string{"a"}})
		last = p
	}
	for rounds := 0; ; rounds++ {
		again, err := d.round(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if last.granted {
			break
		}
		if again != 0 || rounds > 10 {
			t.Fatalf("after round %d the next one is in %v; offered were %v", rounds, again, store.offers)
		}
	}
	d.beside.end()
	if r := <-last.answer; len(r.Leases) != 1 {
		t.Errorf("answered %+v", r)
	}
	if want := []int{narrow, narrow * widening, narrow * widening * widening, offerLimit}; !slices.Equal(store.offers[:4], want) {
		t.Errorf("offered %v, want %v at first", store.offers, want)
	}
}
