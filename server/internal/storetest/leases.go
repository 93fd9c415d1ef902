package storetest

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func lookup(r *rig) {
	r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	leases := r.lease(w, "poll")
	look := func(worker, session uuid.UUID, requestID string) scheduler.PollState {
		r.Helper()
		states, err := r.Store.Lookup(r.ctx(), []scheduler.PollKey{{WorkerID: worker, SessionID: session, RequestID: requestID}})
		r.must(err)
		return states[0]
	}
	st := look(w.WorkerID, w.SessionID, "poll")
	r.must(st.Err)
	is(r, "answered", st.Answered, true)
	is(r, "live", len(st.Live), 1)
	is(r, "slots", st.Worker.Slots, 2)
	st = look(w.WorkerID, w.SessionID, "other")
	is(r, "another poll was answered", st.Answered, false)
	is(r, "another poll's leases", len(st.Live), 0)
	r.unknown(look(uuid.New(), w.SessionID, "").Err, scheduler.KindWorker)
	r.unknown(look(w.WorkerID, uuid.New(), "").Err, scheduler.KindSession)
	r.succeed(leases[0])
	st = look(w.WorkerID, w.SessionID, "poll")
	is(r, "still answered", st.Answered, true)
	is(r, "live when it has ended", len(st.Live), 0)
	r.register("w", "a")
	r.refused(look(w.WorkerID, w.SessionID, "poll").Err, task.ReasonSessionSuperseded)
	states, err := r.Store.Touch(r.ctx(), []uuid.UUID{w.WorkerID, uuid.New()})
	r.must(err)
	is(r, "workers touched", len(states), 1)
	is(r, "its session is the new one", states[w.WorkerID].SessionID != w.SessionID, true)
}

// giveBack hands a grant back.
func (r *rig) giveBack(l scheduler.LeaseView, delivery int) {
	r.Helper()
	r.must(r.Store.Return(r.ctx(), []scheduler.Undelivered{{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Delivery: delivery}}))
}

func returnLastDelivery(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.lease(w, "poll")[0]
	views, err := r.Store.Replay(r.ctx(), []uuid.UUID{l.AttemptID})
	r.must(err)
	is(r, "delivery", views[0].Delivery, 2)
	is(r, "version", views[0].LeaseVersion, l.LeaseVersion)
	r.giveBack(l, 1)
	is(r, "live after the first delivery was handed back", r.get(ids.Execution).LiveAttempts, 1)
	r.giveBack(l, 2)
	a := r.attempt(ids.Execution, 0)
	is(r, "attempt", a.State, task.AttemptReleased)
	is(r, "reason", a.Reason, task.EndUndelivered)
	s := r.step(ids.Execution, 0)
	is(r, "counted", s.Counted, 0)
	is(r, "step", s.State, task.StepReady)
	r.giveBack(l, 2) // again: nothing is there
	is(r, "next number", r.leaseOne(w).AttemptNumber, 2)
	views, err = r.Store.Replay(r.ctx(), []uuid.UUID{l.AttemptID})
	r.must(err)
	is(r, "replayed when it was over", len(views), 0)
}

func returnRenewed(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	_, err := r.renew(w, l, time.Minute)
	r.must(err)
	r.giveBack(l, 1)
	is(r, "live", r.get(ids.Execution).LiveAttempts, 1)
}

func renewBounds(r *rig) {
	s := stepOf("s")
	s.StartToClose = 30 * time.Minute
	r.enqueue(s)
	w := r.register("w", "a")
	l := r.leaseOne(w)
	for _, tt := range []struct{ ask, want time.Duration }{
		{10 * time.Minute, 10 * time.Minute},
		{time.Minute, 10 * time.Minute},      // never shortened
		{50 * time.Minute, 30 * time.Minute}, // never beyond a deadline
	} {
		got, err := r.renew(w, l, tt.ask)
		r.must(err)
		r.about("remaining", got.Remaining, tt.want)
		is(r, "worker", got.WorkerID, w.WorkerID)
		is(r, "cancel", got.Cancel, false)
	}
	_, err := r.Store.Drain(r.ctx(), w.WorkerID, w.SessionID)
	r.must(err)
	got, err := r.renew(w, l, time.Minute)
	r.must(err)
	is(r, "draining is told", got.Draining, true)
}

func renewRefusals(r *rig) {
	r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	stale := l
	stale.LeaseVersion--
	_, err := r.renew(w, stale, time.Minute)
	r.refused(err, task.ReasonLeaseSuperseded)
	strange := w
	strange.SessionID = uuid.New()
	_, err = r.renew(strange, l, time.Minute)
	r.refused(err, task.ReasonSessionSuperseded)
	results, err := r.Store.Renew(r.ctx(), []scheduler.Renewal{
		{AttemptID: uuid.New(), LeaseVersion: 1, SessionID: w.SessionID, Duration: time.Minute},
		{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: w.SessionID, Duration: time.Minute},
		{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: w.SessionID, Duration: time.Minute},
	}, false)
	r.must(err)
	r.unknown(results[0].Err, scheduler.KindAttempt)
	r.must(results[1].Err)
	is(r, "a double in a batch waits for the next one", errors.Is(results[2].Err, scheduler.ErrBusy), true)
	r.register("w", "a")
	_, err = r.renew(w, l, time.Minute)
	r.refused(err, task.ReasonSessionSuperseded)
	r.succeed(l) // reports are taken until the lease ends
	_, err = r.renew(w, l, time.Minute)
	r.refused(err, task.ReasonOutcomeRecorded)
}

func reportSuccess(r *rig) {
	ids := r.enqueue(stepOf("a"), stepOf("b", "a"), stepOf("c", "a"), stepOf("d", "b", "c"))
	w := r.register("w", "a")
	o := task.Outcome{State: task.AttemptSucceeded, Output: &task.Payload{JSON: true, Body: []byte("1")}}
	done, err := r.report(r.leaseOne(w), o)
	r.must(err)
	is(r, "step", done.StepState, task.StepSucceeded)
	is(r, "execution", done.ExecutionState, task.ExecutionRunning)
	r.states(ids.Execution, task.StepSucceeded, task.StepReady, task.StepReady, task.StepBlocked)
	is(r, "output", string(r.step(ids.Execution, 0).Output.Body), "1")
	both := r.lease(w, "")
	is(r, "leases", len(both), 2)
	var batch []scheduler.Report
	for _, l := range both { // both parents of one child at once
		batch = append(batch, scheduler.Report{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: o})
	}
	_, err = r.Store.Report(r.ctx(), batch, false)
	r.must(err)
	last := r.leaseOne(w)
	is(r, "the join has both outputs", len(last.ParentOutputs), 2)
	is(r, "end", r.succeed(last).ExecutionState, task.ExecutionSucceeded)
	got := r.get(ids.Execution)
	is(r, "open steps", got.OpenSteps, 0)
	is(r, "live attempts", got.LiveAttempts, 0)
	is(r, "has an end", got.EndedAt != nil, true)
}

func reportFailures(r *rig) {
	ids := r.enqueue(stepOf("a"), stepOf("b", "a"), stepOf("c", "b"))
	w := r.register("w", "a")
	for i, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
		done, err := r.report(r.leaseOne(w), failed())
		r.must(err)
		is(r, "step", done.StepState, task.StepReady)
		a := r.attempt(ids.Execution, 0)
		is(r, "backoff", done.NextDue.Sub(*a.EndedAt).Round(time.Second), wait)
		is(r, "counted", r.step(ids.Execution, 0).Counted, i+1)
		is(r, "leases before it is due", len(r.lease(w, "")), 0)
		r.Pass(wait + time.Second)
	}
	done, err := r.report(r.leaseOne(w), failed())
	r.must(err)
	is(r, "step", done.StepState, task.StepFailed)
	is(r, "execution", done.ExecutionState, task.ExecutionFailed)
	is(r, "because", r.step(ids.Execution, 0).StoppedBecause, task.StoppedMaximumAttempts)
	r.states(ids.Execution, task.StepFailed, task.StepSkipped, task.StepSkipped)

	ids = r.enqueue(stepOf("a"))
	f := failed()
	f.Failure.NonRetryable = true
	done, err = r.report(r.leaseOne(w), f)
	r.must(err)
	is(r, "execution", done.ExecutionState, task.ExecutionFailed)
	is(r, "because", r.step(ids.Execution, 0).StoppedBecause, task.StoppedNonRetryable)
}

func reportLate(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	stale := l
	stale.LeaseVersion--
	_, err := r.report(stale, failed()) // the lease is live, and not with that version
	r.refused(err, task.ReasonLeaseSuperseded)
	is(r, "live", r.get(ids.Execution).LiveAttempts, 1)
	_, err = r.report(l, failed())
	r.must(err)
	again, err := r.report(l, failed())
	r.must(err)
	is(r, "replayed", again.Replayed, true)
	is(r, "has the next due time", again.NextDue != nil, true)
	revision := r.get(ids.Execution).Revision
	for range 3 {
		_, err = r.report(l, task.Outcome{State: task.AttemptSucceeded})
		r.refused(err, task.ReasonOutcomeRecorded)
	}
	guess := l
	guess.LeaseVersion += 1000
	_, err = r.report(guess, failed())
	r.refused(err, task.ReasonLeaseSuperseded)
	entries, err := r.Store.ListTimeline(r.ctx(), ids.Execution, revision, 10)
	r.must(err)
	is(r, "new traces", len(entries), 1) // guesses have one among them
	is(r, "times", entries[0].Count, 3)
	is(r, "revision", r.get(ids.Execution).Revision, revision+1)
	is(r, "attempts", len(r.step(ids.Execution, 0).Attempts), 1)

	r.enqueue(stepOf("s")) // late, but the lease is there: accepted
	l = r.leaseOne(w)
	r.Pass(2 * time.Minute)
	is(r, "accepted", r.succeed(l).ExecutionState, task.ExecutionSucceeded)
}

func reportReleaseCancel(r *rig) {
	ids := r.enqueue(stepOf("s"))
	w := r.register("w", "a")
	l := r.leaseOne(w)
	_, err := r.report(l, task.Outcome{State: task.AttemptCanceled})
	r.refused(err, task.ReasonCancelNotRequested)
	done, err := r.report(l, task.Outcome{State: task.AttemptReleased, Reason: "busy", NotBefore: time.Hour})
	r.must(err)
	is(r, "step", done.StepState, task.StepReady)
	is(r, "counted", r.step(ids.Execution, 0).Counted, 0)
	is(r, "leases before it is due", len(r.lease(w, "")), 0)
	r.Pass(time.Hour + time.Minute)
	is(r, "number", r.leaseOne(w).AttemptNumber, 2)
}

func reportItems(r *rig) {
	r.enqueue(stepOf("x"), stepOf("y"))
	w := r.register("w", "a")
	views := r.lease(w, "")
	ok := task.Outcome{State: task.AttemptSucceeded}
	results, err := r.Store.Report(r.ctx(), []scheduler.Report{
		{AttemptID: uuid.New(), LeaseVersion: 1, Outcome: ok},
		{AttemptID: views[0].AttemptID, LeaseVersion: views[0].LeaseVersion, Outcome: ok},
		{AttemptID: views[0].AttemptID, LeaseVersion: views[0].LeaseVersion, Outcome: ok},
		{AttemptID: views[1].AttemptID, LeaseVersion: views[1].LeaseVersion, Outcome: task.Outcome{State: task.AttemptCanceled}},
	}, false)
	r.must(err)
	r.unknown(results[0].Err, scheduler.KindAttempt)
	r.must(results[1].Err)
	is(r, "a double in a batch waits for the next one", errors.Is(results[2].Err, scheduler.ErrBusy), true)
	r.refused(results[3].Err, task.ReasonCancelNotRequested)
	is(r, "the refused one lives", r.get(views[0].ExecutionID).LiveAttempts, 1)
}
