package history

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"
)

// oneLease: rule one-lease.
func (b *book) oneLease() {
	for i := range b.c.Steps {
		b.oneAfterAnother(b.attemptsOf(b.c.Steps[i].ID))
		if held := b.leases.of(b.c.Steps[i].ID); len(held) > 1 {
			b.broken(ruleOneLease, "step %s has %d leases", b.c.Steps[i].ID, len(held))
		}
	}
	b.leaseRows()
	b.oneHolder()
	b.overtaken()
}

// oneAfterAnother compares the attempts of a step by their numbers in the timeline, which are
// given out under the execution's lock, and by the instants that are shown.
func (b *book) oneAfterAnother(list []*Attempt) {
	for i := 1; i < len(list); i++ {
		before, after := list[i-1], list[i]
		switch {
		case before.EndEntry == 0 || before.EndedAt == 0:
			b.broken(ruleOneLease, "step %s: attempt %d began while attempt %d was live", before.Step, after.Number, before.Number)
		case before.EndEntry >= after.LeaseEntry || before.EndedAt > after.LeasedAt:
			b.broken(ruleOneLease, "step %s: attempt %d ended at entry %d (%d µs), attempt %d began at entry %d (%d µs)",
				before.Step, before.Number, before.EndEntry, before.EndedAt, after.Number, after.LeaseEntry, after.LeasedAt)
		}
	}
}

// leaseRows: a lease is there just while its attempt is live.
func (b *book) leaseRows() {
	held := make(map[uuid.UUID]bool, len(b.c.Leases))
	for i := range b.c.Leases {
		l := &b.c.Leases[i]
		held[l.Attempt] = true
		a := b.attempt[l.Attempt]
		if a == nil || a.State != leased || a.Version != l.Version || a.Session != l.Session || a.Step != l.Step {
			b.broken(ruleOneLease, "the lease of attempt %s with version %d is of no such live attempt", l.Attempt, l.Version)
		}
	}
	for i := range b.c.Attempts {
		if a := &b.c.Attempts[i]; a.State == leased && !held[a.ID] {
			b.broken(ruleOneLease, "attempt %s is live without a lease", a.ID)
		}
	}
}

// oneHolder: no lease is given to two. The same poll may be answered twice, if it bears a
// request id.
func (b *book) oneHolder() {
	first := map[uuid.UUID]*Op{}
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		switch g := first[o.Attempt]; {
		case o.Kind != Grant:
		case g == nil:
			first[o.Attempt] = o
		case g.Session != o.Session || g.Key != o.Key || o.Key == "":
			b.broken(ruleOneLease, "a lease was given twice: %s of session %s, %s of session %s", g, g.Session, o, o.Session)
		}
	}
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		if o.Kind != Work {
			continue
		}
		if g := first[o.Attempt]; g == nil || g.Version != o.Version || o.Begin < b.began(g) {
			b.broken(ruleOneLease, "%s is of no lease that was given before", o)
		}
	}
}

// overtaken: nobody uses a lease after the answer that gave a later one.
func (b *book) overtaken() {
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		a := b.attempt[o.Attempt]
		if a == nil || o.Outcome != OK || o.Replayed || (o.Kind != Renew && o.Kind != Report) {
			continue
		}
		for _, g := range rows(b.h.Ops, &b.grants, a.Step) {
			if g.Version > o.Version && g.End < o.Begin {
				b.broken(ruleOneLease, "%s was answered OK after %s", o, g)
				break
			}
		}
	}
}

// poll names a poll that may be repeated.
type poll struct {
	session uuid.UUID
	key     string
}

// notePolls finds when each poll with a request id was first sent: its grants may be as old,
// whichever call they were an answer to.
func (b *book) notePolls() {
	b.polls = map[poll]int64{}
	for i := range b.h.Ops {
		o := &b.h.Ops[i]
		if (o.Kind != Poll && o.Kind != Grant) || o.Key == "" {
			continue
		}
		if at, known := b.polls[poll{o.Session, o.Key}]; !known || o.Begin < at {
			b.polls[poll{o.Session, o.Key}] = o.Begin
		}
	}
}

// began is the earliest instant at which a grant can have been made.
func (b *book) began(grant *Op) int64 {
	if at, known := b.polls[poll{grant.Session, grant.Key}]; known {
		return at
	}
	return grant.Begin
}

// versions: rule versions.
func (b *book) versions() {
	of := make(map[int64]uuid.UUID, len(b.c.Attempts))
	note := func(version int64, attempt uuid.UUID) {
		if other, known := of[version]; known && other != attempt {
			b.broken(ruleVersions, "version %d is of attempt %s and of attempt %s", version, other, attempt)
		}
		of[version] = attempt
	}
	for i := range b.c.Attempts {
		note(b.c.Attempts[i].Version, b.c.Attempts[i].ID)
	}
	for i := range b.c.Steps {
		list := b.attemptsOf(b.c.Steps[i].ID)
		for i := 1; i < len(list); i++ {
			if list[i].Version <= list[i-1].Version {
				b.broken(ruleVersions, "step %s: attempt %d has version %d after %d", list[i].Step, list[i].Number, list[i].Version, list[i-1].Version)
			}
		}
	}
	var grants []*Op
	for i := range b.h.Ops {
		if o := &b.h.Ops[i]; o.Kind == Grant {
			note(o.Version, o.Attempt)
			grants = append(grants, o)
		}
	}
	b.growing(grants)
}

// growing looks at all grants in the order in which they can have begun, beside the answers
// before each.
func (b *book) growing(grants []*Op) {
	ended := slices.Clone(grants)
	slices.SortFunc(grants, func(x, y *Op) int { return cmp.Compare(b.began(x), b.began(y)) })
	slices.SortFunc(ended, func(x, y *Op) int { return cmp.Compare(x.End, y.End) })
	var greatest *Op
	for _, g := range grants {
		for len(ended) > 0 && ended[0].End < b.began(g) {
			if greatest == nil || ended[0].Version > greatest.Version {
				greatest = ended[0]
			}
			ended = ended[1:]
		}
		if greatest != nil && g.Version <= greatest.Version {
			b.broken(ruleVersions, "%s began after %s was answered", g, greatest)
		}
	}
}

// Why a lost attempt ended by the time of its lease, and not by somebody's word.
const (
	overExpired    = "lease_expired"
	overSuperseded = "session_superseded" // it lasts as long as others
)

// kept: rule kept. A call that was refused as late, or a later grant of the step that was answered,
// before the time was over that an answer gave the lease, by the clients' clock and counted from
// before that call, is a broken word. It stands on PostgreSQL's clock going at the pace of ours:
// where that is set, the rule says nothing.
func (b *book) kept() {
	for i := range b.c.Attempts {
		a := &b.c.Attempts[i]
		if a.State != lost || a.Reason != overExpired && a.Reason != overSuperseded {
			continue
		}
		if o := b.seenOver(a); o != nil {
			if until := b.goodUntil(a); o.End < until {
				b.broken(ruleKept, "%s was answered %s before the lease of attempt %s was over", o, time.Duration(until-o.End), a.ID)
			}
		}
	}
}

// seenOver is the earliest answer that tells that an attempt's lease is over: whatever the reason
// that the refusal of a late call gives.
func (b *book) seenOver(a *Attempt) (first *Op) {
	note := func(o *Op) {
		if first == nil || o.End < first.End {
			first = o
		}
	}
	for _, o := range b.opsOf(a.ID) {
		if o.late() && o.Version == a.Version && (o.Kind == Report || o.Kind == Renew && o.Reason != reasonSession) {
			note(o)
		}
	}
	for _, g := range rows(b.h.Ops, &b.grants, a.Step) {
		if g.Version > a.Version {
			note(g)
		}
	}
	return first
}

// goodUntil is how long a lease is good at least, by what was answered: a renewal that was answered
// OK came before its end.
func (b *book) goodUntil(a *Attempt) (until int64) {
	for _, o := range b.opsOf(a.ID) {
		if (o.Kind == Grant || o.Kind == Renew) && o.Version == a.Version && o.Outcome == OK {
			until = max(until, o.Begin+o.Lasts)
		}
	}
	return until
}
