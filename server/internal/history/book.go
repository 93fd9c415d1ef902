package history

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// book is a history and the tables, with what is needed to find one's way in them.
type book struct {
	findings
	h *History
	c *Committed

	execution map[uuid.UUID]*Execution
	step      map[uuid.UUID]*Step
	attempt   map[uuid.UUID]*Attempt

	steps    groups // by execution
	attempts groups // by step, in the order of their numbers
	parents  groups // edges, by child
	leases   groups // by step
	entries  groups // by execution, in the order of their numbers
	facts    groups // events, by execution, in the order of their numbers

	ofAttempt   groups // ops, by attempt, in the order in which they began
	ofExecution groups // ops that name it, in the order in which they began
	grants      groups // Grant ops, by step
	polls       map[poll]int64
}

func newBook(h *History, c *Committed) *book {
	b := &book{
		findings: findings{told: map[string][]Violation{}, more: map[string]int{}}, h: h, c: c,
		execution: index(c.Executions, func(e *Execution) uuid.UUID { return e.ID }),
		step:      index(c.Steps, func(s *Step) uuid.UUID { return s.ID }),
		attempt:   index(c.Attempts, func(a *Attempt) uuid.UUID { return a.ID }),
	}
	if c.Namespace != "" {
		b.h = inNamespace(h, c.Namespace)
	}
	b.steps = group(c.Steps, func(s *Step) uuid.UUID { return s.Execution }, nil)
	b.attempts = group(c.Attempts, func(a *Attempt) uuid.UUID { return a.Step }, func(x, y *Attempt) int { return cmp.Compare(x.Number, y.Number) })
	b.parents = group(c.Edges, func(e *Edge) uuid.UUID { return e.Child }, nil)
	b.leases = group(c.Leases, func(l *Lease) uuid.UUID { return l.Step }, nil)
	b.entries = group(c.Entries, func(e *Entry) uuid.UUID { return e.Execution }, func(x, y *Entry) int { return cmp.Compare(x.Sequence, y.Sequence) })
	b.facts = group(c.Events, func(e *Event) uuid.UUID { return e.Execution }, func(x, y *Event) int { return cmp.Compare(x.Sequence, y.Sequence) })
	begun := func(x, y *Op) int { return cmp.Compare(x.Begin, y.Begin) }
	b.ofAttempt = group(b.h.Ops, func(o *Op) uuid.UUID { return o.Attempt }, begun)
	b.ofExecution = group(b.h.Ops, func(o *Op) uuid.UUID { return o.Execution }, begun)
	b.grants = group(b.h.Ops, func(o *Op) uuid.UUID {
		if o.Kind != Grant {
			return uuid.Nil
		}
		return o.Step
	}, begun)
	b.notePolls()
	return b
}

// inNamespace leaves out what is known to be of other namespaces: only the tables of one were
// loaded.
func inNamespace(h *History, namespace string) *History {
	foreign := map[uuid.UUID]bool{} // executions, then attempts
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Namespace != "" && o.Namespace != namespace {
			foreign[o.Execution] = true
		}
	}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Kind == Grant && foreign[o.Execution] {
			foreign[o.Attempt] = true
		}
	}
	delete(foreign, uuid.Nil)
	own := &History{Clock: h.Clock, Sink: h.Sink}
	for i := range h.Ops {
		o := &h.Ops[i]
		if !foreign[o.Execution] && !foreign[o.Attempt] && (o.Namespace == "" || o.Namespace == namespace) {
			own.Ops = append(own.Ops, *o)
		}
	}
	for _, d := range h.Deliveries {
		if !foreign[d.Execution] && (d.Namespace == "" || d.Namespace == namespace) {
			own.Deliveries = append(own.Deliveries, d)
		}
	}
	return own
}

func index[T any](list []T, id func(*T) uuid.UUID) map[uuid.UUID]*T {
	m := make(map[uuid.UUID]*T, len(list))
	for i := range list {
		m[id(&list[i])] = &list[i]
	}
	return m
}

// groups are the places of rows by what they belong to: two arrays and a map instead of a slice
// for each, which would not be small for a million.
type groups struct {
	at    map[uuid.UUID]int32 // → number of the group
	from  []int32             // its first place in items; the next group's is its end
	items []int32
}

// of lists the places of the rows of one group.
func (g *groups) of(id uuid.UUID) []int32 {
	n, known := g.at[id]
	if !known {
		return nil
	}
	return g.items[g.from[n]:g.from[n+1]]
}

// group groups rows; those of the nil id are left out.
func group[T any](list []T, id func(*T) uuid.UUID, order func(x, y *T) int) groups {
	g := groups{at: map[uuid.UUID]int32{}}
	var sizes []int32
	for i := range list {
		key := id(&list[i])
		if key == uuid.Nil {
			continue
		}
		n, known := g.at[key]
		if !known {
			n = int32(len(sizes))
			g.at[key], sizes = n, append(sizes, 0)
		}
		sizes[n]++
	}
	g.from = make([]int32, len(sizes)+1)
	for n, size := range sizes {
		g.from[n+1] = g.from[n] + size
	}
	g.items = make([]int32, g.from[len(sizes)])
	next := slices.Clone(g.from)
	for i := range list {
		if key := id(&list[i]); key != uuid.Nil {
			n := g.at[key]
			g.items[next[n]] = int32(i)
			next[n]++
		}
	}
	if order != nil {
		for n := range sizes {
			slices.SortStableFunc(g.items[g.from[n]:g.from[n+1]], func(x, y int32) int { return order(&list[x], &list[y]) })
		}
	}
	return g
}

// rows are the rows of a group.
func rows[T any](list []T, g *groups, id uuid.UUID) []*T {
	places := g.of(id)
	found := make([]*T, len(places))
	for i, at := range places {
		found[i] = &list[at]
	}
	return found
}

func (b *book) stepsOf(execution uuid.UUID) []*Step { return rows(b.c.Steps, &b.steps, execution) }

func (b *book) attemptsOf(step uuid.UUID) []*Attempt { return rows(b.c.Attempts, &b.attempts, step) }

func (b *book) entriesOf(execution uuid.UUID) []*Entry {
	return rows(b.c.Entries, &b.entries, execution)
}

func (b *book) eventsOf(execution uuid.UUID) []*Event { return rows(b.c.Events, &b.facts, execution) }

// opsOf are the ops on an attempt.
func (b *book) opsOf(attempt uuid.UUID) []*Op { return rows(b.h.Ops, &b.ofAttempt, attempt) }

// opsOn are the ops that name an execution.
func (b *book) opsOn(execution uuid.UUID) []*Op { return rows(b.h.Ops, &b.ofExecution, execution) }

// String tells of an op as violations do.
func (o *Op) String() string {
	text := string(o.Kind)
	for _, part := range []struct {
		name  string
		value any
		there bool
	}{
		{"execution", o.Execution, o.Execution != uuid.Nil}, {"step", o.Step, o.Step != uuid.Nil},
		{"attempt", o.Attempt, o.Attempt != uuid.Nil}, {"version", o.Version, o.Version != 0},
		{"key", o.Key, o.Key != ""}, {"as", o.Result, o.Result != ""}, {"by", o.Client, o.Client != ""},
	} {
		if part.there {
			text += fmt.Sprintf(" %s %v", part.name, part.value)
		}
	}
	if o.End == 0 {
		return text + fmt.Sprintf(" (from %d, never answered)", o.Begin)
	}
	return text + fmt.Sprintf(" (%d to %d, %s)", o.Begin, o.End, o.Outcome)
}
