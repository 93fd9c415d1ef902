package task

import (
	"fmt"
	"slices"
	"strings"
)

// Node is what the graph checks need of a step.
type Node struct {
	Name      string
	DependsOn []string
}

// CheckGraph returns what is wrong with a graph, all at once: no steps, too many, a double
// name, an unknown, double or self parent, a cycle. The order of declaration is free.
func CheckGraph(nodes []Node) []Violation {
	switch {
	case len(nodes) == 0:
		return []Violation{{"steps", ReasonNoSteps, "must have at least one step"}}
	case len(nodes) > MaxSteps:
		return []Violation{{"steps", ReasonTooManySteps, fmt.Sprintf("must have at most %d steps, has %d", MaxSteps, len(nodes))}}
	}
	index := make(map[string]int, len(nodes))
	var found []Violation
	edges := 0
	for i, n := range nodes {
		edges += len(n.DependsOn)
		if first, double := index[n.Name]; double {
			found = append(found, Violation{fmt.Sprintf("steps[%d].name", i), ReasonStepDoubleName,
				fmt.Sprintf("step %q is declared twice, first as steps[%d]", n.Name, first)})
			continue
		}
		index[n.Name] = i
	}
	if edges > MaxEdges {
		return append(found, Violation{"steps", ReasonTooManyEdges, fmt.Sprintf("must have at most %d edges, has %d", MaxEdges, edges)})
	}
	parents := make([][]int, len(nodes))
	for i, n := range nodes {
		known, wrong := checkParents(i, n, index)
		parents[i], found = known, append(found, wrong...)
	}
	return append(found, checkCycle(nodes, parents)...)
}

// checkParents returns the parents of a step that are as they should be, and what is wrong
// with the others.
func checkParents(i int, n Node, index map[string]int) (parents []int, found []Violation) {
	seen := make(map[string]bool, len(n.DependsOn))
	for j, name := range n.DependsOn {
		field := fmt.Sprintf("steps[%d].depends_on[%d]", i, j)
		p, known := index[name]
		switch {
		case name == n.Name:
			found = append(found, Violation{field, ReasonStepSelfParent, fmt.Sprintf("step %q depends on itself", n.Name)})
		case !known:
			found = append(found, Violation{field, ReasonStepUnknownParent, fmt.Sprintf("step %q depends on %q, which is not a step", n.Name, name)})
		case seen[name]:
			found = append(found, Violation{field, ReasonStepDoubleParent, fmt.Sprintf("step %q depends on %q twice", n.Name, name)})
		default:
			parents = append(parents, p)
		}
		seen[name] = true
	}
	return parents, found
}

// checkCycle removes steps without open parents until none is left (Kahn); what remains
// holds a cycle, which is then walked backwards to name it. Of several, one is named.
func checkCycle(nodes []Node, parents [][]int) []Violation {
	waiting := openParents(parents)
	at := slices.IndexFunc(waiting, func(n int) bool { return n > 0 })
	if at < 0 {
		return nil
	}
	cycle := walkCycle(parents, waiting, at)
	names := make([]string, len(cycle))
	for i, c := range cycle {
		names[i] = nodes[c].Name
	}
	field := fmt.Sprintf("steps[%d].depends_on", cycle[0])
	return []Violation{{field, ReasonStepCycle, "steps wait for each other: " + cycleText(names)}}
}

// openParents counts for each step the parents that can never end before it.
func openParents(parents [][]int) []int {
	children := make([][]int, len(parents))
	waiting := make([]int, len(parents))
	var free []int
	for i, list := range parents {
		waiting[i] = len(list)
		for _, p := range list {
			children[p] = append(children[p], i)
		}
		if waiting[i] == 0 {
			free = append(free, i)
		}
	}
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		for _, c := range children[i] {
			if waiting[c]--; waiting[c] == 0 {
				free = append(free, c)
			}
		}
	}
	return waiting
}

// walkCycle follows open parents from a step that is left: it must meet a step again.
func walkCycle(parents [][]int, waiting []int, at int) []int {
	position := map[int]int{}
	var path []int
	for {
		if start, met := position[at]; met {
			return path[start:]
		}
		position[at] = len(path)
		path = append(path, at)
		for _, p := range parents[at] {
			if waiting[p] > 0 {
				at = p
				break
			}
		}
	}
}

func cycleText(cycle []string) string {
	const shown = 20
	if len(cycle) > shown {
		return strings.Join(cycle[:shown], " ← ") + fmt.Sprintf(" ← ... (%d steps)", len(cycle))
	}
	return strings.Join(append(cycle, cycle[0]), " ← ")
}
