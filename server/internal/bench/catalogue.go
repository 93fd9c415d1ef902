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
		{
			name: "P5", line: "leases from backlogs of several sizes; the ratio is of the p99",
			unit: "leases/s", latencyOf: "LeaseAttempt", executions: 2_000, pairs: 5, further: "--backlogs 10000,100000,1000000,5000000", run: runP5,
		},
		{
			name: "P6", line: "drains while another transaction's snapshot stays open, and without; the last tenth of the time counts",
			unit: "executions/s", latencyOf: "BatchReportAttempts", executions: 10_000, duration: 10 * time.Minute, pairs: 1, run: runP6,
		},
		{
			name: "P7", line: "polls that wait over 100 connections, without any work; then the latency from an enqueue to a lease",
			unit: "executions/s", latencyOf: "enqueue to lease", duration: time.Minute, further: "--polls 10000 --rate 100", run: runP7,
		},
		{
			name: "P8", line: "P1 with one server, two, and three",
			unit: "executions/s", latencyOf: "EnqueueExecution", duration: 30 * time.Second, pairs: 1, further: "--replicas 3 --producers 32", run: runP8,
		},
		{
			name: "P9", line: "graphs: a diamond with a chain, a fan-out with its join; their steps compared with executions of one",
			unit: "steps/s", latencyOf: "BatchReportAttempts", executions: 20_000, pairs: 1, run: runP9,
		},
		{
			name: "P10", line: "P1 while many leases are renewed every ten seconds, and without",
			unit: "executions/s", latencyOf: "EnqueueExecution", duration: 30 * time.Second, pairs: 1, further: "--leases 10000 --producers 32", run: runP10,
		},
		{
			name: "P11", line: "P2 while its events are published to NATS JetStream, and without a sink",
			unit: "executions/s", latencyOf: "BatchReportAttempts", executions: 100_000, pairs: 1, run: runP11,
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
