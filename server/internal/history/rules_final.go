package history

import (
	"cmp"
	"slices"
)

// moment is a numbered place in an execution's timeline: an entry, or the beginning or end of an
// attempt, or an end of a round.
type moment struct {
	sequence int64
	entry    *Entry
	attempt  *Attempt
	ended    int32 // the round that ended here, or 0
}

// story is an execution's timeline, from the first number to the last, but for its beginning.
func (b *book) story(e *Execution) []moment {
	var list []moment
	for _, en := range b.entriesOf(e.ID) {
		m := moment{sequence: en.Sequence, entry: en}
		if round, what := en.execution(); what == milestoneEnded {
			m.ended = round
		}
		list = append(list, m)
	}
	if e.EndEntry > 0 {
		list = append(list, moment{sequence: e.EndEntry, ended: e.Round})
	}
	for _, s := range b.stepsOf(e.ID) {
		for _, a := range b.attemptsOf(s.ID) {
			list = append(list, moment{sequence: a.LeaseEntry, attempt: a})
			if a.EndEntry > 0 {
				list = append(list, moment{sequence: a.EndEntry, attempt: a})
			}
		}
	}
	slices.SortStableFunc(list, func(x, y moment) int { return cmp.Compare(x.sequence, y.sequence) })
	return list
}

// final: rule final.
func (b *book) final() {
	for i := range b.c.Executions {
		e := &b.c.Executions[i]
		b.nothingFollows(e, b.story(e))
		if terminal(e.State) {
			b.atRest(e)
		}
		b.stateSeen(e)
	}
}

// nothingFollows: between the end of a round and the beginning of the next nothing happens.
func (b *book) nothingFollows(e *Execution, story []moment) {
	over := int32(0)
	for _, m := range story {
		switch {
		case m.ended > 0:
			over = m.ended
		case over == 0 || m.entry != nil && m.entry.afterEnd():
		case m.entry != nil:
			if round, what := m.entry.execution(); what == milestoneReopened && round == over+1 {
				over = 0
				continue
			}
			b.broken(ruleFinal, "execution %s: entry %d, %s, follows the end of round %d", e.ID, m.sequence, m.entry.Milestone, over)
		default:
			b.broken(ruleFinal, "execution %s: entry %d, of attempt %s, follows the end of round %d", e.ID, m.sequence, m.attempt.ID, over)
		}
	}
}

// atRest: what belongs to an execution that has ended has ended too.
func (b *book) atRest(e *Execution) {
	for _, s := range b.stepsOf(e.ID) {
		if !terminal(s.State) {
			b.broken(ruleFinal, "execution %s is %s, its step %s is %s", e.ID, e.State, s.ID, s.State)
		}
		for _, a := range b.attemptsOf(s.ID) {
			if a.State == leased {
				b.broken(ruleFinal, "execution %s is %s, its attempt %s is live", e.ID, e.State, a.ID)
			}
		}
	}
}

// stateSeen: who saw an end sees no other state of that round later, and neither do the tables.
func (b *book) stateSeen(e *Execution) {
	var seen []*Op
	for _, o := range b.opsOn(e.ID) {
		if o.Outcome == OK && o.Round > 0 && o.State != "" {
			seen = append(seen, o)
		}
	}
	ended := slices.Clone(seen) // in the order of their answers
	slices.SortStableFunc(ended, func(x, y *Op) int { return cmp.Compare(x.End, y.End) })
	var latest *Op // the end of the latest round that was answered so far
	for _, o := range seen {
		for len(ended) > 0 && ended[0].End < o.Begin {
			if terminal(ended[0].State) && (latest == nil || ended[0].Round > latest.Round) {
				latest = ended[0]
			}
			ended = ended[1:]
		}
		if latest != nil && (o.Round < latest.Round || o.Round == latest.Round && o.State != latest.State) {
			b.broken(ruleFinal, "execution %s was %s in round %d by %s, then %s in round %d by %s",
				e.ID, latest.State, latest.Round, latest, o.State, o.Round, o)
		}
	}
	for _, o := range seen {
		if end := b.endOf(e, o.Round); terminal(o.State) && end != o.State {
			b.broken(ruleFinal, "%s saw %s in round %d, the tables say %q", o, o.State, o.Round, end)
		}
	}
	b.reportedStates(e)
}

// reportedStates compares what answers to reports said, for executions of one round: these do
// not tell the round.
func (b *book) reportedStates(e *Execution) {
	if e.Round != 1 {
		return
	}
	for _, s := range b.stepsOf(e.ID) {
		for _, a := range b.attemptsOf(s.ID) {
			for _, o := range b.opsOf(a.ID) {
				if o.Kind != Report || o.Outcome != OK {
					continue
				}
				if terminal(o.State) && o.State != e.State || terminal(o.StepState) && o.StepState != s.State {
					b.broken(ruleFinal, "%s told that the execution is %s and the step %s, the tables say %s and %s", o, o.State, o.StepState, e.State, s.State)
				}
			}
		}
	}
}

// endOf is how a round of an execution ended; of one that has not ended it is its state.
func (b *book) endOf(e *Execution, round int32) string {
	if round == e.Round {
		return e.State
	}
	for _, en := range b.entriesOf(e.ID) {
		if r, what := en.execution(); what == milestoneEnded && r == round {
			return en.State
		}
	}
	return ""
}
