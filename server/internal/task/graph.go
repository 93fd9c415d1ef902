package task

import (
	"fmt"
	"strings"
)

// Node is what the graph checks need of a step.
type Node struct {
	Name      string
	DependsOn []string
}

// CheckGraph returns everything that is wrong with a graph: no steps, too many, a double
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
	for i, n := range nodes {
		found = append(found, checkParents(i, n, index)...)
	}
	if len(found) > 0 {
		return found
	}
	return checkCycle(nodes, index)
}

func checkParents(i int, n Node, index map[string]int) []Violation {
	var found []Violation
	seen := make(map[string]bool, len(n.DependsOn))
	for j, parent := range n.DependsOn {
		field := fmt.Sprintf("steps[%d].depends_on[%d]", i, j)
		_, known := index[parent]
		switch {
		case parent == n.Name:
			found = append(found, Violation{field, ReasonStepSelfParent, fmt.Sprintf("step %q depends on itself", n.Name)})
		case !known:
			found = append(found, Violation{field, ReasonStepUnknownParent, fmt.Sprintf("step %q depends on %q, which is not a step", n.Name, parent)})
		case seen[parent]:
			found = append(found, Violation{field, ReasonStepDoubleParent, fmt.Sprintf("step %q depends on %q twice", n.Name, parent)})
		}
		seen[parent] = true
	}
	return found
}

// checkCycle removes steps without open parents until none is left (Kahn); what remains
// holds a cycle, which is then walked backwards to name it.
func checkCycle(nodes []Node, index map[string]int) []Violation {
	children := make([][]int, len(nodes))
	waiting := make([]int, len(nodes))
	var free []int
	for i, n := range nodes {
		waiting[i] = len(n.DependsOn)
		for _, parent := range n.DependsOn {
			p := index[parent]
			children[p] = append(children[p], i)
		}
		if waiting[i] == 0 {
			free = append(free, i)
		}
	}
	left := len(nodes)
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		left--
		for _, c := range children[i] {
			if waiting[c]--; waiting[c] == 0 {
				free = append(free, c)
			}
		}
	}
	if left == 0 {
		return nil
	}
	cycle := walkCycle(nodes, index, waiting)
	at := index[cycle[0]]
	return []Violation{{fmt.Sprintf("steps[%d].depends_on", at), ReasonStepCycle, "steps wait for each other: " + cycleText(cycle)}}
}

// walkCycle follows open parents from any step that is left: it must meet a step again.
func walkCycle(nodes []Node, index map[string]int, waiting []int) []string {
	at := 0
	for waiting[at] == 0 {
		at++
	}
	position := map[int]int{}
	var path []string
	for {
		if start, met := position[at]; met {
			return path[start:]
		}
		position[at] = len(path)
		path = append(path, nodes[at].Name)
		for _, parent := range nodes[at].DependsOn {
			if p := index[parent]; waiting[p] > 0 {
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
