package storetest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const every = time.Minute // between sweeps

func (r *rig) beginSweep() scheduler.SweepStart {
	r.Helper()
	start, err := r.Store.BeginSweep(r.ctx(), every)
	r.must(err)
	return start
}

func sweepOne(r *rig) {
	start := r.beginSweep()
	is(r, "mine", start.Mine, true)
	is(r, "gap of the first one", start.Gap, 0)
	is(r, "too soon", r.beginSweep().Mine, false)
	r.Pass(every)
	start = r.beginSweep()
	is(r, "mine", start.Mine, true)
	is(r, "credited", start.Credited, false)
	r.about("gap", start.Gap, every)
	r.enqueue(stepOf("s"))
	l := r.leaseOne(r.register("w", "a"))
	r.Pass(every / 2)
	is(r, "leases over", r.beginSweep().LeasesOver, false)
	r.Pass(every)
	start = r.beginSweep()
	is(r, "leases over", start.LeasesOver, true)
	is(r, "timers due", start.TimersDue, false)
	r.succeed(l)
	r.Pass(-2 * time.Hour) // the clock goes back: it is only stamped
	start = r.beginSweep()
	is(r, "mine", start.Mine, true)
	is(r, "credited", start.Credited, false)
}

func sweepCredit(r *rig) {
	w := r.register("w", "a")
	r.enqueue(stepOf("x"))
	stopped := r.enqueue(stepOf("y"))
	leases := r.lease(w, "")
	is(r, "leases", len(leases), 2)
	_, err := r.cancel(stopped.Execution)
	r.must(err)
	r.beginSweep()
	r.Pass(30 * time.Minute)
	start := r.beginSweep()
	is(r, "credited", start.Credited, true)
	is(r, "leases over", start.LeasesOver, false)
	for _, l := range leases {
		got, err := r.renew(w, l, time.Second)
		r.must(err)
		r.about("remaining", got.Remaining, time.Minute)
	}
	r.Pass(every)
	is(r, "credited again", r.beginSweep().Credited, false)
}

func sweepLeases(r *rig) {
	w := r.register("w", "a")
	lost := r.enqueue(stepOf("s"))
	l := r.leaseOne(w)
	leases, _ := r.sweep()
	is(r, "ended too early", leases, 0)
	r.Pass(2 * time.Minute)
	leases, _ = r.sweep()
	is(r, "ended", leases, 1)
	a := r.attempt(lost.Execution, 0)
	is(r, "attempt", a.State, task.AttemptLost)
	is(r, "reason", a.Reason, task.EndLeaseExpired)
	is(r, "counted", r.step(lost.Execution, 0).Counted, 1)
	_, err := r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonLeaseExpired)
	leases, _ = r.sweep()
	is(r, "ended again", leases, 0)
	second := r.leaseOne(w)
	is(r, "a greater version", second.LeaseVersion > l.LeaseVersion, true)
	_, err = r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonLeaseSuperseded)
	r.register("w", "a")
	r.Pass(2 * time.Minute)
	r.sweep()
	is(r, "reason of the session before", r.attempt(lost.Execution, 0).Reason, task.EndSessionSuperseded)

	v := r.register("v", "b")
	s := stepOf("s")
	s.Capability, s.StartToClose = "b", 30*time.Second
	slow := r.enqueue(s)
	r.leaseOne(v)
	r.Pass(2 * time.Minute)
	r.sweep()
	a = r.attempt(slow.Execution, 0)
	is(r, "attempt", a.State, task.AttemptTimedOut)
	is(r, "reason", a.Reason, task.EndStartToClose)
}

// One step is lost and would be tried again, another has failed for good and stops all: in one
// transaction, whichever is first. Nothing is left that a dispatcher would find.
func sweepFailFast(r *rig) {
	w := r.register("w", "a")
	once := stepOf("once")
	once.Retry.MaximumAttempts = 1
	for range 10 { // the order is that of ids
		spec := specOf(stepOf("more"), once)
		spec.FailFast = true
		ids := r.accept(spec)
		is(r, "leases", len(r.lease(w, "")), 2)
		r.Pass(2 * time.Minute)
		r.sweep()
		r.states(ids.Execution, task.StepCanceled, task.StepFailed)
	}
	due, err := r.Store.NextDue(r.ctx(), []scheduler.Group{{Namespace: "default", Capability: "a"}})
	r.must(err)
	is(r, "groups of which something waits", len(due), 0)
}

func sweepBatches(r *rig) {
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"a"}, Slots: 10})
	var all []uuid.UUID
	for range 5 {
		all = append(all, r.enqueue(stepOf("s")).Execution)
	}
	is(r, "leases", len(r.lease(w, "")), 5)
	r.Pass(2 * time.Minute)
	expire := func(b scheduler.SweepBatch) scheduler.Swept {
		swept, err := r.Store.ExpireLeases(r.ctx(), b)
		r.must(err)
		return swept
	}
	swept := expire(scheduler.SweepBatch{Limit: 2})
	is(r, "done", swept.Done, 2)
	is(r, "more", swept.More, true)
	is(r, "looked at", len(swept.Looked), 2)
	left := slices.DeleteFunc(all, func(id uuid.UUID) bool { return slices.Contains(swept.Looked, id) })
	swept = expire(scheduler.SweepBatch{Skipped: left[:1]})
	is(r, "done but for one", swept.Done, 2)
	is(r, "done of others", expire(scheduler.SweepBatch{Wait: []uuid.UUID{uuid.New()}}).Done, 0)
	is(r, "done of the one", expire(scheduler.SweepBatch{Wait: left[:1]}).Done, 1)
	is(r, "done of nothing", expire(scheduler.SweepBatch{}).Done, 0)
}

func timerStart(r *rig) {
	spec := specOf(stepOf("s"))
	spec.StartDelay = time.Hour
	ids := r.accept(spec)
	w := r.register("w", "a")
	_, timers := r.sweep()
	is(r, "timers", timers, 0)
	is(r, "leases before it starts", len(r.lease(w, "")), 0)
	r.Pass(time.Hour + time.Minute)
	is(r, "timers due", r.beginSweep().TimersDue, true)
	_, timers = r.sweep()
	is(r, "timers", timers, 1)
	is(r, "state", r.get(ids.Execution).State, task.ExecutionQueued)
	is(r, "leases", len(r.lease(w, "")), 1)

	ids = r.accept(spec) // dispatch may be the first to see it
	r.Pass(time.Hour + time.Minute)
	is(r, "leases", len(r.lease(w, "")), 1)
	r.sweep()
	is(r, "state", r.get(ids.Execution).State, task.ExecutionRunning)
}

func timerSteps(r *rig) {
	waits, lasts := stepOf("waits"), stepOf("lasts")
	waits.ScheduleToStart, lasts.ScheduleToClose = time.Minute, 10*time.Minute
	ids := r.enqueue(waits, lasts, stepOf("after", "waits"))
	r.Pass(30 * time.Second)
	_, timers := r.sweep()
	is(r, "timers", timers, 0)
	r.Pass(time.Minute)
	r.sweep()
	r.states(ids.Execution, task.StepFailed, task.StepReady, task.StepSkipped)
	is(r, "because", r.step(ids.Execution, 0).StoppedBecause, task.StoppedScheduleToStart)
	w := r.register("w", "a")
	_, err := r.renew(w, r.leaseOne(w), time.Hour)
	r.must(err)
	r.Pass(10 * time.Minute)
	leases, _ := r.sweep()
	is(r, "leases ended", leases, 1)
	is(r, "because", r.step(ids.Execution, 1).StoppedBecause, task.StoppedScheduleToClose)
	is(r, "execution", r.get(ids.Execution).State, task.ExecutionFailed)
}

func timerDeadline(r *rig) {
	spec := specOf(stepOf("a"), stepOf("b"), stepOf("c", "a"))
	spec.Timeout = 10 * time.Minute
	ids := r.accept(spec)
	w := r.join(scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"a"}, Slots: 1})
	l := r.leaseOne(w)
	got, err := r.renew(w, l, time.Hour)
	r.must(err)
	r.about("remaining", got.Remaining, 10*time.Minute)
	r.Pass(11 * time.Minute)
	_, err = r.Store.FireTimers(r.ctx(), scheduler.SweepBatch{})
	r.must(err)
	view := r.get(ids.Execution)
	is(r, "execution", view.State, task.ExecutionFailed)
	is(r, "live attempts", view.LiveAttempts, 0)
	is(r, "skipped child", view.Steps[2].State, task.StepSkipped)
	for _, s := range view.Steps[:2] {
		is(r, "step", s.State, task.StepFailed)
		is(r, "because", s.StoppedBecause, task.StoppedDeadline)
	}
	_, err = r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.refused(err, task.ReasonExecutionClosed)
}
