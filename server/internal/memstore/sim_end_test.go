package memstore_test

import (
	"time"

	"github.com/leasehold/leasehold/server/internal/task"
)

// quiesce plays good workers until nothing is left to do: whatever happened before, every
// execution that was accepted ends, and every event reaches the sink, but for those behind one
// that was given up.
func (w *world) quiesce() {
	w.rt.Helper()
	w.calm = true
	w.rounds, w.grants, w.runs, w.parked = nil, nil, nil, nil
	for _, name := range []string{"a", "b"} {
		if w.m.paused[name] {
			w.setPause(name, false)
		}
	}
	if w.m.drained["n1"] {
		w.setDrain(false)
	}
	w.procs = nil
	for _, name := range []string{"w1", "w2", "w3"} {
		w.start(name, w.requestID())
	}
	for range 400 {
		if !w.open() {
			w.deliverAll()
			w.checkSink()
			w.count()
			return
		}
		w.turn()
		w.check()
	}
	for _, e := range w.m.executions {
		if !e.ended() {
			w.fatalf("execution %s is stuck: %s with %d open steps", e.id, e.state, e.open())
		}
	}
}

func (w *world) open() bool {
	for _, e := range w.m.executions {
		if !e.ended() {
			return true
		}
	}
	return false
}

// turn is one turn of everybody.
func (w *world) turn() {
	w.advance(3 * time.Second)
	w.beginOne()
	w.expireAll()
	w.fireAll()
	w.claimFor(w.procs, 20)
	for _, r := range w.rounds {
		w.dispatchRound(r)
	}
	for _, g := range w.grants {
		w.hand(g, func(back func()) { back() })
	}
	w.rounds, w.grants = nil, nil
	for _, p := range w.procs {
		w.lookUp(p, true)
	}
	for _, l := range w.leases {
		if w.m.attempts[l.attempt].state == string(task.AttemptLeased) {
			o := outcome{state: "SUCCEEDED"}
			if w.m.attempts[l.attempt].of.stopping {
				o.state = "CANCELED"
			}
			w.reportAll(reportOf(l, o), []outcome{o})
		}
	}
}

// deliverAll publishes until nothing is due.
func (w *world) deliverAll() {
	for range 400 {
		in, due, err := w.s.Outbox().NextDue(w.ctx())
		if err != nil {
			w.fatalf("next due: %v", err)
		}
		if !due {
			return
		}
		w.advance(max(in, 0))
		w.claimRuns(10, 50)
		for _, p := range w.runs {
			for p.done < len(p.run.Events) {
				w.receive(p, true)
				p.done++
			}
			w.settleRun(p)
		}
		w.runs = nil
	}
	w.fatalf("events are still due")
}

// checkSink compares what the sink has with what is committed.
func (w *world) checkSink() {
	w.rt.Helper()
	for _, e := range w.m.executions {
		events, r := w.s.EventsAfter(e.id, 0), w.sink[e.id]
		if r == nil {
			w.fatalf("no event of %s was published", e.id)
		}
		for i, event := range events {
			if r.dead == 0 && (len(r.ids) != len(events) || r.ids[i] != event.ID) {
				w.fatalf("%d of %d events of %s were published", len(r.ids), len(events), e.id)
			}
		}
	}
}

// count tells how things ended.
func (w *world) count() {
	for _, e := range w.m.executions {
		w.met["execution "+e.state]++
		for _, s := range e.steps {
			w.met["step "+s.state]++
		}
	}
	for _, a := range w.m.attempts {
		w.met["attempt "+a.state]++
	}
}
