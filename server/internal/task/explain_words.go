package task

import (
	"fmt"
	"strings"
	"time"
)

// What an explanation says to people, beside what can be told without workers.

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (f *Situation) terminal() *Finding {
	s := f.step()
	found := &Finding{Cause: CauseTerminal, Since: f.roundBegan(), Message: "the step " + string(s.d.State)}
	if f.EndedAt != nil {
		found.Since = *f.EndedAt
	}
	if s.d.StoppedBecause != "" {
		found.Message += " (" + s.d.StoppedBecause + ")"
	}
	switch {
	case s.d.State == StepSucceeded:
		found.Change = "nothing: it is done"
	case f.Execution.d.State.Terminal():
		found.Change = "RetryExecution opens a new round"
	default:
		found.Change = "RetryExecution, once the execution has ended"
	}
	return found
}

// overdue is a step whose deadline has come and which is not ended yet.
func (f *Situation) overdue() *Finding {
	at := *f.Execution.deadlineOver(f.step(), f.Now)
	return &Finding{
		Cause: CauseTerminal, Since: at, Message: "its deadline came at " + stamp(at) + ": it is not leased any more",
		Change: "nothing: the next sweep ends it",
	}
}

func (f *Situation) canceling() *Finding {
	e := f.Execution
	if e.d.State != ExecutionCanceling && !e.d.Stopping {
		return nil
	}
	found := &Finding{
		Cause: CauseCanceling, Since: f.Now, Message: "its execution is being cancelled", Given: e.d.CancelReason,
		Change: "the worker's report, or the end of the grace; TerminateExecution ends it at once",
	}
	if e.d.State != ExecutionCanceling {
		found.Message = "its execution is being stopped, because a step failed (fail_fast)"
	}
	if at := e.d.CancelDeadline; at != nil {
		found.Since = at.Add(-e.d.CancelGrace)
		found.Message += "; the grace ends at " + stamp(*at)
	}
	if f.StoppedAt != nil {
		found.Since = *f.StoppedAt
	}
	return found
}

func (f *Situation) running() *Finding {
	a := f.step().attempt
	if a == nil {
		return nil
	}
	found := &Finding{Cause: CauseRunning, Since: a.d.LeasedAt, Attempt: &a.d, Change: "its report, or the end of its lease; RevokeLease if the worker is gone"}
	on := ""
	if a.d.Node != "" {
		on = " on node " + a.d.Node
	}
	found.Message = fmt.Sprintf("attempt %d runs: worker %s%s has it", a.d.Number, a.d.WorkerName, on)
	if f.ExpiresAt != nil {
		found.ExpiresAt = *f.ExpiresAt
		found.Message += ", until " + stamp(found.ExpiresAt) + " unless renewed"
	}
	return found
}

// parentsNamed is how many parents a message names.
const parentsNamed = 3

func (f *Situation) parents() *Finding {
	d := f.step().d
	if d.State != StepBlocked {
		return nil
	}
	found := &Finding{Cause: CauseParents, Since: f.began(), Parents: f.Parents, ParentCount: d.WaitingParents, Change: "these parents succeed"}
	var names []string
	for i, p := range f.Parents {
		if i == parentsNamed {
			names = append(names, "...")
			break
		}
		names = append(names, fmt.Sprintf("%s (%s)", p.Name, p.State))
	}
	found.Message = fmt.Sprintf("it waits for %s: %s", count(d.WaitingParents, "parent", "parents"), strings.Join(names, ", "))
	return found
}

func (f *Situation) paused() *Finding {
	if f.Pause == nil {
		return nil
	}
	return &Finding{
		Cause: CausePaused, Since: f.Pause.At, Given: f.Pause.Reason,
		Message: fmt.Sprintf("capability %s is paused since %s%s", f.step().d.Capability, stamp(f.Pause.At), given(f.Pause.Reason)),
		Change:  "ResumeCapability",
	}
}

func (f *Situation) dueLater() *Finding {
	if f.step().d.State != StepReady || !f.due().After(f.Now) {
		return nil
	}
	kind, since := f.dueKind()
	found := &Finding{Cause: CauseDueLater, Since: since, Due: f.due(), DueKind: kind, Change: "time: it is due at " + stamp(f.due())}
	switch kind {
	case DueBackoff:
		found.Message = fmt.Sprintf("attempt %d ended %s; the next one is due at %s", f.Last.Number, f.Last.State, stamp(found.Due))
	case DueRelease:
		found.Message = fmt.Sprintf("attempt %d was handed back; the next one is due at %s", f.Last.Number, stamp(found.Due))
	default:
		found.Message = "its start is due at " + stamp(found.Due)
	}
	return found
}

func (f *Situation) wordWorkers(found *Finding, c crew) {
	d := f.step().d
	offers := "offers " + d.Capability
	where := ""
	if d.Node != "" {
		where = " on node " + d.Node
	}
	switch found.Cause {
	case CauseNoWorker:
		found.Message = "no live worker " + offers
		if n := len(c.by[WorkerAbsent]); n > 0 {
			found.Message += fmt.Sprintf("; %s with a session did, last seen %s", count(n, "worker", "workers"), stamp(lastSeen(c.by[WorkerAbsent], "")))
		}
		found.Change = "a worker that " + offers + " registers and polls"
	case CauseNodeAway:
		found.Message = fmt.Sprintf("it is pinned to node %s, where no live worker %s; %s elsewhere", d.Node, offers, count(found.Capable, "worker does", "workers do"))
		found.Change = fmt.Sprintf("a worker that %s registers and polls%s", offers, where)
	case CauseWorkersDrained:
		found.Message = fmt.Sprintf("every live worker that %s%s is drained (%d)%s", offers, where, len(c.by[WorkerDrained]), given(found.Given))
		found.Change = "SetWorkerDrain with draining = false, or another worker"
	case CauseWorkersFull:
		full := c.by[WorkerFull]
		slots := 0
		for _, w := range full {
			slots += w.Standing.Slots
		}
		found.Message = fmt.Sprintf("every live worker that %s%s and is not drained has all its slots in use (%s, %s)", offers, where, count(len(full), "worker", "workers"), count(slots, "slot", "slots"))
		found.Change = "an attempt of theirs ends, or another worker comes"
	default:
	}
}

func (f *Situation) wordBehind(found *Finding) {
	most := ""
	if found.AheadCapped {
		most = " or more"
	}
	found.Message = fmt.Sprintf("%d%s that the same workers can run come first, by priority and due time, and %s", found.Ahead, most, count(found.Free, "slot is free", "slots are free"))
	found.Change = "those are leased; a higher priority comes sooner"
}

// summary is the first of the findings, and how many more there are.
func summary(f *Situation, found []Finding) string {
	switch n := len(found); n {
	case 0:
		s := "nothing hinders it: the next poll of a worker that can run it gets it"
		if f.Ahead > 0 {
			s += fmt.Sprintf(" (%d come first, and there are more free slots)", f.Ahead)
		}
		return s
	case 1:
		return found[0].Message
	default:
		return fmt.Sprintf("%s (and %d more)", found[0].Message, n-1)
	}
}

func given(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
