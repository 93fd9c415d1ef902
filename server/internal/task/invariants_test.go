package task

import (
	"github.com/google/uuid"
)

// check is what must hold after every command.
func (w *world) check() {
	w.t.Helper()
	w.checkCounters()
	w.checkEnd()
	w.checkNumbers()
	for _, id := range w.order {
		w.checkAttempts(id)
		w.checkStep(id)
	}
}

func (w *world) checkCounters() {
	w.t.Helper()
	open, unsuccessful, live := 0, 0, 0
	for id, s := range w.steps {
		if !s.State.Terminal() {
			open++
		} else if s.State != StepSucceeded {
			unsuccessful++
		}
		if w.live(id) != nil {
			live++
		}
	}
	d := w.data
	if d.OpenSteps != open || d.UnsuccessfulSteps != unsuccessful || d.LiveAttempts != live || d.StepCount != len(w.steps) {
		w.t.Fatalf("counters: open %d, unsuccessful %d, live %d of %d steps; counted anew: %d, %d, %d of %d",
			d.OpenSteps, d.UnsuccessfulSteps, d.LiveAttempts, d.StepCount, open, unsuccessful, live, len(w.steps))
	}
	if len(w.leases) != live {
		w.t.Fatalf("%d leases, %d live attempts", len(w.leases), live)
	}
}

func (w *world) checkEnd() {
	w.t.Helper()
	d := w.data
	if d.State.Terminal() != (d.OpenSteps == 0) {
		w.t.Fatalf("execution is %s with %d open steps", d.State, d.OpenSteps)
	}
	if d.State.Terminal() != (d.EndedAt != nil) || d.State.Terminal() != (d.EndEntry != 0) {
		w.t.Fatalf("execution is %s: ended at %v, entry %d", d.State, d.EndedAt, d.EndEntry)
	}
	if d.State.Terminal() && len(w.requests)+len(w.leases) > 0 {
		w.t.Fatalf("execution is %s with %d requests and %d leases", d.State, len(w.requests), len(w.leases))
	}
	if d.State == ExecutionFailed && d.Failure == nil {
		w.t.Fatalf("execution is FAILED without a failure")
	}
	if d.State == ExecutionSucceeded && d.UnsuccessfulSteps > 0 {
		w.t.Fatalf("execution is SUCCEEDED with %d unsuccessful steps", d.UnsuccessfulSteps)
	}
	if d.State == ExecutionCanceling && (!d.Stopping || d.LiveAttempts == 0) {
		w.t.Fatalf("execution is CANCELING: stopping %v, %d live attempts", d.Stopping, d.LiveAttempts)
	}
	if d.LiveAttempts > 0 && d.State != ExecutionRunning && d.State != ExecutionCanceling {
		w.t.Fatalf("execution is %s with %d live attempts", d.State, d.LiveAttempts)
	}
	if d.Stopping && len(w.requests) > 0 {
		w.t.Fatalf("execution is being stopped and still wants %d attempts", len(w.requests))
	}
}

func (w *world) checkNumbers() {
	w.t.Helper()
	for n := int64(1); n <= w.data.Revision; n++ {
		if w.numbers[n] == "" {
			w.t.Fatalf("timeline number %d of %d was given to nothing", n, w.data.Revision)
		}
	}
	if int64(len(w.numbers)) != w.data.Revision {
		w.t.Fatalf("%d timeline entries, counter %d", len(w.numbers), w.data.Revision)
	}
	for i, ev := range w.events {
		if ev.Sequence != int64(i+1) {
			w.t.Fatalf("event %d of %d has sequence %d", i+1, len(w.events), ev.Sequence)
		}
	}
	if int64(len(w.events)) != w.data.Sequence {
		w.t.Fatalf("%d events, counter %d", len(w.events), w.data.Sequence)
	}
}

func (w *world) checkAttempts(id uuid.UUID) {
	w.t.Helper()
	list, s := w.attempts[id], w.steps[id]
	counted := 0
	for i, a := range list {
		switch {
		case a.Number != i+1:
			w.t.Fatalf("step %q: attempt %d has number %d", s.Name, i+1, a.Number)
		case a.State == AttemptLeased && i < len(list)-1:
			w.t.Fatalf("step %q: attempt %d is live and not the last", s.Name, a.Number)
		case (a.State == AttemptLeased) != (a.EndedAt == nil):
			w.t.Fatalf("step %q: attempt %d is %s, ended at %v", s.Name, a.Number, a.State, a.EndedAt)
		case i > 0 && list[i-1].EndedAt.After(a.LeasedAt):
			w.t.Fatalf("step %q: attempt %d was leased before %d ended", s.Name, a.Number, i)
		case i > 0 && (list[i-1].LeaseVersion >= a.LeaseVersion || list[i-1].EndEntry >= a.LeaseEntry):
			w.t.Fatalf("step %q: attempt %d does not follow %d", s.Name, a.Number, i)
		case i > 0 && list[i-1].Round == a.Round && (list[i-1].NextDue == nil || list[i-1].NextDue.After(a.LeasedAt)):
			w.t.Fatalf("step %q: attempt %d at %v, due %v", s.Name, a.Number, a.LeasedAt, list[i-1].NextDue)
		}
		if a.State.Counts() && a.Round == w.data.Round {
			counted++
		}
	}
	if s.Counted != counted && !s.State.Terminal() {
		w.t.Fatalf("step %q counted %d attempts of this round, there are %d", s.Name, s.Counted, counted)
	}
	if s.Retry.MaximumAttempts != Unlimited && counted > s.Retry.MaximumAttempts {
		w.t.Fatalf("step %q had %d attempts that count, of %d", s.Name, counted, s.Retry.MaximumAttempts)
	}
}

func (w *world) checkStep(id uuid.UUID) {
	w.t.Helper()
	s := w.steps[id]
	waiting, weight, barred := 0, 0, false
	for _, edge := range w.edges {
		if edge.Child != id {
			continue
		}
		switch p := w.steps[edge.Parent]; p.State {
		case StepSucceeded:
			if p.OutputBytes > 0 {
				weight += p.OutputBytes + len(p.Name)
			}
		default:
			waiting++
			barred = barred || p.State.Terminal()
		}
	}
	live := w.live(id) != nil
	r, wanted := w.requests[id]
	switch {
	case wanted != (s.State == StepReady && !live):
		w.t.Fatalf("step %q is %s, live %v, wanted %v", s.Name, s.State, live, wanted)
	case wanted && r.Number != len(w.attempts[id])+1:
		w.t.Fatalf("step %q wants attempt %d after %d", s.Name, r.Number, len(w.attempts[id]))
	case s.State == StepBlocked && (barred || waiting == 0 || s.WaitingParents != waiting):
		w.t.Fatalf("step %q is BLOCKED by %d parents, counts %d, one ended otherwise: %v", s.Name, waiting, s.WaitingParents, barred)
	case (s.State == StepReady || s.State == StepSucceeded) && waiting > 0:
		w.t.Fatalf("step %q is %s and %d parents have not succeeded", s.Name, s.State, waiting)
	case !s.State.Terminal() && s.ParentBytes != weight:
		w.t.Fatalf("step %q: its parents weigh %d, it says %d", s.Name, weight, s.ParentBytes)
	case s.State == StepFailed && s.StoppedBecause == "":
		w.t.Fatalf("step %q is FAILED without a reason", s.Name)
	case s.State == StepRunning:
		w.t.Fatalf("step %q is stored as RUNNING: its live attempt says so", s.Name)
	}
}
