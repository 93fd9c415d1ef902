package memstore_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Workers: processes with a session, which polls, renews and reports.

// pollers is how many polls a session has, each in a process of its own.
const pollers = 2

// proc is a process of a worker. One that was superseded goes on until it dies.
type proc struct {
	worker  *mWorker
	session uuid.UUID
	poll    string // the request id of its poll
	dead    bool   // nobody is there to take what it is granted
}

// held is a lease that some process has been given, whether it still holds it or not.
type held struct {
	attempt uuid.UUID
	version int64
	proc    *proc
}

// register starts a process of a worker anew; now and then as a repeat of the call before.
func (w *world) register(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"w1", "w2", "w3"}).Draw(rt, "worker")
	request := w.requestID()
	if rapid.IntRange(0, 4).Draw(rt, "repeat") == 1 {
		request = w.m.workers[name].request
	}
	w.issue(rt, func() { w.start(name, request) })
}

func (w *world) start(name, request string) {
	r := scheduler.Registration{Namespace: "default", Name: name, Capabilities: []string{"a"}, Slots: 2, RequestID: request}
	switch name {
	case "w1":
		r.Node, r.Slots = "n1", 1
	case "w2":
		r.Capabilities = []string{"a", "b"}
	case "w3":
		r.Node, r.Capabilities = "n1", []string{"b"}
	}
	workerID, sessionID := w.id(), w.id()
	got, err := w.s.Register(w.ctx(), r, workerID, sessionID)
	done, answered := w.committed(err)
	if !done {
		return
	}
	known := w.m.workers[name]
	if known == nil {
		known = &mWorker{id: workerID, name: name, node: r.Node, slots: r.Slots, offers: r.Capabilities, past: map[uuid.UUID]bool{}}
		w.m.workers[name] = known
	}
	session := w.m.register(known, sessionID, request)
	if !answered {
		return
	}
	w.agree("register", err, ok)
	if got.WorkerID != known.id || got.SessionID != session {
		w.fatalf("registered %s with session %s, want %s with %s", got.WorkerID, got.SessionID, known.id, session)
	}
	if session == sessionID {
		for range pollers {
			w.procs = append(w.procs, &proc{worker: known, session: session, poll: w.requestID()})
		}
	}
}

// process draws one, mostly one that has its worker's session and lives.
func (w *world) process(rt *rapid.T) *proc {
	var good []*proc
	for _, p := range w.procs {
		if !p.dead && p.worker.session == p.session {
			good = append(good, p)
		}
	}
	if len(good) == 0 || w.in(rt, 6, "of all") {
		good = w.procs
	}
	return one(rt, "process", good)
}

// lease draws one that some process was given, mostly one that is live.
func (w *world) lease(rt *rapid.T) held {
	var live []held
	for _, l := range w.leases {
		if w.m.attempts[l.attempt].state == "LEASED" {
			live = append(live, l)
		}
	}
	if len(live) == 0 || w.in(rt, 4, "of all") {
		live = w.leases
	}
	return one(rt, "lease", live)
}

// die ends a process: its polls are gone, its leases are renewed no more.
func (w *world) die(rt *rapid.T) {
	if p := w.process(rt); w.in(rt, 4, "really") {
		p.dead = true
	}
}

func (w *world) drainProcess(rt *rapid.T) {
	p := w.process(rt)
	if !w.in(rt, 4, "really") {
		return
	}
	w.issue(rt, func() {
		live, err := w.s.Drain(w.ctx(), p.worker.id, p.session)
		done, answered := w.committed(err)
		if !done {
			return
		}
		want := p.worker.stranger(p.session)
		if want == ok {
			p.worker.draining = true
		}
		if !answered {
			return
		}
		w.agree("drain", err, want)
		if want == ok && live != w.m.held(p.worker) {
			w.fatalf("a drain was answered %d live leases, want %d", live, w.m.held(p.worker))
		}
	})
}

// leave deregisters a process, by force or not: two transactions, of which the second may be missing.
func (w *world) leave(rt *rapid.T) {
	p := w.process(rt)
	if !w.in(rt, 4, "really") {
		return
	}
	force := rapid.Bool().Draw(rt, "force")
	w.issue(rt, func() {
		ended, err := w.s.Deregister(w.ctx(), p.worker.id, p.session, force)
		done, answered := w.committed(err)
		if !done {
			return
		}
		want := w.m.leave(p.worker, p.session, force)
		if !answered {
			return
		}
		w.agree("leave", err, want)
		if want != ok || !force {
			return
		}
		if lost := w.m.lose(p.worker); ended != lost {
			w.fatalf("leaving ended %d leases, want %d", ended, lost)
		}
	})
}

// pollAgain repeats a poll, through whichever replica: what it was granted is delivered again.
func (w *world) pollAgain(rt *rapid.T) {
	p := w.process(rt)
	if p.dead {
		rt.Skip("it is dead")
	}
	w.lookUp(p, !w.in(rt, 3, "lose the answer"))
}

func (w *world) lookUp(p *proc, delivered bool) {
	states, err := w.s.Lookup(w.ctx(), []scheduler.PollKey{{WorkerID: p.worker.id, SessionID: p.session, RequestID: p.poll}})
	if err != nil {
		w.fatalf("look up: %v", err)
	}
	st := states[0]
	w.agree("look up", st.Err, p.worker.stranger(p.session))
	if st.Answered != w.m.answered[p.session.String()+p.poll] || st.Worker.Draining != w.m.drains(p.worker) {
		w.fatalf("a poll is %+v", st)
	}
	var want []uuid.UUID
	for _, a := range w.m.live() {
		if a.session == p.session && a.request == p.poll {
			want = append(want, a.id)
		}
	}
	if len(st.Live) != len(want) || slices.ContainsFunc(want, func(id uuid.UUID) bool { return !slices.Contains(st.Live, id) }) {
		w.fatalf("a poll has the leases %v, want %v", st.Live, want)
	}
	switch {
	case st.Err != nil:
	case len(want) > 0:
		w.replay(p, want, delivered)
	case st.Answered: // and what it was granted is over: the worker polls anew
		p.poll = w.requestID()
	}
}

func (w *world) replay(p *proc, live []uuid.UUID, delivered bool) {
	w.hit = 0
	views, err := w.s.Replay(w.ctx(), live)
	if err != nil || len(views) != len(live) {
		w.fatalf("replay of %v: %v, %v", live, views, err)
	}
	for _, v := range views {
		a := w.m.attempts[v.AttemptID]
		a.delivery++
		w.checkView(v, a)
		if delivered {
			w.leases = append(w.leases, held{v.AttemptID, v.LeaseVersion, p})
		}
	}
	if delivered {
		p.poll = w.requestID()
	}
}

// checkView compares what a worker gets with the model.
func (w *world) checkView(v scheduler.LeaseView, a *mAttempt) {
	if v.LeaseVersion != a.version || v.AttemptNumber != a.number || v.Delivery != a.delivery && v.Delivery != 1 ||
		!v.ExpiresAt.Equal(a.expires) || v.StepID != a.step.id || v.WorkerID != a.worker.id || v.RequestID != a.request {
		w.fatalf("a worker gets %+v of %s, want %+v", v, a.step.name, *a)
	}
}

func (w *world) renew(rt *rapid.T) {
	l := w.lease(rt)
	r := scheduler.Renewal{
		AttemptID: l.attempt, LeaseVersion: l.version, SessionID: l.proc.session, Duration: seconds(rt, "duration", 10, 60, 400),
	}
	if w.in(rt, 10, "of another session") {
		r.SessionID = one(rt, "process", w.procs).session
	}
	if w.in(rt, 10, "of another version") {
		r.LeaseVersion++
	}
	w.issue(rt, func() {
		results, err := w.s.Renew(w.ctx(), []scheduler.Renewal{r}, false)
		done, answered := w.committed(err)
		if !done {
			return
		}
		want := w.m.renew(r.AttemptID, r.LeaseVersion, r.SessionID, r.Duration)
		if !answered {
			return
		}
		w.agree("renew", results[0].Err, want)
		a, got := w.m.attempts[r.AttemptID], results[0].Value
		if want == ok && (!got.ExpiresAt.Equal(a.expires) || got.Cancel != a.of.stopping || got.Draining != w.m.drains(a.worker)) {
			w.fatalf("a renewal was answered %+v, want until %s, cancel %v", got, a.expires, a.of.stopping)
		}
	})
}

// report ends one attempt or two by their workers' word, whether they are live or not.
func (w *world) report(rt *rapid.T) {
	var batch []scheduler.Report
	var said []outcome
	for range 1 + rapid.IntRange(0, 3).Draw(rt, "further")/3 {
		l := w.lease(rt)
		o := rapid.SampledFrom([]outcome{
			{state: "SUCCEEDED"}, {state: "SUCCEEDED"}, {state: "SUCCEEDED"}, {state: "FAILED"}, {state: "FAILED", final: true},
			{state: "RELEASED"}, {state: "RELEASED", wait: 7 * time.Second}, {state: "CANCELED"},
		}).Draw(rt, "outcome")
		r := scheduler.Report{AttemptID: l.attempt, LeaseVersion: l.version, Outcome: o.said()}
		if w.in(rt, 20, "of another version") {
			r.LeaseVersion++
		}
		batch, said = append(batch, r), append(said, o)
	}
	w.issue(rt, func() { w.reportAll(batch, said) })
}

func (o outcome) said() task.Outcome {
	t := task.Outcome{State: task.AttemptState(o.state), NotBefore: o.wait}
	if o.state == "FAILED" {
		t.Failure = &task.Failure{Type: "SIMULATED", NonRetryable: o.final}
	}
	return t
}

func (w *world) reportAll(batch []scheduler.Report, said []outcome) {
	results, err := w.s.Report(w.ctx(), batch, false)
	done, answered := w.committed(err)
	if !done {
		return
	}
	if len(batch) > 1 && batch[0].AttemptID == batch[1].AttemptID {
		if answered && !errors.Is(results[1].Err, scheduler.ErrBusy) {
			w.fatalf("a double in a batch was answered %+v", results[1])
		}
		batch = batch[:1]
	}
	want, states := make([]string, len(batch)), make([]string, len(batch))
	var live []int
	for i, r := range batch { // what is refused is so by what was there before
		a := w.m.attempts[r.AttemptID]
		unasked := said[i].state == "CANCELED" && !a.of.stopping
		if a.state == "LEASED" && a.version == r.LeaseVersion && !unasked {
			live = append(live, i)
			continue
		}
		want[i], states[i] = w.m.report(r.AttemptID, r.LeaseVersion, said[i]), a.of.state
	}
	for _, i := range live {
		want[i] = w.m.report(batch[i].AttemptID, batch[i].LeaseVersion, said[i])
	}
	for _, i := range live {
		states[i] = w.m.attempts[batch[i].AttemptID].of.state
	}
	for i := range batch {
		if answered {
			w.reported(fmt.Sprintf("report %s", said[i]), results[i], want[i], states[i])
		}
	}
}

func (w *world) reported(what string, r scheduler.Result[scheduler.Reported], want, state string) {
	if want != ok && want != "replayed" {
		w.agree(what, r.Err, want)
		return
	}
	w.agree(what, r.Err, ok)
	if want != ok {
		w.met[want]++
	}
	if got := r.Value; got.Replayed != (want == "replayed") || string(got.ExecutionState) != state {
		w.fatalf("%s was answered %+v, want %q, execution %s", what, got, want, state)
	}
}

func reportOf(l held, o outcome) []scheduler.Report {
	return []scheduler.Report{{AttemptID: l.attempt, LeaseVersion: l.version, Outcome: o.said()}}
}
