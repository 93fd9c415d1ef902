package memstore_test

import (
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Replicas: the rounds of their dispatchers, in parts between which anything can happen, their
// deliveries and their sweeps.

const (
	claimLasts = 10 * time.Second
	room       = 2 // of a poll
	sweepEvery = 2 * time.Second
)

// round is what a replica has claimed and placed.
type round struct {
	c     scheduler.DispatchCommand
	procs []*proc // of each item
	tries int
}

// grant is a lease on its way to its worker.
type grant struct {
	attempt uuid.UUID
	proc    *proc
	request string
}

// claim claims work for the polls of some processes, and places it.
func (w *world) claim(rt *rapid.T) {
	var polling []*proc
	for range rapid.IntRange(1, 3).Draw(rt, "polls") {
		if p := w.process(rt); !slices.Contains(polling, p) {
			polling = append(polling, p)
		}
	}
	w.claimFor(polling, rapid.IntRange(1, 4).Draw(rt, "limit"))
}

// give makes a whole round for a process, with nothing between its parts.
func (w *world) give(rt *rapid.T) {
	rounds, grants := w.rounds, w.grants
	w.rounds, w.grants = nil, nil
	w.claimFor([]*proc{w.process(rt)}, room)
	for _, r := range w.rounds {
		w.dispatchRound(r)
	}
	for _, g := range w.grants {
		w.hand(g, func(back func()) { w.issue(rt, back) })
	}
	w.rounds, w.grants = rounds, grants
}

func (w *world) claimFor(polling []*proc, limit int) {
	c := scheduler.ClaimCommand{ClaimID: w.id(), Limit: limit, Expires: claimLasts}
	for _, p := range polling {
		set := map[string]bool{}
		for _, name := range p.worker.offers {
			set[name] = true
		}
		c.Offers = append(c.Offers, task.Offer{
			WorkerID: p.worker.id, Namespace: "default", Node: p.worker.node, Capabilities: set, Room: room, Bytes: 1 << 20,
		})
	}
	want := w.expectClaim(polling, limit)
	claimed, err := w.s.Claim(w.ctx(), c)
	if err != nil {
		w.fatalf("claim: %v", err)
	}
	var got []uuid.UUID
	for _, r := range claimed.Requests {
		got = append(got, r.StepID)
	}
	if !slices.EqualFunc(got, want, func(id uuid.UUID, s *mStep) bool { return id == s.id }) {
		w.fatalf("claimed %v, want %d steps, from %v", got, len(want), want)
	}
	for i, s := range want {
		if claimed.Requests[i].Number != s.number+1 {
			w.fatalf("claimed number %d of %s, want %d", claimed.Requests[i].Number, s.name, s.number+1)
		}
		s.claim, s.claimed = c.ClaimID, w.m.now.Add(claimLasts)
	}
	w.place(c, claimed, polling)
}

// expectClaim is what the model lets a claim have.
func (w *world) expectClaim(polling []*proc, limit int) []*mStep {
	rooms, left, total := map[mGroup]int{}, map[*mWorker]int{}, 0
	for _, p := range polling {
		if _, seen := left[p.worker]; !seen {
			left[p.worker] = w.m.free(p.worker)
		}
		room := min(room, left[p.worker])
		left[p.worker] -= room
		total += room
		for _, name := range p.worker.offers {
			rooms[mGroup{name, ""}] += room
			if p.worker.node != "" {
				rooms[mGroup{name, p.worker.node}] += room
			}
		}
	}
	return w.m.eligible(rooms, min(total, limit))
}

func (w *world) place(c scheduler.ClaimCommand, claimed scheduler.Claimed, polling []*proc) {
	r := &round{c: scheduler.DispatchCommand{ClaimID: c.ClaimID}}
	placed := map[uuid.UUID]bool{}
	for _, a := range task.Place(claimed.Requests, c.Offers, claimed.Free) {
		request, p := claimed.Requests[a.Waiting], polling[a.Offer]
		placed[request.StepID] = true
		r.procs = append(r.procs, p)
		r.c.Items = append(r.c.Items, scheduler.DispatchItem{
			Waiting: request, AttemptID: w.id(), WorkerID: p.worker.id, SessionID: p.session,
			RequestID: p.poll, Duration: 30 * time.Second,
		})
	}
	if len(r.c.Items) > 0 {
		w.rounds = append(w.rounds, r)
	}
	var rest []uuid.UUID
	for _, request := range claimed.Requests {
		if !placed[request.StepID] {
			rest = append(rest, request.StepID)
		}
	}
	w.free(c.ClaimID, rest)
}

// free gives back what was claimed and is still.
func (w *world) free(claim uuid.UUID, steps []uuid.UUID) {
	if err := w.s.Free(w.ctx(), claim, steps); err != nil {
		w.fatalf("free: %v", err)
	}
	for _, e := range w.m.executions {
		for _, s := range e.steps {
			if s.claim == claim && slices.Contains(steps, s.id) {
				s.claim, s.claimed = uuid.Nil, time.Time{}
			}
		}
	}
}

// dispatch dispatches some round that was claimed, whenever that was. One whose commit is unknown
// is dispatched again, as it is now and then for no reason.
func (w *world) dispatch(rt *rapid.T) {
	r := one(rt, "round", w.rounds)
	w.make(rt, func() { w.dispatchRound(r) })
	unknown := w.hit != 0 && r.tries < 3
	if unknown || w.in(rt, 12, "once more") {
		return
	}
	w.rounds = slices.DeleteFunc(w.rounds, func(other *round) bool { return other == r })
}

func (w *world) dispatchRound(r *round) {
	r.tries++
	got, err := w.s.Dispatch(w.ctx(), r.c)
	done, answered := w.committed(err)
	if !done {
		return
	}
	asked := map[string]bool{}
	dropped, granted := 0, 0
	for i, it := range r.c.Items {
		why := w.expectGrant(it, r, i)
		switch why {
		case ok:
			w.met["granted"]++
			granted++
			asked[it.SessionID.String()+it.RequestID] = w.m.attempts[it.AttemptID].delivery == 1
		case "dropped":
			dropped++
		}
		if answered && got.Granted[it.AttemptID] != (why == ok) {
			w.fatalf("step %s, number %d: granted %v, want %q", it.StepID, it.Number, got.Granted[it.AttemptID], why)
		}
	}
	for poll := range asked {
		w.m.answered[poll] = true
	}
	w.readVersions(r)
	if !answered {
		return
	}
	if got.Dropped < dropped || len(got.Granted) != granted {
		w.fatalf("a dispatch was answered %+v, want %d granted, %d dropped", got, granted, dropped)
	}
	for i, it := range r.c.Items {
		if got.Granted[it.AttemptID] {
			w.grants = append(w.grants, &grant{it.AttemptID, r.procs[i], it.RequestID})
		}
	}
}

// expectGrant is what the model makes of an item.
func (w *world) expectGrant(it scheduler.DispatchItem, r *round, i int) string {
	if a := w.m.attempts[it.AttemptID]; a != nil { // an earlier try has made it
		if a.state == "LEASED" {
			return ok
		}
		return "dropped"
	}
	for _, e := range w.m.executions {
		for _, s := range e.steps {
			if s.id != it.StepID {
				continue
			}
			if it.Number != s.number+1 {
				return "over"
			}
			return w.m.grant(s, e, r.procs[i].worker, it.SessionID, r.c.ClaimID, it.AttemptID, it.RequestID, it.Duration)
		}
	}
	return "unknown"
}

// readVersions takes the lease versions over into the model, each greater than all before.
func (w *world) readVersions(r *round) {
	var ids []uuid.UUID
	for _, it := range r.c.Items {
		ids = append(ids, it.AttemptID)
	}
	views, err := w.s.Contents(w.ctx(), ids)
	if err != nil {
		w.fatalf("contents: %v", err)
	}
	slices.SortFunc(views, func(a, b scheduler.LeaseView) int { return int(a.LeaseVersion - b.LeaseVersion) })
	for _, v := range views {
		a := w.m.attempts[v.AttemptID]
		if a == nil {
			w.fatalf("attempt %s is live, and was not to be granted", v.AttemptID)
		}
		if a.version != 0 {
			continue
		}
		if v.LeaseVersion <= w.m.version {
			w.fatalf("lease version %d was drawn after %d", v.LeaseVersion, w.m.version)
		}
		a.version, w.m.version = v.LeaseVersion, v.LeaseVersion
	}
}

// deliver answers a poll with what it was granted. If its caller is gone, for good or only its
// connection, it is handed back; or the answer is lost on its way, and nobody knows.
func (w *world) deliver(rt *rapid.T) {
	g := one(rt, "grant", w.grants)
	w.grants = slices.DeleteFunc(w.grants, func(other *grant) bool { return other == g })
	switch {
	case w.in(rt, 6, "lose the answer"):
	case w.in(rt, 4, "the caller is gone"):
		w.handBack(g, func(back func()) { w.issue(rt, back) })
	case w.in(rt, 4, "the caller only seems to be gone"):
		w.hand(g, func(back func()) { w.issue(rt, back) })
		w.handBack(g, func(back func()) { w.parked = append(w.parked, back) })
	default:
		w.hand(g, func(back func()) { w.issue(rt, back) })
	}
}

// look reads a grant that is to be delivered, and tells whether it is live.
func (w *world) look(g *grant) bool {
	views, err := w.s.Contents(w.ctx(), []uuid.UUID{g.attempt})
	a := w.m.attempts[g.attempt]
	if err != nil || len(views) > 1 || len(views) == 1 != (a.state == "LEASED") {
		w.fatalf("attempt %s is %s, delivered %v, %v", g.attempt, a.state, views, err)
	}
	if len(views) == 1 {
		w.checkView(views[0], a)
	}
	return len(views) == 1
}

func (w *world) hand(g *grant, issue func(func())) {
	switch {
	case g.proc.dead || g.proc.poll != g.request: // a repeat of the poll may have it already
		w.handBack(g, issue)
	case w.look(g):
		w.leases = append(w.leases, held{g.attempt, w.m.attempts[g.attempt].version, g.proc})
		g.proc.poll = w.requestID()
	}
}

func (w *world) handBack(g *grant, issue func(func())) {
	if !w.look(g) {
		return
	}
	back := scheduler.Undelivered{AttemptID: g.attempt, LeaseVersion: w.m.attempts[g.attempt].version, Delivery: 1}
	issue(func() {
		if done, _ := w.committed(w.s.Return(w.ctx(), []scheduler.Undelivered{back})); done {
			w.met["given back"]++
			w.m.giveBack(back.AttemptID, back.LeaseVersion, back.Delivery)
		}
	})
}

// beginSweep takes the right to sweep, and gives credit after an outage.
func (w *world) beginSweep(rt *rapid.T) { w.make(rt, w.beginOne) }

func (w *world) beginOne() {
	start, err := w.s.BeginSweep(w.ctx(), sweepEvery)
	done, answered := w.committed(err)
	if !done {
		return
	}
	gap, first := w.m.now.Sub(w.m.sweptAt), w.m.sweptAt.IsZero()
	mine := first || gap < 0 || gap >= sweepEvery/2
	credited := mine && !first && gap > 5*sweepEvery
	if credited {
		w.met["credit"]++
		w.m.credit(gap)
	}
	if mine {
		w.m.sweptAt = w.m.now
	}
	if answered && (start.Mine != mine || start.Credited != credited) {
		w.fatalf("a sweep began with %+v after %s; want mine %v, credited %v", start, gap, mine, credited)
	}
}

func (w *world) expire(rt *rapid.T) { w.make(rt, w.expireAll) }

func (w *world) expireAll() {
	swept, err := w.s.ExpireLeases(w.ctx(), scheduler.SweepBatch{})
	done, answered := w.committed(err)
	if !done {
		return
	}
	if n := w.m.expire(); answered && swept.Done != n {
		w.fatalf("%d leases were ended, want %d", swept.Done, n)
	}
}

func (w *world) fire(rt *rapid.T) { w.make(rt, w.fireAll) }

func (w *world) fireAll() {
	_, err := w.s.FireTimers(w.ctx(), scheduler.SweepBatch{})
	if done, _ := w.committed(err); done {
		w.m.fire()
	}
}

// crash ends a replica: what it had claimed, granted and not delivered, or was about to publish
// is known to nobody any more, and calls that were on their way to it come to nothing.
func (w *world) crash(rt *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(rt, "what was in its hands") {
	case 1:
		w.rounds = nil
	case 2:
		w.grants = nil
	case 3:
		w.runs = nil
	case 4:
		w.parked = nil
	}
}
