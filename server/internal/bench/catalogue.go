package bench

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// scenario is a way to load the service.
type scenario struct {
	name      string
	line      string // for people
	unit      string // of its rate
	latencyOf string // what its percentiles are of

	// What it does unless flags say otherwise, at --size 1; zero: it has none.
	executions int
	duration   time.Duration
	pairs      int
	further    string // flags of its own, with their defaults

	run func(ctx context.Context, t *trial) error
}

// catalogue is all scenarios.
func catalogue() []scenario {
	return []scenario{
		{
			name: "P1", line: "one by one: unary enqueues, unary reports, until all are done",
			unit: "executions/s", latencyOf: "EnqueueExecution", duration: 30 * time.Second, further: "--producers 32", run: runP1,
		},
		{
			name: "P2", line: "drain: executions that were enqueued before, reports in batches",
			unit: "executions/s", latencyOf: "BatchReportAttempts", executions: 100_000, run: runP2,
		},
		{
			name: "P3", line: "enqueues in batches",
			unit: "executions/s", latencyOf: "BatchEnqueueExecutions", executions: 100_000, further: "--batch 100", run: runP3,
		},
		{
			name: "P4", line: "latency from an enqueue until a worker holds the lease, at a fixed rate",
			unit: "executions/s", latencyOf: "enqueue to lease", duration: time.Minute, further: "--rate 100", run: runP4,
		},
	}
}

// defaults says which flags change a scenario, with what it does without them.
func (sc scenario) defaults() string {
	var flags []string
	if sc.executions > 0 {
		flags = append(flags, fmt.Sprintf("--executions %d", sc.executions))
	}
	if sc.duration > 0 {
		flags = append(flags, fmt.Sprintf("--seconds %g", sc.duration.Seconds()))
	}
	if sc.further != "" {
		flags = append(flags, sc.further)
	}
	if sc.pairs > 0 {
		flags = append(flags, fmt.Sprintf("--pairs %d", sc.pairs))
	}
	return strings.Join(flags, " ")
}
