package task

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestB50_GraphIsChecked(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rule  string
		nodes []Node
		want  []string // field reason, and what the message must name
	}{
		{"one step", []Node{{"a", nil}}, nil},
		{"order of declaration is free", []Node{{"c", []string{"b", "a"}}, {"b", []string{"a"}}, {"a", nil}}, nil},
		{"no steps", nil, []string{"steps NO_STEPS "}},
		{"self", []Node{{"a", []string{"a"}}}, []string{`steps[0].depends_on[0] STEP_SELF_PARENT "a"`}},
		{"unknown", []Node{{"a", []string{"x"}}}, []string{`steps[0].depends_on[0] STEP_UNKNOWN_PARENT "x"`}},
		{"double parent", []Node{{"a", nil}, {"b", []string{"a", "a"}}}, []string{`steps[1].depends_on[1] STEP_DUPLICATE_PARENT "a"`}},
		{"double name", []Node{{"a", nil}, {"b", nil}, {"a", nil}}, []string{`steps[2].name STEP_DUPLICATE_NAME steps[0]`}},
		{"cycle of two", []Node{{"a", []string{"b"}}, {"b", []string{"a"}}}, []string{"steps[0].depends_on STEP_CYCLE a ← b ← a"}},
		{
			"cycle that others hang on, and that hangs on others",
			[]Node{{"tail", []string{"c"}}, {"root", nil}, {"a", []string{"root", "c"}}, {"b", []string{"a"}}, {"c", []string{"b"}}},
			[]string{"steps[4].depends_on STEP_CYCLE c ← b ← a ← c"},
		},
		{
			"all at once", []Node{{"a", []string{"a", "x", "b"}}, {"b", []string{"a", "a"}}, {"a", nil}},
			[]string{
				"steps[2].name STEP_DUPLICATE_NAME a", "steps[0].depends_on[0] STEP_SELF_PARENT a", "steps[0].depends_on[1] STEP_UNKNOWN_PARENT x",
				"steps[1].depends_on[1] STEP_DUPLICATE_PARENT a", "steps[0].depends_on STEP_CYCLE a ← b ← a",
			},
		},
		{"too many steps", make([]Node, MaxSteps+1), []string{"steps TOO_MANY_STEPS 10001"}},
		{"too many edges", []Node{{"a", make([]string, MaxEdges+1)}}, []string{"steps TOO_MANY_EDGES 50001"}},
	} {
		got := CheckGraph(tt.nodes)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v, want %v", tt.rule, got, tt.want)
			continue
		}
		for i, v := range got {
			w := strings.SplitN(tt.want[i], " ", 3)
			if v.Field != w[0] || string(v.Reason) != w[1] || !strings.Contains(v.Message, w[2]) {
				t.Errorf("%s: %v, want %v", tt.rule, v, tt.want[i])
			}
		}
	}
}

func TestCheckGraph_LongCycleIsCutShort(t *testing.T) {
	t.Parallel()
	nodes := make([]Node, 1000)
	for i := range nodes {
		nodes[i] = Node{fmt.Sprintf("s%d", i), []string{fmt.Sprintf("s%d", (i+1)%1000)}}
	}
	got := CheckGraph(nodes)
	if len(got) != 1 || !strings.Contains(got[0].Message, "(1000 steps)") || len(got[0].Message) > 400 {
		t.Errorf("got %v", got)
	}
}

// randomDAG draws a graph without a cycle, declared in any order.
func randomDAG(t *rapid.T, most int) []Node {
	n := rapid.IntRange(1, most).Draw(t, "steps")
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i].Name = fmt.Sprintf("s%d", i)
		for p := range i {
			if rapid.IntRange(0, 3).Draw(t, "edge") == 0 {
				nodes[i].DependsOn = append(nodes[i].DependsOn, nodes[p].Name)
			}
		}
	}
	return rapid.Permutation(nodes).Draw(t, "declared")
}

func TestCheckGraph_AcceptsEveryGraphWithoutACycle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if v := CheckGraph(randomDAG(t, 15)); len(v) > 0 {
			t.Fatalf("refused: %v", v)
		}
	})
}

// TestCheckGraph_RefusesAnEdgeBack takes a chain through any graph, and closes it.
func TestCheckGraph_RefusesAnEdgeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := randomDAG(t, 12)
		end := rapid.IntRange(0, len(nodes)-1).Draw(t, "end")
		start := end
		for len(nodes[start].DependsOn) > 0 && (start == end || rapid.Bool().Draw(t, "further")) {
			start = at(nodes, rapid.SampledFrom(nodes[start].DependsOn).Draw(t, "parent"))
		}
		if start == end {
			t.Skip("a root has nothing before it")
		}
		nodes[start].DependsOn = append(nodes[start].DependsOn, nodes[end].Name)
		v := CheckGraph(nodes)
		if len(v) != 1 || v[0].Reason != ReasonStepCycle {
			t.Fatalf("got %v, want one cycle", v)
		}
		for _, name := range []string{nodes[start].Name, nodes[end].Name} { // every cycle goes over the new edge
			if !strings.Contains(v[0].Message+" ", " "+name+" ") {
				t.Fatalf("%q does not name %q", v[0].Message, name)
			}
		}
	})
}

func at(nodes []Node, name string) int {
	return slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
}

func TestCheckGraph_IsFastAtItsLimits(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	nodes := make([]Node, MaxSteps)
	edges := 0
	for i := range nodes {
		nodes[i].Name = fmt.Sprintf("step-%d", i)
		seen := map[int]bool{}
		for len(seen) < min(i, 5) && edges < MaxEdges {
			if p := chance.IntN(i); !seen[p] {
				seen[p] = true
				nodes[i].DependsOn = append(nodes[i].DependsOn, nodes[p].Name)
				edges++
			}
		}
	}
	chance.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	start := time.Now()
	if v := CheckGraph(nodes); len(v) > 0 {
		t.Fatalf("refused: %v", v)
	}
	for i := range nodes { // and with a cycle through all that is
		if nodes[i].Name == "step-0" {
			nodes[i].DependsOn = []string{fmt.Sprintf("step-%d", MaxSteps-1)}
		}
	}
	if v := CheckGraph(nodes); len(v) != 1 || v[0].Reason != ReasonStepCycle {
		t.Fatalf("got %v, want a cycle", v)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("two checks of %d steps and %d edges took %v", len(nodes), edges, took)
	}
}
