package memstore

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// gate is the executions that a transaction changes, with what was read of them.
type gate struct {
	t     *txn
	execs map[uuid.UUID]*task.Execution
	order []uuid.UUID
}

// open restores executions, those that are there.
func (t *txn) open(ids ...uuid.UUID) *gate {
	g := &gate{t: t, execs: map[uuid.UUID]*task.Execution{}}
	ids = slices.Clone(ids)
	slices.SortFunc(ids, byID)
	for _, id := range slices.Compact(ids) {
		if row, there := t.executions[id]; there {
			g.execs[id] = task.RestoreExecution(row.ExecutionData)
			g.order = append(g.order, id)
		}
	}
	return g
}

// openSteps restores the executions of steps, with these.
func (t *txn) openSteps(steps ...uuid.UUID) *gate {
	var ids []uuid.UUID
	for _, id := range steps {
		ids = append(ids, t.steps[id].execution)
	}
	g := t.open(ids...)
	g.readSteps(steps...)
	return g
}

// readSteps adds steps to their executions, each with its live attempt.
func (g *gate) readSteps(ids ...uuid.UUID) {
	for _, id := range ids {
		row := g.t.steps[id]
		if e := g.execs[row.execution]; e != nil && e.Step(id) == nil {
			e.AddStep(task.RestoreStep(row.StepData, g.t.live(row)))
		}
	}
}

// live is the attempt of a step that is live, or nil.
func (t *txn) live(s step) *task.Attempt {
	if len(s.attempts) == s.AttemptsEnded {
		return nil
	}
	return task.RestoreAttempt(t.attempts[s.attempts[s.AttemptsEnded]].AttemptData)
}

// readOpen adds every step of an execution that is not terminal.
func (g *gate) readOpen(execution uuid.UUID) {
	for _, id := range g.t.executions[execution].steps {
		if !g.t.steps[id].State.Terminal() {
			g.readSteps(id)
		}
	}
}

// of is the execution of a step.
func (g *gate) of(step uuid.UUID) *task.Execution { return g.execs[g.t.steps[step].execution] }

// finish settles and saves.
func (g *gate) finish() error {
	if err := g.settle(); err != nil {
		return err
	}
	return g.save()
}

// settle reads what of the graphs is needed, and lets the domain draw the consequences.
func (g *gate) settle() error {
	for _, id := range g.order {
		e := g.execs[id]
		f := e.Frontier()
		edges := g.childrenOf(id, f.ChildrenOf)
		descendants := g.descendantsOf(id, f.DescendantsOf)
		if f.AllOpen {
			g.readOpen(id)
		}
		if err := e.Settle(g.t.at, edges, descendants); err != nil {
			return fmt.Errorf("settle execution %s: %w", id, err)
		}
	}
	return nil
}

func (g *gate) childrenOf(execution uuid.UUID, parents []uuid.UUID) []task.Edge {
	var edges []task.Edge
	for _, edge := range g.t.executions[execution].edges {
		if slices.Contains(parents, edge.Parent) {
			edges = append(edges, edge)
			g.readSteps(edge.Child)
		}
	}
	return edges
}

// descendantsOf are the blocked steps below some.
func (g *gate) descendantsOf(execution uuid.UUID, of []uuid.UUID) []uuid.UUID {
	var blocked []uuid.UUID
	seen := map[uuid.UUID]bool{}
	for next := slices.Clone(of); len(next) > 0; next = next[1:] {
		for _, edge := range g.t.executions[execution].edges {
			if edge.Parent != next[0] || seen[edge.Child] {
				continue
			}
			seen[edge.Child] = true
			next = append(next, edge.Child)
			if g.t.steps[edge.Child].State == task.StepBlocked {
				blocked = append(blocked, edge.Child)
			}
		}
	}
	g.readSteps(blocked...)
	return blocked
}
