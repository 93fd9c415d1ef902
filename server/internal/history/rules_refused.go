package history

import "github.com/google/uuid"

// refused: rule refused, but for values that writings looks at and for keys.
func (b *book) refused() {
	for i := range b.c.Attempts {
		b.reportAsked(&b.c.Attempts[i])
	}
	for i := range b.c.Executions {
		b.controlAsked(&b.c.Executions[i])
	}
	b.lateEntries()
}

// reportAsked: an attempt whose grant was seen, and which its worker is said to have ended, was
// ended by a call that was seen too, and not refused. Its output came with it.
func (b *book) reportAsked(a *Attempt) {
	if !a.Reported {
		return
	}
	granted, refused, half := false, false, false
	for _, o := range b.opsOf(a.ID) {
		switch {
		case o.Kind == Grant:
			granted = true
		case o.Kind != Report || o.Version != a.Version || o.Result != a.State:
		case !o.may():
			refused = true
		case a.State == succeeded && b.outputOf(a) != o.Output:
			half = true
		default:
			return
		}
	}
	switch {
	case half:
		b.broken(ruleWhole, "attempt %s is %s, its output %x is of no report", a.ID, a.State, b.outputOf(a))
	case refused:
		b.broken(ruleRefused, "attempt %s is %s, as a report said that was refused", a.ID, a.State)
	case granted:
		b.broken(ruleRefused, "attempt %s is %s by a report that nobody made", a.ID, a.State)
	}
}

// outputOf is the output of an attempt's step.
func (b *book) outputOf(a *Attempt) Digest {
	if s := b.step[a.Step]; s != nil {
		return s.Output
	}
	return 0
}

// controlAsked: where a cancel, terminate, retry or revocation was refused, it is only there if
// another one was not.
func (b *book) controlAsked(e *Execution) {
	var stops, retries, refusedStops, refusedRetries, reopened int
	for _, o := range b.opsOn(e.ID) {
		switch {
		case (o.Kind == Cancel || o.Kind == Terminate) && o.may():
			stops++
		case o.Kind == Cancel || o.Kind == Terminate:
			refusedStops++
		case o.Kind == Retry && o.may():
			retries++
		case o.Kind == Retry:
			refusedRetries++
		}
	}
	if refusedStops == 0 && refusedRetries == 0 {
		return
	}
	for _, en := range b.entriesOf(e.ID) {
		_, what := en.execution()
		if (what == milestoneCancel || what == milestoneTerminate) && stops == 0 && refusedStops > 0 {
			b.broken(ruleRefused, "execution %s: %s, though that was refused", e.ID, en.Milestone)
		}
		if what == milestoneReopened {
			reopened++
		}
	}
	if refusedRetries > 0 && reopened > retries {
		b.broken(ruleRefused, "execution %s was opened anew %d times, by %d calls that were not refused", e.ID, reopened, retries)
	}
}

// lateEntries: each refused report is counted in the entry for its attempt, version and reason.
func (b *book) lateEntries() {
	told := map[lateKey]int{}
	for i := range b.c.Entries {
		if key, ok := b.c.Entries[i].late(); ok {
			if told[key] > 0 {
				b.broken(ruleRefused, "execution %s: %s is there twice", b.c.Entries[i].Execution, b.c.Entries[i].Milestone)
			}
			told[key] += int(b.c.Entries[i].Count)
		}
	}
	calls := map[lateKey]int{}
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		if a := b.attempt[o.Attempt]; a != nil && o.Kind == Report && o.late() {
			calls[lateKey{a.ID, o.Version == a.Version, o.Reason}]++
		}
	}
	for key, n := range calls {
		if told[key] < n {
			b.broken(ruleRefused, "attempt %s: %d late reports were refused %s, the timeline counts %d", key.attempt, n, key.reason, told[key])
		}
	}
}

// name is an idempotency key.
type name struct{ namespace, key string }

// keys: rule keys.
func (b *book) keys() {
	of := map[name]uuid.UUID{}
	created := map[uuid.UUID]*Op{}
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		if o.Kind == Enqueue && o.Outcome == OK && o.Created {
			if before := created[o.Execution]; before != nil {
				b.broken(ruleKeys, "execution %s was created twice: %s, %s", o.Execution, before, o)
			}
			created[o.Execution] = o
		}
		if o.Key == "" || o.Execution == uuid.Nil || o.Kind != Enqueue && o.Kind != Get {
			continue
		}
		key := name{o.Namespace, o.Key}
		if other, known := of[key]; known && other != o.Execution {
			b.broken(ruleKeys, "key %q of %q was answered with execution %s and with %s", o.Key, o.Namespace, other, o.Execution)
		}
		of[key] = o.Execution
	}
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		if other, known := of[name{e.Namespace, e.Key}]; known && e.Key != "" && other != e.ID {
			b.broken(ruleKeys, "key %q of %q was answered with execution %s, the tables have %s", e.Key, e.Namespace, other, e.ID)
		}
	}
	b.keysAsked()
}

// keysAsked: a key whose every use was refused has no execution.
func (b *book) keysAsked() {
	taken := map[name]bool{} // by a call that was not refused
	for i := range b.h.Ops {
		if o := &b.h.Ops[i]; o.Kind == Enqueue && o.Key != "" {
			taken[name{o.Namespace, o.Key}] = taken[name{o.Namespace, o.Key}] || o.may() || o.Execution != uuid.Nil
		}
	}
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		if asked, known := taken[name{e.Namespace, e.Key}]; known && !asked {
			b.broken(ruleRefused, "execution %s has key %q, though every enqueue with it was refused", e.ID, e.Key)
		}
	}
}

// cancel: rule cancel.
func (b *book) cancel() {
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		b.nothingStarts(e)
		if stopped(e.State) && !b.stopAsked(e, e.Round) {
			b.broken(ruleCancel, "execution %s is %s, though nobody asked for it", e.ID, e.State)
		}
		for _, o := range b.opsOn(e.ID) {
			if (o.Kind == Cancel || o.Kind == Terminate) && o.Outcome == OK && stopped(o.State) {
				b.noGrantAfter(e, o)
			}
		}
	}
}

// nothingStarts: in the timeline no attempt follows a cancel in its round, which ends CANCELED.
func (b *book) nothingStarts(e *Execution) {
	since := map[int32]int64{} // round → where the cancel is
	for _, en := range b.entriesOf(e.ID) {
		if round, what := en.execution(); (what == milestoneCancel || what == milestoneTerminate) && since[round] == 0 {
			since[round] = en.Sequence
			if end := b.endOf(e, round); !stopped(end) {
				b.broken(ruleCancel, "execution %s: %s, and it is %q", e.ID, en.Milestone, end)
			}
		}
	}
	if len(since) == 0 {
		return
	}
	for _, s := range b.stepsOf(e.ID) {
		for _, a := range b.attemptsOf(s.ID) {
			if at := since[a.Round]; at > 0 && a.LeaseEntry > at {
				b.broken(ruleCancel, "execution %s: attempt %s was leased at entry %d, after the cancel at %d", e.ID, a.ID, a.LeaseEntry, at)
			}
		}
	}
}

// noGrantAfter: what began to be granted after the answer to a cancel is of a later round.
func (b *book) noGrantAfter(e *Execution, stop *Op) {
	if end := b.endOf(e, stop.Round); !stopped(end) {
		b.broken(ruleCancel, "%s was answered OK, and round %d is %q", stop, stop.Round, end)
	}
	for _, o := range b.opsOn(e.ID) {
		a := b.attempt[o.Attempt]
		if o.Kind == Grant && b.began(o) > stop.End && (a == nil || a.Round <= stop.Round) {
			b.broken(ruleCancel, "%s began after %s was answered", o, stop)
		}
	}
}
