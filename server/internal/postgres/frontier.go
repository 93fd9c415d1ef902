package postgres

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const (
	askHorizon = 20 * time.Millisecond // at most so often

	fullWhenEmpty  = 800 * time.Millisecond // a group that looks empty is looked at in full after that
	fullWhenBusy   = 4 * time.Second        // one that does not
	emptyFullShare = 10                     // and after so many times what its last full look took
	busyFullShare  = 50

	// Of a group of which nothing waits nobody can say at which priorities much was dispatched
	// before this replica came. When a look at it takes that long, it was the usual one.
	dearLook = time.Millisecond

	mostFrontiers = 50_000
)

// frontiers remember from when on something can wait, for each level: a capability, node and
// priority. Surveys begin there. While another transaction keeps dead rows from being removed,
// one that began at the front would walk over all that was dispatched since, at each round.
//
// A frontier is moved by surveys alone: to the oldest row that is left in its level, whoever has
// it (claimed, locked, or due later), and never past the horizon: the now() of the oldest
// transaction of the service that may still be committed. Every new request is due at the now() of its
// transaction or later, whether it was enqueued, is a retry or a next step, or was released, so
// nothing comes to wait below a frontier. What was claimed and is given back was never below one;
// the frontiers of a capability that is paused are forgotten.
//
// It is a hint for all that. The horizon cannot see a session that PostgreSQL has not published
// (in the slack) or of a role that may not be looked at otherwise (then it stays 45 s back), and
// whoever writes to the tables by hand keeps to no rule. So groups are also looked at in full,
// from the beginning and all priorities: at the first survey; every second while a group looks
// empty, every four seconds while it does not, and each time that is then at least 10, or 50,
// times what its last full look took. So long something below a frontier waits at most: a
// second, or four, unless a full look takes longer than 80 ms. All is forgotten, and looked at in
// full, when the horizon goes back (the clock was set back) and when PostgreSQL was started
// again or is another one (rows that were deleted may be back).
type frontiers struct {
	mu         sync.Mutex
	groups     map[scheduler.Group]*frontier
	horizon    time.Time // zero: not known
	asked      time.Time // when it was; monotonic
	started    time.Time // when PostgreSQL was
	generation uint64    // counts how often everything was forgotten
}

// frontier is that of a group: of each priority at which something was seen.
type frontier struct {
	since  map[int16]time.Time
	empty  bool          // nothing was due when it was last looked at
	full   time.Time     // when it was last looked at in full; monotonic
	taking time.Duration // how long that took, with the groups that were looked at beside it
}

// survey is one look at groups.
type survey struct {
	groups     []scheduler.Group
	full       []bool // by group
	ranges     []span // by place
	params     dbsqlc.SurveyRequestsParams
	began      time.Time // monotonic
	horizon    time.Time // from before the look
	generation uint64
}

// span is a range of priorities of a group, without its ends.
type span struct {
	group        int
	above, below int
	since        time.Time // zero: from the beginning
}

func (s span) level() bool { return s.below-s.above == 2 && !s.since.IsZero() }

// level is a priority of a group at which something waits, or did.
type level struct {
	group        scheduler.Group
	capabilityID int32
	priority     int32
	since        time.Time     // where the claim begins; zero: at the beginning
	due          time.Duration // until something is
}

// begin plans a survey. Groups whose time has come are looked at in full, if that may take its time.
func (f *frontiers) begin(groups []scheduler.Group, full bool) *survey {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := &survey{groups: groups, full: make([]bool, len(groups)), began: time.Now(), horizon: f.horizon, generation: f.generation} // monotonic
	v.params.Ask = f.asked.IsZero() || v.began.Sub(f.asked) >= askHorizon
	for i, g := range groups {
		known := f.groups[g]
		if known == nil || full && known.wantsFull(v.began) {
			v.full[i] = true
			v.add(span{i, math.MinInt16 - 1, math.MaxInt16 + 1, time.Time{}})
			continue
		}
		below := math.MaxInt16 + 1
		for _, p := range known.priorities() {
			if below-int(p) > 1 {
				v.add(span{i, int(p), below, time.Time{}})
			}
			v.add(span{i, int(p) - 1, int(p) + 1, known.since[p]})
			below = int(p)
		}
		v.add(span{i, math.MinInt16 - 1, below, time.Time{}})
	}
	return v
}

// wantsFull tells whether it is time to look in full.
func (f *frontier) wantsFull(now time.Time) bool {
	pause := max(fullWhenBusy, busyFullShare*f.taking)
	if f.empty {
		pause = max(fullWhenEmpty, emptyFullShare*f.taking)
	}
	return now.Sub(f.full) >= pause
}

// priorities are those at which something was seen, the highest first.
func (f *frontier) priorities() []int16 {
	list := make([]int16, 0, len(f.since))
	for p := range f.since {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b int16) int { return cmp.Compare(b, a) })
	return list
}

func (v *survey) add(s span) {
	g, p := v.groups[s.group], &v.params
	p.Places = append(p.Places, int32(len(v.ranges)))
	p.Namespaces = append(p.Namespaces, g.Namespace)
	p.Capabilities = append(p.Capabilities, g.Capability)
	p.Nodes = append(p.Nodes, g.Node)
	p.Aboves = append(p.Aboves, int32(s.above))
	p.Belows = append(p.Belows, int32(s.below))
	p.Sinces = append(p.Sinces, fromBeginning(s.since))
	v.ranges = append(v.ranges, s)
}

// fromBeginning is an instant, or before all others if it is zero.
func fromBeginning(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return instant(t)
}

// failed notes that a survey was in vain: one in full that takes too long must not be all that
// is ever tried. How long it took counts only where PostgreSQL was at it until then: an outage says
// nothing of a look, and must not put the next one in full off by many times its own length.
func (f *frontiers) failed(v *survey, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, g := range v.groups {
		if known := f.groups[g]; known != nil && v.full[i] {
			known.full = time.Now() // monotonic
			if classify(err) == faultLocked {
				known.taking = time.Since(v.began) // monotonic
			}
		}
	}
}

// learn takes in what a survey has found, and returns the levels at which something waits.
func (f *frontiers) learn(v *survey, rows []dbsqlc.SurveyRequestsRow) []level {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.see(rows)
	if f.generation != v.generation {
		return v.levels(rows) // it began where nobody knows any more what was left
	}
	if len(f.groups) > mostFrontiers {
		clear(f.groups) // names are cheap to make up, and this is a shortcut only
	}
	found := v.found(rows)
	for i, g := range v.groups {
		known := f.groups[g]
		if known == nil {
			known = &frontier{since: map[int16]time.Time{}}
			f.groups[g] = known
		}
		known.empty = !found[i].due
		if v.full[i] {
			if known.full.After(v.began) {
				continue // a later one was faster, and may have seen more
			}
			known.full, known.taking = v.began, time.Since(v.began) // monotonic
		}
		switch {
		case found[i].paused:
			clear(known.since)
		case !v.horizon.IsZero():
			v.move(i, known, found[i].since)
		}
	}
	return v.levels(rows)
}

// finding is what a survey has found of a group.
type finding struct {
	due    bool
	paused bool                // it was not looked at
	since  map[int16]time.Time // by priority: how far its frontier may move
}

func (v *survey) found(rows []dbsqlc.SurveyRequestsRow) []finding {
	list := make([]finding, len(v.groups))
	for i := range rows {
		r := &rows[i]
		if r.Place < 0 {
			continue // there is nothing but the horizon
		}
		f := &list[v.ranges[r.Place].group]
		if r.CapabilityID == 0 {
			f.paused = true
			continue
		}
		f.due = f.due || fromInterval(r.Remaining) <= 0
		if f.since == nil {
			f.since = map[int16]time.Time{}
		}
		f.since[int16(r.Priority)] = v.until(r.OldestAt.Time)
	}
	return list
}

// see takes in the horizon and when PostgreSQL was started.
func (f *frontiers) see(rows []dbsqlc.SurveyRequestsRow) {
	if len(rows) == 0 {
		return
	}
	started := rows[0].ServerStarted.Time
	if !f.started.Equal(started) {
		f.forget()
		f.started = started
	}
	if !rows[0].Horizon.Valid {
		return
	}
	horizon := rows[0].Horizon.Time
	if horizon.Before(f.horizon) {
		f.forget()
	}
	f.horizon, f.asked = horizon, time.Now() // monotonic
}

// forget makes the next survey one in full. The horizon that is told with it is of use only to
// the one after.
func (f *frontiers) forget() {
	f.groups = map[scheduler.Group]*frontier{}
	f.horizon, f.asked = time.Time{}, time.Time{}
	f.generation++
}

// until is how far a frontier may move, given the oldest row that is left; zero: none is.
func (v *survey) until(oldest time.Time) time.Time {
	if oldest.IsZero() || v.horizon.Before(oldest) {
		return v.horizon
	}
	return oldest
}

// move moves the frontiers of a group. Where another survey was faster, its word counts: it may
// have looked further down.
func (v *survey) move(group int, known *frontier, seen map[int16]time.Time) {
	if v.full[group] {
		for p := range known.since {
			known.since[p] = v.until(time.Time{})
		}
		for p, at := range seen {
			known.since[p] = at
		}
		if len(known.since) == 0 && known.taking > dearLook*time.Duration(len(v.groups)) {
			known.since[0] = v.until(time.Time{})
		}
		return
	}
	for _, s := range v.ranges {
		if s.group != group || !s.level() {
			continue
		}
		p := int16(s.above + 1)
		at, found := seen[p]
		if !found {
			at = v.until(time.Time{})
		}
		delete(seen, p)
		if known.since[p].Equal(s.since) && at.After(s.since) {
			known.since[p] = at
		}
	}
	for p, at := range seen {
		if _, there := known.since[p]; !there {
			known.since[p] = at
		}
	}
}

// levels are those at which something waits.
func (v *survey) levels(rows []dbsqlc.SurveyRequestsRow) []level {
	var list []level
	for i := range rows {
		r := &rows[i]
		if r.CapabilityID == 0 {
			continue
		}
		list = append(list, level{
			group: v.groups[v.ranges[r.Place].group], capabilityID: r.CapabilityID, priority: r.Priority,
			since: v.until(r.OldestAt.Time), due: fromInterval(r.Remaining),
		})
	}
	return list
}

// doubtful are the groups that look empty and were not looked at in full for long enough to say so.
func (f *frontiers) doubtful(groups []scheduler.Group) []scheduler.Group {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []scheduler.Group
	for _, g := range groups {
		if known := f.groups[g]; known == nil || known.empty && known.wantsFull(time.Now()) { // monotonic
			list = append(list, g)
		}
	}
	return list
}
