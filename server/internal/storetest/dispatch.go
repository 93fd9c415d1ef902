package storetest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// names are those of claimed requests' steps, by their executions.
func names(requests []task.Waiting, of map[uuid.UUID]string) (list []string) {
	for _, w := range requests {
		list = append(list, of[w.StepID])
	}
	return list
}

func claimOrder(r *rig) {
	of := map[uuid.UUID]string{}
	add := func(name string, priority int, delay time.Duration) {
		s := stepOf(name)
		s.Priority, s.StartDelay = priority, delay
		of[r.enqueue(s).Steps[0]] = name
	}
	add("low", -1, 0)
	add("later", 0, 2*time.Minute)
	r.Pass(time.Minute)
	add("second", 0, 0)
	r.Pass(time.Second)
	add("third", 0, 0)
	add("high", 1, 0)
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"a"}, Slots: 10})
	_, claimed := r.claim(w)
	if got := names(claimed.Requests, of); !slices.Equal(got, []string{"high", "second", "third", "low"}) {
		r.Fatalf("claimed %v", got)
	}
	is(r, "free slots", claimed.Free[w.WorkerID], 10)
	r.Pass(2 * time.Minute) // that claim is over, and what was due later is due
	w.Slots = 2
	_, claimed = r.claim(w)
	if got := names(claimed.Requests, of); !slices.Equal(got, []string{"high", "second"}) {
		r.Fatalf("claimed %v with room for two", got)
	}
}

func claimHidesNothing(r *rig) {
	pinned := stepOf("pinned")
	pinned.Node, pinned.Priority = "n2", 9
	foreign := stepOf("foreign")
	foreign.Capability, foreign.Priority = "b", 9
	paused := stepOf("paused")
	paused.Capability, paused.Priority = "p", 9
	r.enqueue(pinned, foreign, paused)
	ids := r.enqueue(stepOf("mine"))
	_, err := r.Store.Pause(r.ctx(), scheduler.CapabilityKey{Namespace: "default", Name: "p"}, "")
	r.must(err)
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Node: "n1", Capabilities: []string{"a", "p"}, Slots: 1})
	_, claimed := r.claim(w)
	is(r, "claimed", len(claimed.Requests), 1)
	is(r, "step", claimed.Requests[0].StepID, ids.Steps[0])
	there := r.join(scheduler.Registration{Namespace: "default", Name: "v", Node: "n2", Capabilities: []string{"a"}, Slots: 5})
	_, claimed = r.claim(there)
	is(r, "claimed on the node", len(claimed.Requests), 1)
	is(r, "node", claimed.Requests[0].Node, "n2")
	_, claimed = r.claim(r.join(scheduler.Registration{Namespace: "other", Name: "w", Capabilities: []string{"a"}, Slots: 5}))
	is(r, "claimed in another namespace", len(claimed.Requests), 0)
}

func claimBelongs(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	c := scheduler.ClaimCommand{ClaimID: uuid.New(), Offers: []task.Offer{w.offer()}, Limit: 10, Expires: time.Minute}
	for range 2 { // its own commit, whose answer was lost
		claimed, err := r.Store.Claim(r.ctx(), c)
		r.must(err)
		is(r, "claimed", len(claimed.Requests), 1)
	}
	_, others := r.claim(w)
	is(r, "claimed by another", len(others.Requests), 0)
	r.must(r.Store.Free(r.ctx(), uuid.New(), ids.Steps))
	_, others = r.claim(w)
	is(r, "claimed after another freed it", len(others.Requests), 0)
	r.must(r.Store.Free(r.ctx(), c.ClaimID, ids.Steps))
	_, others = r.claim(w)
	is(r, "claimed when it was free", len(others.Requests), 1)
	r.Pass(2 * time.Minute)
	claim, others := r.claim(w)
	is(r, "claimed when the claim was over", len(others.Requests), 1)
	item := assign(w, c.ClaimID, "", others.Requests...)
	is(r, "granted by a claim that was", len(r.dispatch(item).Granted), 0)
	item.ClaimID = claim
	is(r, "granted by the claim that is", len(r.dispatch(item).Granted), 1)
}

func nextDue(r *rig) {
	g := scheduler.Group{Namespace: "default", Capability: "a"}
	pinned := scheduler.Group{Namespace: "default", Capability: "a", Node: "n"}
	empty := scheduler.Group{Namespace: "default", Capability: "b"}
	look := func() map[scheduler.Group]time.Duration {
		due, err := r.Store.NextDue(r.ctx(), []scheduler.Group{g, pinned, empty})
		r.must(err)
		in := map[scheduler.Group]time.Duration{}
		for _, d := range due {
			in[d.Group] = d.In
		}
		return in
	}
	late, there := stepOf("late"), stepOf("there")
	late.StartDelay, there.Node = 10*time.Minute, "n"
	r.enqueue(late, there)
	due := look()
	is(r, "groups", len(due), 2)
	r.about("until it is due", due[g], 10*time.Minute)
	is(r, "due", due[pinned] <= 0, true)
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Node: "n", Capabilities: []string{"a"}, Slots: 5})
	r.claim(w)
	r.about("until its claim ends", look()[pinned], time.Minute)
	_, err := r.Store.Pause(r.ctx(), scheduler.CapabilityKey{Namespace: "default", Name: "a"}, "")
	r.must(err)
	is(r, "groups of a paused capability", len(look()), 0)
}

func dispatchGrants(r *rig) {
	ids := r.enqueue(stepOf("x"), stepOf("y"))
	w := r.register("w", "a")
	views := r.lease(w, "poll")
	is(r, "leases", len(views), 2)
	is(r, "versions grow", views[0].LeaseVersion < views[1].LeaseVersion, true)
	l := views[0]
	is(r, "number", l.AttemptNumber, 1)
	is(r, "execution", l.ExecutionID, ids.Execution)
	is(r, "request id", l.RequestID, "poll")
	is(r, "delivery", l.Delivery, 1)
	r.about("remaining", l.Remaining, time.Minute)
	r.about("until start_to_close", l.StartToCloseRemaining, time.Hour)
	got := r.get(ids.Execution)
	is(r, "state", got.State, task.ExecutionRunning)
	is(r, "live attempts", got.LiveAttempts, 2)
	a := r.attempt(ids.Execution, 0)
	is(r, "attempt", a.State, task.AttemptLeased)
	is(r, "worker", a.WorkerName, "w")
	is(r, "lease's end is shown", a.ExpiresAt != nil, true)
	r.states(ids.Execution, task.StepRunning, task.StepRunning)
	_, claimed := r.claim(w)
	is(r, "claimed again", len(claimed.Requests), 0)
	is(r, "free slots", claimed.Free[w.WorkerID], 0)
}

func dispatchRepeated(r *rig) {
	r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	claim, claimed := r.claim(w)
	c := assign(w, claim, "poll", claimed.Requests...)
	for range 2 { // its own commit, whose answer was lost
		is(r, "granted", r.dispatch(c).Granted[c.Items[0].AttemptID], true)
	}
	other := assign(w, claim, "poll", claimed.Requests...)
	is(r, "granted to another attempt", len(r.dispatch(other).Granted), 0)
	views, err := r.Store.Contents(r.ctx(), []uuid.UUID{c.Items[0].AttemptID, other.Items[0].AttemptID})
	r.must(err)
	is(r, "leases", len(views), 1)
}

func dispatchConditions(r *rig) {
	ids := r.enqueue(stepOf("x"), stepOf("y"), stepOf("z"))
	w := r.register("w", "a")
	big := w
	big.Slots = 10 // more than the store knows of
	claim, claimed := r.claim(w, r.register("v", "a"))
	is(r, "claimed", len(claimed.Requests), 3)
	done := r.dispatch(assign(big, claim, "", claimed.Requests...))
	is(r, "granted within the slots", len(done.Granted), 2)
	is(r, "dropped", done.Dropped, 0)
	rest := assign(w, claim, "", claimed.Requests[2])
	rest.Items[0].SessionID = uuid.New()
	is(r, "granted to another session", len(r.dispatch(rest).Granted), 0)
	rest.Items[0].SessionID, rest.Items[0].WorkerID = w.SessionID, uuid.New()
	is(r, "granted to an unknown worker", len(r.dispatch(rest).Granted), 0)
	free := r.register("u", "a")
	rest.Items[0].SessionID, rest.Items[0].WorkerID, rest.Items[0].Number = free.SessionID, free.WorkerID, 2
	is(r, "granted with another number", len(r.dispatch(rest).Granted), 0)
	_, err := r.Store.Pause(r.ctx(), scheduler.CapabilityKey{Namespace: "default", Name: "a"}, "")
	r.must(err)
	rest.Items[0].Number = 1
	is(r, "granted while paused", len(r.dispatch(rest).Granted), 0)
	_, err = r.Store.Resume(r.ctx(), scheduler.CapabilityKey{Namespace: "default", Name: "a"})
	r.must(err)
	is(r, "granted at last", len(r.dispatch(rest).Granted), 1)
	is(r, "live attempts", r.get(ids.Execution).LiveAttempts, 3)
}

func dispatchAnswersOnce(r *rig) {
	r.enqueue(stepOf("x"))
	w := r.register("w", "a")
	is(r, "leases", len(r.lease(w, "poll")), 1)
	r.enqueue(stepOf("y"))
	claim, claimed := r.claim(w)
	done := r.dispatch(assign(w, claim, "poll", claimed.Requests...))
	is(r, "granted", len(done.Granted), 0)
	key := scheduler.PollKey{WorkerID: w.WorkerID, SessionID: w.SessionID, RequestID: "poll"}
	if !slices.Equal(done.Answered, []scheduler.PollKey{key}) {
		r.Fatalf("answered before: %v", done.Answered)
	}
	is(r, "granted to another poll", len(r.dispatch(assign(w, claim, "next", claimed.Requests...)).Granted), 1)
}

func dispatchDrops(r *rig) {
	w := r.register("w", "a")
	canceled := r.enqueue(stepOf("s"))
	claim, claimed := r.claim(w)
	_, err := r.cancel(canceled.Execution)
	r.must(err)
	done := r.dispatch(assign(w, claim, "", claimed.Requests...))
	is(r, "granted after a cancel", len(done.Granted), 0)

	s := stepOf("s")
	s.ScheduleToClose = 30 * time.Second
	late := r.enqueue(s)
	claim, claimed = r.claim(w)
	is(r, "claimed", len(claimed.Requests), 1)
	r.Pass(40 * time.Second)
	done = r.dispatch(assign(w, claim, "", claimed.Requests...))
	is(r, "granted after its deadline", len(done.Granted), 0)
	is(r, "dropped", done.Dropped, 1)
	r.sweep()
	is(r, "stopped because", r.step(late.Execution, 0).StoppedBecause, task.StoppedScheduleToClose)
}

func contentsPayloads(r *rig) {
	child := stepOf("child", "one", "two")
	child.Input = &task.Payload{Body: []byte("in"), ContentType: "text/plain"}
	spec := specOf(stepOf("one"), stepOf("two"), child)
	spec.TraceContext, spec.Labels = map[string]string{"traceparent": "00-x"}, map[string]string{"l": "v"}
	ids := r.accept(spec)
	w := r.register("w", "a")
	for i, l := range r.lease(w, "") {
		o := task.Outcome{State: task.AttemptSucceeded}
		if i == 0 {
			o.Output = &task.Payload{Body: []byte("out")}
		}
		_, err := r.report(l, o)
		r.must(err)
	}
	l := r.leaseOne(w)
	is(r, "input", string(l.Input.Body)+l.Input.ContentType, "intext/plain")
	is(r, "parents with an output", len(l.ParentOutputs), 1)
	is(r, "trace", l.TraceContext["traceparent"], "00-x")
	is(r, "label", l.Labels["l"], "v")
	results, err := r.Store.Renew(r.ctx(), []scheduler.Renewal{{
		AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: w.SessionID, Duration: time.Minute,
		Checkpoint: &task.Payload{Body: []byte("half")}, ProgressMessage: "half",
	}}, false)
	r.must(err)
	r.must(results[0].Err)
	is(r, "progress", r.attempt(ids.Execution, 2).ProgressMessage, "half")
	_, err = r.report(l, failed())
	r.must(err)
	r.Pass(time.Minute)
	l = r.leaseOne(w)
	is(r, "number", l.AttemptNumber, 2)
	is(r, "checkpoint", string(l.Checkpoint.Body), "half")
	is(r, "failure", l.PreviousFailure.Type, "TEST")
}
