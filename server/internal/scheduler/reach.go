package scheduler

import (
	"slices"
	"strings"

	"github.com/google/uuid"
)

// reach is what sessions can serve that offer the same in one namespace and on one node.
type reach struct {
	set    map[string]bool // the capabilities
	groups []Group
	polls  int // parked, that take part
}

func (r *registry) newSession(id uuid.UUID, w WorkerState) *sessionInfo {
	return &sessionInfo{reach: r.reachOf(w), id: id, state: w, used: stopwatch()}
}

// reachOf is that of a worker: one for all that reach the same.
func (r *registry) reachOf(w WorkerState) *reach {
	names := slices.Compact(slices.Sorted(slices.Values(w.Capabilities)))
	key := strings.Join(append([]string{w.Namespace, w.Node}, names...), "\x00") // no name has that
	if known := r.reaches[key]; known != nil {
		return known
	}
	what := &reach{set: make(map[string]bool, len(names))}
	for _, c := range names {
		what.set[c] = true
		what.groups = append(what.groups, Group{Namespace: w.Namespace, Capability: c})
		if w.Node != "" {
			what.groups = append(what.groups, Group{Namespace: w.Namespace, Capability: c, Node: w.Node})
		}
	}
	r.reaches[key] = what
	return what
}

// tidyReaches forgets what no session reaches any more.
func (r *registry) tidyReaches() {
	used := make(map[*reach]bool, len(r.reaches))
	for _, s := range r.sessions {
		used[s.reach] = true
	}
	for key, what := range r.reaches {
		if !used[what] && what.polls == 0 {
			delete(r.reaches, key)
		}
	}
}

// takes tells whether one of the groups of which room is left can be served, and takes a place
// of each that can.
func (w *reach) takes(left map[Group]int) bool {
	served := false
	for _, g := range w.groups {
		n, wanted := left[g]
		if !wanted {
			continue
		}
		served = true
		if n--; n == 0 {
			delete(left, g)
		} else {
			left[g] = n
		}
	}
	return served
}

// takesPart tells whether a poll can be offered something now.
func (p *parkedPoll) takesPart() bool {
	return p.session != nil && !p.granted && (!p.full || p.onlyOnce)
}

// recount counts a poll among those that take part, or no more, after something of it has changed.
func (r *registry) recount(p *parkedPoll) {
	var now *reach
	if _, parked := r.polls[p]; parked && p.takesPart() {
		now = p.session.reach
	}
	if now == p.counted {
		return
	}
	if p.counted != nil {
		p.counted.polls--
	}
	if now != nil {
		now.polls++
	}
	p.counted = now
}
