package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearBound is how long the search for an order of one step's calls may take: long, for it
// takes microseconds unless there is none, and a search that was broken off decides nothing.
const linearBound = time.Minute

// holding is the lease of a step, as the model has it.
type holding struct {
	version int64 // of the lease that is live; 0: none
	last    int64 // that was granted
}

// use is what a call did with a lease.
type use struct {
	kind     useKind
	version  int64
	recorded bool // the tables say that this attempt was ended by a report
}

type useKind string

const (
	useGrant  useKind = "grant"
	useRenew  useKind = "renew"
	useReport useKind = "report" // ended it, or found it ended by the same report
	useEnd    useKind = "end"    // the service itself ended it
	useLate   useKind = "refuse" // refused: it was not live
)

// leaseModel is a step's lease: granted while there is none, with a version above all before;
// renewed and ended by its holder only. The service ends leases by itself at times of its own.
func leaseModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return holding{} },
		Step: func(state, input, _ any) (bool, any) {
			next, possible := input.(use).on(state.(holding))
			return possible, next
		},
	}
}

// on is the lease after a use of it, if that is possible.
func (u use) on(h holding) (next holding, possible bool) {
	held := h.version == u.version
	switch u.kind {
	case useGrant: // or the same grant answered again
		if held {
			return h, true
		}
		return holding{u.version, u.version}, h.version == 0 && u.version > h.last
	case useRenew:
		return h, held
	case useReport:
		if held {
			return holding{0, h.last}, true
		}
		return h, u.recorded && h.last >= u.version
	case useEnd:
		return holding{0, h.last}, held
	default:
		return h, !held
	}
}

// linearizable: rule linearizable.
func (b *book) linearizable() {
	model := leaseModel()
	for i := range b.c.Steps {
		id := b.c.Steps[i].ID
		ops := b.uses(&b.c.Steps[i])
		if len(ops) == 0 {
			continue
		}
		switch porcupine.CheckOperationsTimeout(model, ops, linearBound) {
		case porcupine.Ok:
		case porcupine.Illegal:
			b.broken(ruleLinearizable, "step %s: no order of these fits: %s", id, describe(ops))
		default:
			b.broken(ruleLinearizable, "step %s: not decided within %s: %s", id, linearBound, describe(ops))
		}
	}
}

// uses are what was done with the lease of a step: by calls as far as they were seen, else by what
// the tables tell, at whatever time. None: no call was seen.
func (b *book) uses(s *Step) []porcupine.Operation {
	var ops []porcupine.Operation
	seen := false
	for _, a := range b.attemptsOf(s.ID) {
		calls := b.opsOf(a.ID)
		seen = seen || len(calls) > 0
		ops = append(ops, b.usesOf(a, calls)...)
	}
	for _, g := range rows(b.h.Ops, &b.grants, s.ID) {
		if b.attempt[g.Attempt] == nil {
			seen = true
			ops = append(ops, operation(useGrant, g.Version, b.began(g), g.End))
		}
	}
	if !seen {
		return nil
	}
	return ops
}

func (b *book) usesOf(a *Attempt, calls []*Op) []porcupine.Operation {
	var ops []porcupine.Operation
	granted, ended := false, a.State == leased
	for _, o := range calls {
		if o.Version != a.Version {
			continue
		}
		switch {
		case o.Kind == Grant:
			granted = true
			ops = append(ops, operation(useGrant, o.Version, b.began(o), o.End))
		case o.Kind == Report && o.may() && a.Reported && a.State == o.Result:
			ended = true
			op := operation(useReport, o.Version, o.Begin, o.end())
			op.Input = use{useReport, o.Version, true}
			ops = append(ops, op)
		case o.Kind == Report && o.Outcome == OK:
			ops = append(ops, operation(useReport, o.Version, o.Begin, o.End))
		case o.Kind == Renew && o.Outcome == OK:
			ops = append(ops, operation(useRenew, o.Version, o.Begin, o.End))
		case o.late() && (o.Kind != Renew || o.Reason != reasonSession):
			ops = append(ops, operation(useLate, o.Version, o.Begin, o.End))
		}
	}
	if !granted {
		ops = append(ops, operation(useGrant, a.Version, 0, math.MaxInt64))
	}
	if !ended {
		ops = append(ops, operation(useEnd, a.Version, 0, math.MaxInt64))
	}
	return ops
}

// reasonSession is the reason for a renewal of a lease that may be live, but of another session.
const reasonSession = "SESSION_SUPERSEDED"

// late tells whether a call was refused because its lease was not live any more.
func (o *Op) late() bool {
	if o.Outcome != Refused || (o.Kind != Report && o.Kind != Renew && o.Kind != Revoke) {
		return false
	}
	switch o.Reason {
	case "LEASE_SUPERSEDED", "OUTCOME_ALREADY_RECORDED", "LEASE_REVOKED", "EXECUTION_CLOSED", "LEASE_EXPIRED", reasonSession:
		return true
	default:
		return false
	}
}

func operation(kind useKind, version, begin, end int64) porcupine.Operation {
	return porcupine.Operation{Input: use{kind: kind, version: version}, Call: begin, Return: end}
}

// mostDescribed is how many calls of a step a violation lists.
const mostDescribed = 30

func describe(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(x, y porcupine.Operation) int { return int(min(max(x.Call-y.Call, -1), 1)) })
	var parts []string
	for _, op := range ops[:min(len(ops), mostDescribed)] {
		u, until := op.Input.(use), "?"
		if op.Return != math.MaxInt64 {
			until = fmt.Sprint(op.Return)
		}
		parts = append(parts, fmt.Sprintf("%s %d (%d to %s)", u.kind, u.version, op.Call, until))
	}
	return strings.Join(parts, ", ")
}
