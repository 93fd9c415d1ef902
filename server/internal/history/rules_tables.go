package history

// whole: rule whole.
func (b *book) whole() {
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		b.countersOf(e)
		b.numbered(e, b.story(e))
	}
	for i := range b.c.Attempts {
		a := &b.c.Attempts[i]
		if live := a.State == leased; live != (a.EndedAt == 0) || live != (a.EndEntry == 0) || live && a.Reported {
			b.broken(ruleWhole, "attempt %s is %s, ended at %d µs, entry %d", a.ID, a.State, a.EndedAt, a.EndEntry)
		}
		if b.step[a.Step] == nil {
			b.broken(ruleWhole, "attempt %s is of step %s, which is not there", a.ID, a.Step)
		}
	}
	for i := range b.c.Steps {
		s := &b.c.Steps[i]
		if b.execution[s.Execution] == nil {
			b.broken(ruleWhole, "step %s is of execution %s, which is not there", s.ID, s.Execution)
		}
		b.stepFits(s)
		b.children(s)
	}
	b.orphans()
}

func (b *book) orphans() {
	for i := range b.c.Edges {
		if e := &b.c.Edges[i]; b.step[e.Parent] == nil || b.step[e.Child] == nil {
			b.broken(ruleWhole, "the edge from step %s to step %s has no such ends", e.Parent, e.Child)
		}
	}
	for i := range b.c.Entries {
		if e := &b.c.Entries[i]; b.execution[e.Execution] == nil {
			b.broken(ruleWhole, "entry %s is of execution %s, which is not there", e.Milestone, e.Execution)
		}
	}
}

// countersOf compares an execution's counters with its steps and attempts.
func (b *book) countersOf(e *Execution) {
	var steps, open, unsuccessful, live int32
	for _, s := range b.stepsOf(e.ID) {
		steps++
		switch {
		case !terminal(s.State):
			open++
		case s.State != succeeded:
			unsuccessful++
		}
		for _, a := range b.attemptsOf(s.ID) {
			if a.State == leased {
				live++
			}
		}
	}
	if steps != e.StepCount || open != e.OpenSteps || unsuccessful != e.Unsuccessful || live != e.LiveLeases {
		b.broken(ruleWhole, "execution %s counts %d steps, %d open, %d unsuccessful, %d live; there are %d, %d, %d, %d",
			e.ID, e.StepCount, e.OpenSteps, e.Unsuccessful, e.LiveLeases, steps, open, unsuccessful, live)
	}
	over := terminal(e.State)
	if over != (open == 0) || over != e.Ended || over != (e.EndEntry > 0) || e.State == succeeded && unsuccessful > 0 || e.State == failed && unsuccessful == 0 {
		b.broken(ruleWhole, "execution %s is %s with %d open and %d unsuccessful steps, ended at entry %d", e.ID, e.State, open, unsuccessful, e.EndEntry)
	}
}

// numbered: the timeline has the numbers from 1 to the revision, each once.
func (b *book) numbered(e *Execution, story []moment) {
	next := int64(2) // 1 is the enqueue
	for _, m := range story {
		if m.sequence != next {
			b.broken(ruleWhole, "execution %s: the timeline goes on with %d instead of %d", e.ID, m.sequence, next)
			return
		}
		next++
	}
	if next-1 != e.Revision {
		b.broken(ruleWhole, "execution %s: the timeline ends with %d, the revision is %d", e.ID, next-1, e.Revision)
	}
}

// stepFits compares a step with its attempts: what followed from the last one is there with it.
func (b *book) stepFits(s *Step) {
	list := b.attemptsOf(s.ID)
	ended := int32(0)
	for _, a := range list {
		if a.State != leased {
			ended++
		}
		if a.State == succeeded && s.State != succeeded {
			b.broken(ruleWhole, "step %s is %s, its attempt %d %s", s.ID, s.State, a.Number, a.State)
		}
	}
	live := int(ended) < len(list)
	switch {
	case ended != s.AttemptsEnded:
		b.broken(ruleWhole, "step %s counts %d ended attempts, there are %d", s.ID, s.AttemptsEnded, ended)
	case live && s.State != ready:
		b.broken(ruleWhole, "step %s is %s with a live attempt", s.ID, s.State)
	case s.State == ready && !live && !s.Asked:
		b.broken(ruleWhole, "step %s is READY, and no attempt is asked for", s.ID)
	case s.State == succeeded && (len(list) == 0 || list[len(list)-1].State != succeeded):
		b.broken(ruleWhole, "step %s is SUCCEEDED, its last attempt did not", s.ID)
	}
}

// children: a step is BLOCKED just while it waits for parents.
func (b *book) children(s *Step) {
	if s.State != blocked {
		return
	}
	waiting, hopeless := int32(0), false
	for _, edge := range rows(b.c.Edges, &b.parents, s.ID) {
		if p := b.step[edge.Parent]; p != nil && p.State != succeeded {
			waiting++
			hopeless = hopeless || terminal(p.State)
		}
	}
	if waiting == 0 || waiting != s.WaitingParents || hopeless {
		b.broken(ruleWhole, "step %s is BLOCKED, counts %d parents and waits for %d, in vain: %v", s.ID, s.WaitingParents, waiting, hopeless)
	}
}

// retries: rule retries.
func (b *book) retries() {
	for i := range b.c.Steps {
		s := &b.c.Steps[i]
		list := b.attemptsOf(s.ID)
		counted := int32(0) // in the round of the attempt at hand
		for i, a := range list {
			if a.Number != int32(i+1) {
				b.broken(ruleRetries, "step %s: attempt %d is number %d", s.ID, i+1, a.Number)
			}
			if i > 0 {
				b.mayFollow(s, list[i-1], a, counted)
				if list[i-1].Round != a.Round {
					counted = 0
				}
			}
			if counts(a.State) {
				counted++
			}
		}
		b.countedRight(s, list, counted)
	}
}

// mayFollow tells whether there may be a further attempt after one. counted is how many count in
// the round so far.
func (b *book) mayFollow(s *Step, before, after *Attempt, counted int32) {
	if before.State == succeeded {
		b.broken(ruleRetries, "step %s: attempt %d follows a success", s.ID, after.Number)
	}
	if before.Round != after.Round {
		return
	}
	switch {
	case before.State == failed && before.Final:
		b.broken(ruleRetries, "step %s: attempt %d follows a failure that is not tried again", s.ID, after.Number)
	case s.MaximumAttempts >= 0 && counted >= s.MaximumAttempts:
		b.broken(ruleRetries, "step %s: attempt %d follows %d counted ones of %d", s.ID, after.Number, counted, s.MaximumAttempts)
	case before.NextDue == 0 || after.LeasedAt < before.NextDue:
		b.broken(ruleRetries, "step %s: attempt %d began at %d µs, due at %d", s.ID, after.Number, after.LeasedAt, before.NextDue)
	}
}

// countedRight compares a step's counter. In a further round it begins anew if the step was
// opened, else it stays.
func (b *book) countedRight(s *Step, list []*Attempt, counted int32) {
	e := b.execution[s.Execution]
	if e == nil {
		return
	}
	anew := len(list) > 0 && list[len(list)-1].Round < e.Round
	if s.Counted != counted && (!anew || s.Counted != 0) {
		b.broken(ruleRetries, "step %s counts %d attempts, %d count", s.ID, s.Counted, counted)
	}
	spent := s.MaximumAttempts >= 0 && s.Counted >= s.MaximumAttempts
	if s.State == ready && spent || s.StoppedBecause == "MAXIMUM_ATTEMPTS_REACHED" && !spent {
		b.broken(ruleRetries, "step %s is %s (%s) with %d counted attempts of %d", s.ID, s.State, s.StoppedBecause, s.Counted, s.MaximumAttempts)
	}
}

// parentsFirst: rule parents.
func (b *book) parentsFirst() {
	for i := range b.c.Steps {
		s := &b.c.Steps[i]
		lostOne := false
		for _, edge := range rows(b.c.Edges, &b.parents, s.ID) {
			p := b.step[edge.Parent]
			if p == nil {
				continue // whole tells
			}
			b.startsAfter(s, p)
			lostOne = lostOne || terminal(p.State) && p.State != succeeded
		}
		if s.State == skipped && !lostOne {
			b.broken(ruleParents, "step %s is SKIPPED, though none of its parents ended without success", s.ID)
		}
	}
}

func (b *book) startsAfter(child, parent *Step) {
	list := b.attemptsOf(child.ID)
	if parent.State != succeeded {
		if len(list) > 0 || child.State == ready || child.State == succeeded || child.State == failed {
			b.broken(ruleParents, "step %s is %s with %d attempts, its parent %s is %s", child.ID, child.State, len(list), parent.ID, parent.State)
		}
		return
	}
	done := b.attemptsOf(parent.ID)
	if len(done) == 0 {
		return // whole tells
	}
	success := done[len(done)-1]
	for _, a := range list {
		if a.LeaseEntry <= success.EndEntry || a.LeasedAt < success.EndedAt {
			b.broken(ruleParents, "step %s: attempt %d began at entry %d (%d µs), its parent %s ended at %d (%d µs)",
				child.ID, a.Number, a.LeaseEntry, a.LeasedAt, parent.ID, success.EndEntry, success.EndedAt)
		}
		b.seenAfter(a, success)
	}
}

// seenAfter: nobody gets a child, or works on it, before the success of its parent was reported.
func (b *book) seenAfter(child, parent *Attempt) {
	var first *Op // of the reports that can have done it
	for _, o := range b.opsOf(parent.ID) {
		if o.Kind == Report && o.may() && o.Result == succeeded && first == nil {
			first = o
		}
	}
	if first == nil {
		return
	}
	for _, o := range b.opsOf(child.ID) {
		if o.Kind == Grant && o.End < first.Begin || o.Kind == Work && o.Begin < first.Begin {
			b.broken(ruleParents, "%s came before %s", o, first)
		}
	}
}
