package storetest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func registerSessions(r *rig) {
	reg := scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"a"}, Slots: 1, RequestID: "r1"}
	first := r.join(reg)
	again := r.join(reg)
	is(r, "a repeat's session", again.SessionID, first.SessionID)
	reg.RequestID = "r2"
	next := r.join(reg)
	is(r, "worker", next.WorkerID, first.WorkerID)
	is(r, "a new session", next.SessionID != first.SessionID, true)
	_, err := r.Store.Drain(r.ctx(), first.WorkerID, first.SessionID)
	r.refused(err, task.ReasonSessionSuperseded)
	_, err = r.Store.Drain(r.ctx(), first.WorkerID, uuid.New())
	r.unknown(err, scheduler.KindSession)
	_, err = r.Store.Drain(r.ctx(), uuid.New(), next.SessionID)
	r.unknown(err, scheduler.KindWorker)
	r.enqueue(stepOf("s"))
	live, err := r.Store.Drain(r.ctx(), next.WorkerID, next.SessionID)
	r.must(err)
	is(r, "live leases", live, 0)
	_, claimed := r.claim(next)
	is(r, "free slots when drained", claimed.Free[next.WorkerID], 0)
	is(r, "claimed when drained", len(claimed.Requests), 0)
	reg.RequestID = "r3"
	fresh := r.join(reg) // a new session is not drained
	is(r, "leases", len(r.lease(fresh, "")), 1)
	is(r, "another name's worker", r.register("v", "a").WorkerID != fresh.WorkerID, true)
}

func deregisterLeases(r *rig) {
	ids := r.enqueue(stepOf("x"), stepOf("y"))
	w := r.register("w", "a")
	is(r, "leases", len(r.lease(w, "")), 2)
	_, err := r.Store.Deregister(r.ctx(), w.WorkerID, w.SessionID, false)
	r.refused(err, scheduler.ReasonLeasesLive)
	ended, err := r.Store.Deregister(r.ctx(), w.WorkerID, w.SessionID, true)
	r.must(err)
	is(r, "ended", ended, 2)
	a := r.attempt(ids.Execution, 0)
	is(r, "attempt", a.State, task.AttemptLost)
	is(r, "reason", a.Reason, task.EndDeregistered)
	r.states(ids.Execution, task.StepReady, task.StepReady)
	_, err = r.Store.Deregister(r.ctx(), w.WorkerID, w.SessionID, true)
	r.unknown(err, scheduler.KindSession)
	_, claimed := r.claim(w)
	is(r, "free slots of one that left", claimed.Free[w.WorkerID], 0)

	old := r.register("v", "a")
	is(r, "leases", len(r.lease(old, "")), 2)
	next := r.register("v", "a") // leaving ends the leases of the session before too
	ended, err = r.Store.Deregister(r.ctx(), next.WorkerID, next.SessionID, true)
	r.must(err)
	is(r, "ended of both sessions", ended, 2)
}

func cancelAll(r *rig) {
	w := r.register("w", "a")
	ids := r.enqueue(stepOf("a"), stepOf("b"), stepOf("c", "a"), stepOf("d", "b"))
	views := r.lease(w, "")
	view, err := r.cancel(ids.Execution)
	r.must(err)
	is(r, "state", view.State, task.ExecutionCanceling)
	r.states(ids.Execution, task.StepRunning, task.StepRunning, task.StepCanceled, task.StepCanceled)
	revision := view.Revision
	view, err = r.cancel(ids.Execution)
	r.must(err)
	is(r, "revision after a repeat", view.Revision, revision)
	got, err := r.renew(w, views[0], time.Hour)
	r.must(err)
	is(r, "cancel is told", got.Cancel, true)
	r.about("remaining", got.Remaining, time.Minute)
	r.about("grace", got.CancelRemaining, time.Minute)
	r.succeed(views[0])
	done, err := r.report(views[1], task.Outcome{State: task.AttemptCanceled})
	r.must(err)
	is(r, "execution", done.ExecutionState, task.ExecutionCanceled)
	of := map[uuid.UUID]task.StepState{views[0].StepID: task.StepSucceeded, views[1].StepID: task.StepCanceled}
	r.states(ids.Execution, of[ids.Steps[0]], of[ids.Steps[1]], task.StepCanceled, task.StepCanceled)

	waiting, over := r.enqueue(stepOf("a")), r.enqueue(stepOf("a"))
	for _, l := range r.lease(w, "") {
		if l.ExecutionID == over.Execution {
			r.succeed(l)
		} else {
			_, err := r.report(l, task.Outcome{State: task.AttemptReleased})
			r.must(err)
		}
	}
	results, err := r.Store.Cancel(r.ctx(), []scheduler.Cancellation{
		{Execution: waiting.Execution}, {Execution: over.Execution}, {Execution: uuid.New()}, {Execution: waiting.Execution},
	}, false)
	r.must(err)
	r.must(results[0].Err)
	is(r, "state", results[0].Value.State, task.ExecutionCanceled)
	r.refused(results[1].Err, task.ReasonExecutionClosed)
	r.unknown(results[2].Err, scheduler.KindExecution)
	r.must(results[3].Err)
	is(r, "leases", len(r.lease(w, "")), 0)
}

func cancelGrace(r *rig) {
	w := r.register("w", "a")
	ids := r.enqueue(stepOf("a"))
	l := r.leaseOne(w)
	_, err := r.renew(w, l, 30*time.Minute)
	r.must(err)
	_, err = r.cancel(ids.Execution)
	r.must(err)
	r.Pass(2 * time.Minute)
	leases, _ := r.sweep()
	is(r, "leases ended", leases, 1)
	is(r, "attempt", r.attempt(ids.Execution, 0).State, task.AttemptCanceled)
	is(r, "execution", r.get(ids.Execution).State, task.ExecutionCanceled)
	_, err = r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonExecutionClosed)
	is(r, "execution", r.get(ids.Execution).State, task.ExecutionCanceled)
}

func failFast(r *rig) {
	w := r.register("w", "a")
	fails := stepOf("a")
	fails.Retry.MaximumAttempts = 1
	spec := specOf(fails, stepOf("b"), stepOf("c", "b"))
	spec.FailFast = true
	ids := r.accept(spec)
	of := map[string]scheduler.LeaseView{}
	for _, l := range r.lease(w, "") {
		of[l.StepName] = l
	}
	done, err := r.report(of["a"], failed())
	r.must(err)
	is(r, "execution", done.ExecutionState, task.ExecutionRunning)
	r.states(ids.Execution, task.StepFailed, task.StepRunning, task.StepCanceled)
	got, err := r.renew(w, of["b"], time.Hour)
	r.must(err)
	is(r, "cancel is told", got.Cancel, true)
	is(r, "execution", r.succeed(of["b"]).ExecutionState, task.ExecutionFailed)
}

func retryRounds(r *rig) {
	w := r.register("w", "a")
	fails := stepOf("a")
	fails.Retry.MaximumAttempts = 1
	ids := r.enqueue(fails, stepOf("b", "a"), stepOf("c"))
	retry := scheduler.Retry{Execution: ids.Execution, RequestID: "r1", Reason: "again"}
	_, err := r.Store.Retry(r.ctx(), retry)
	r.refused(err, task.ReasonNotRetryable)
	for _, l := range r.lease(w, "") {
		o := failed()
		if l.StepName == "c" {
			o = task.Outcome{State: task.AttemptSucceeded}
		}
		_, err := r.report(l, o)
		r.must(err)
	}
	r.states(ids.Execution, task.StepFailed, task.StepSkipped, task.StepSucceeded)
	_, err = r.Store.Retry(r.ctx(), scheduler.Retry{Execution: ids.Execution, RequestID: "x", Steps: []string{"nowhere"}})
	r.unknown(err, scheduler.KindStep)
	_, err = r.Store.Retry(r.ctx(), scheduler.Retry{Execution: ids.Execution, RequestID: "x", Steps: []string{"c"}})
	r.refused(err, task.ReasonStepNotRetryable)
	_, err = r.Store.Retry(r.ctx(), scheduler.Retry{Execution: uuid.New(), RequestID: "x"})
	r.unknown(err, scheduler.KindExecution)
	for _, replayed := range []bool{false, true} {
		done, err := r.Store.Retry(r.ctx(), retry)
		r.must(err)
		is(r, "replayed", done.Replayed, replayed)
		is(r, "round", done.Round, 2)
		is(r, "state", done.Execution.State, task.ExecutionQueued)
	}
	r.states(ids.Execution, task.StepReady, task.StepBlocked, task.StepSucceeded)
	l := r.leaseOne(w)
	is(r, "number", l.AttemptNumber, 2)
	r.succeed(l)
	is(r, "end", r.succeed(r.leaseOne(w)).ExecutionState, task.ExecutionSucceeded)
	done, err := r.Store.Retry(r.ctx(), retry)
	r.must(err)
	is(r, "round of a late repeat", done.Round, 2)
}

func pauseGrants(r *rig) {
	key := scheduler.CapabilityKey{Namespace: "default", Name: "a"}
	_, err := r.Store.Resume(r.ctx(), key)
	r.unknown(err, scheduler.KindCapability)
	view, err := r.Store.Pause(r.ctx(), key, "first")
	r.must(err)
	is(r, "reason", view.Pause.Reason, "first")
	view, err = r.Store.Pause(r.ctx(), key, "second")
	r.must(err)
	is(r, "reason of one that was paused", view.Pause.Reason, "first")
	r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	is(r, "leases while paused", len(r.lease(w, "")), 0)
	for range 2 {
		view, err = r.Store.Resume(r.ctx(), key)
		r.must(err)
		is(r, "not paused", view.Pause == nil, true)
	}
	is(r, "leases", len(r.lease(w, "")), 1)
}

func drainWorkers(r *rig) {
	r.enqueue(stepOf("x"), stepOf("y"))
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Node: "n", Version: "v1", Capabilities: []string{"a"}, Slots: 2})
	_, err := r.Store.SetDrain(r.ctx(), scheduler.Drain{Namespace: "default", Kind: scheduler.DrainWorker, Value: uuid.NewString(), Draining: true})
	r.unknown(err, scheduler.KindWorker)
	for kind, value := range map[scheduler.DrainKind]string{
		scheduler.DrainWorker: w.WorkerID.String(), scheduler.DrainNode: "n", scheduler.DrainVersion: "v1",
	} {
		d := scheduler.Drain{Namespace: "default", Kind: kind, Value: value, Draining: true}
		done, err := r.Store.SetDrain(r.ctx(), d)
		r.must(err)
		is(r, "workers", done.Workers, 1)
		is(r, "leases while drained", len(r.lease(w, "")), 0)
		states, err := r.Store.Lookup(r.ctx(), []scheduler.PollKey{{WorkerID: w.WorkerID, SessionID: w.SessionID}})
		r.must(err)
		is(r, "told to polls", states[0].Worker.Draining, true)
		d.Draining = false
		_, err = r.Store.SetDrain(r.ctx(), d)
		r.must(err)
	}
	is(r, "leases", len(r.lease(w, "")), 2)
	done, err := r.Store.SetDrain(r.ctx(), scheduler.Drain{Namespace: "default", Kind: scheduler.DrainNode, Value: "n", Draining: true})
	r.must(err)
	is(r, "leases that they hold", done.Leases, 2)
}

func revokeLease(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	wrong := scheduler.Revocation{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion + 1, Reason: "test"}
	_, err := r.Store.RevokeLease(r.ctx(), wrong)
	r.refused(err, task.ReasonLeaseSuperseded)
	_, err = r.Store.RevokeLease(r.ctx(), scheduler.Revocation{AttemptID: uuid.New(), LeaseVersion: 1})
	r.unknown(err, scheduler.KindAttempt)
	right := scheduler.Revocation{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Reason: "test"}
	for _, replayed := range []bool{false, true} {
		done, err := r.Store.RevokeLease(r.ctx(), right)
		r.must(err)
		is(r, "replayed", done.Replayed, replayed)
		is(r, "step", done.StepState, task.StepReady)
	}
	a := r.attempt(ids.Execution, 0)
	is(r, "attempt", a.State, task.AttemptLost)
	is(r, "reason", a.Reason, task.EndRevoked)
	is(r, "counted", r.step(ids.Execution, 0).Counted, 1)
	_, err = r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonLeaseRevoked)
	_, err = r.renew(w, l, time.Minute)
	r.refused(err, task.ReasonLeaseRevoked)
}

func terminate(r *rig) {
	ids := r.enqueue(stepOf("a"), stepOf("b", "a"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	for range 2 { // a repeat changes nothing
		view, err := r.Store.Terminate(r.ctx(), ids.Execution, "test")
		r.must(err)
		is(r, "state", view.State, task.ExecutionCanceled)
		is(r, "live attempts", view.LiveAttempts, 0)
	}
	is(r, "attempt", r.attempt(ids.Execution, 0).State, task.AttemptLost)
	r.states(ids.Execution, task.StepCanceled, task.StepCanceled)
	_, err := r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonLeaseRevoked)
	_, err = r.Store.Terminate(r.ctx(), uuid.New(), "")
	r.unknown(err, scheduler.KindExecution)
	over := r.enqueue(stepOf("a"))
	r.succeed(r.leaseOne(w))
	_, err = r.Store.Terminate(r.ctx(), over.Execution, "")
	r.refused(err, task.ReasonExecutionClosed)
	is(r, "names", slices.Contains([]task.ExecutionState{r.get(over.Execution).State}, task.ExecutionSucceeded), true)
}
