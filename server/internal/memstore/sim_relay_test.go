package memstore_test

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// Relays and their sink.

const eventsClaimed = 30 * time.Second

// publishing is a run of events in a relay's hands.
type publishing struct {
	run     outbox.Run
	until   time.Time // of its claim
	done    int
	failure *outbox.Failure
}

// received is what the sink has of an execution.
type received struct {
	ids   []uuid.UUID // by sequence
	acked int64       // up to which a relay has heard an acknowledgement
	dead  int64       // the event that was given up; 0: none
}

func (w *world) claimEvents(*rapid.T) { w.claimRuns(3, 2) }

func (w *world) claimRuns(heads, events int) {
	w.hit = 0
	runs, err := w.s.Outbox().Claim(w.ctx(), outbox.Claim{ID: w.id(), Heads: heads, Events: events, Expires: eventsClaimed})
	if err != nil {
		w.fatalf("claim events: %v", err)
	}
	for _, run := range runs {
		p := &publishing{run: run, until: w.m.now.Add(eventsClaimed)}
		for _, other := range w.runs {
			if other.run.AggregateID == run.AggregateID && other.until.After(w.latest) {
				w.fatalf("the events of %s are in two relays' hands", run.AggregateID)
			}
		}
		w.runs = append(w.runs, p)
		w.holders[run.AggregateID] = run.Claim
	}
}

// publish tries the next event of some run, as long as its claim lasts.
func (w *world) publish(rt *rapid.T) {
	p := one(rt, "run", w.runs)
	if p.done == len(p.run.Events) || p.failure != nil || !w.latest.Before(p.until) {
		return
	}
	switch rapid.IntRange(0, 9).Draw(rt, "what the sink does") {
	case 1:
		p.failure = &outbox.Failure{Again: 3 * time.Second, Reason: "busy"}
	case 2: // it has taken it, and its acknowledgement is lost
		w.receive(p, false)
		p.failure = &outbox.Failure{Again: 3 * time.Second, Reason: "no answer", Free: true}
	case 3:
		if rapid.Bool().Draw(rt, "for good") {
			p.failure = &outbox.Failure{Dead: true, Reason: "refused"}
		}
	default:
		w.receive(p, true)
		p.done++
	}
}

// receive is what the sink does with an event: the first delivery of each comes after all before
// it were acknowledged; repeats bear the same id.
func (w *world) receive(p *publishing, heard bool) {
	e := p.run.Events[p.done]
	r := w.sink[e.AggregateID]
	if r == nil {
		r = &received{}
		w.sink[e.AggregateID] = r
	}
	n := int64(len(r.ids))
	switch {
	case r.dead != 0 && e.Sequence >= r.dead:
		w.fatalf("event %d of %s is delivered behind %d, which was given up", e.Sequence, e.AggregateID, r.dead)
	case e.Sequence > n+1 || e.Sequence == n+1 && r.acked < n:
		w.fatalf("event %d of %s is delivered first after %d, of which %d are acknowledged", e.Sequence, e.AggregateID, n, r.acked)
	case e.Sequence == n+1:
		if slices.Contains(r.ids, e.ID) {
			w.fatalf("two events of %s have the id %s", e.AggregateID, e.ID)
		}
		r.ids = append(r.ids, e.ID)
	case r.ids[e.Sequence-1] != e.ID:
		w.fatalf("event %d of %s is delivered with another id", e.Sequence, e.AggregateID)
	}
	if heard {
		r.acked = max(r.acked, e.Sequence)
	}
}

// settleEvents writes what came of some run, or the relay dies before.
func (w *world) settleEvents(rt *rapid.T) {
	p := one(rt, "run", w.runs)
	w.runs = slices.DeleteFunc(w.runs, func(other *publishing) bool { return other == p })
	if !w.in(rt, 8, "die before") {
		w.make(rt, func() { w.settleRun(p) })
	}
}

func (w *world) settleRun(p *publishing) {
	lost, err := w.s.Outbox().Settle(w.ctx(), []outbox.RunResult{{Run: p.run, Published: p.done, Failure: p.failure}})
	done, answered := w.committed(err)
	if !done {
		return
	}
	ours := w.holders[p.run.AggregateID] == p.run.Claim
	if answered && (err != nil || lost != map[bool]int{false: 1}[ours]) {
		w.fatalf("settling a run, ours %v: %d were lost, %v", ours, lost, err)
	}
	if !ours {
		return
	}
	delete(w.holders, p.run.AggregateID)
	if p.failure != nil && p.failure.Dead && p.done < len(p.run.Events) {
		w.buried(p.run.Events[p.done])
	}
}

// buried notes an event that was given up: it holds back those after it.
func (w *world) buried(e outbox.Event) {
	if w.sink[e.AggregateID] == nil {
		w.sink[e.AggregateID] = &received{}
	}
	w.sink[e.AggregateID].dead = e.Sequence
	w.met["event given up"]++
}
