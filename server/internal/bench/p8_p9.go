package bench

import (
	"context"
	"fmt"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// runP8 does the work of P1 with one server, two, and so on.
func runP8(ctx context.Context, t *trial) error {
	var parts []part
	for n := 1; n <= t.cfg.Replicas; n++ {
		name := fmt.Sprintf("%d servers", n)
		if n == 1 {
			name = "1 server"
		}
		parts = append(parts, part{name, func(ctx context.Context) (Point, error) {
			return t.on(ctx, n, true, func(ctx context.Context, s *site) (Point, error) { return t.oneByOne(ctx, s, nil) })
		}})
	}
	return t.compare(ctx, parts, byRate, smaller)
}

// runP9 works off graphs, and compares their steps with executions of one step.
func runP9(ctx context.Context, t *trial) error {
	steps := t.executions()
	wide := min(max(steps/fanOuts, 2), widest)
	graphs := func(n int64, each func(int64) *leaseholdv1.EnqueueExecutionRequest, size int64) func(context.Context) (Point, error) {
		return func(ctx context.Context) (Point, error) {
			return t.on(ctx, 1, true, func(ctx context.Context, s *site) (p Point, err error) {
				if err := s.fillBy(ctx, n, each, max(int(batchOfProducers/size), 1)); err != nil {
					return p, err
				}
				return t.workOff(ctx, s, n*size, nil)
			})
		}
	}
	fan := func(i int64) *leaseholdv1.EnqueueExecutionRequest { return request(i, fanOut(int(wide))...) }
	return t.compare(ctx, []part{
		{"1 step", graphs(steps, oneStep, 1)},
		{fmt.Sprintf("fan-out of %s", thousands(wide)), graphs(max(steps/wide, 1), fan, wide+2)},
		{"10 steps", graphs(max(steps/stepsOfChain, 1), func(i int64) *leaseholdv1.EnqueueExecutionRequest { return request(i, diamondAndChain()...) }, stepsOfChain)},
	}, byRate, smaller)
}

const (
	stepsOfChain = 10
	fanOuts      = 4 // executions with a fan-out, unless that is too wide
	widest       = 5_000
)

// diamondAndChain is one step, two after it, one after these, and six in a row.
func diamondAndChain() []*leaseholdv1.StepSpec {
	steps := []*leaseholdv1.StepSpec{named("s0"), named("s1", "s0"), named("s2", "s0"), named("s3", "s1", "s2")}
	for i := len(steps); i < stepsOfChain; i++ {
		steps = append(steps, named(fmt.Sprintf("s%d", i), fmt.Sprintf("s%d", i-1)))
	}
	return steps
}

// fanOut is one step, many after it, and one after these.
func fanOut(n int) []*leaseholdv1.StepSpec {
	steps := []*leaseholdv1.StepSpec{named("root")}
	join := named("join")
	for i := range n {
		leaf := named(fmt.Sprintf("leaf%d", i), "root")
		steps, join.DependsOn = append(steps, leaf), append(join.DependsOn, leaf.GetName())
	}
	return append(steps, join)
}

func named(name string, parents ...string) *leaseholdv1.StepSpec {
	step := numbered(capability, 0)
	step.Name, step.DependsOn = name, parents
	return step
}
