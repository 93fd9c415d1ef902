package telemetry

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// loopHints is the connection that hears the other replicas' hints.
const loopHints scheduler.Loop = "hints"

// Transactions observes the store's transactions.
type Transactions struct {
	duration *prometheus.HistogramVec
	lockWait *prometheus.HistogramVec
	failures *prometheus.CounterVec
	seen     sync.Map // use case → prometheus.Observer of its duration
	ended    counters[task.AttemptState]
	again    counters[task.AttemptState]
	closed   counters[task.ExecutionState]
	health   *health
}

func newTransactions(r prometheus.Registerer, h *health) *Transactions {
	return &Transactions{
		duration: histogram(r, "leasehold_transaction_duration_seconds",
			"Duration of a try of a transaction, with the wait for a connection, by use case.", shortSeconds(), "use_case"),
		lockWait: histogram(r, "leasehold_transaction_lock_wait_seconds",
			"Time that a try of a transaction spent in statements that wait for locks, by use case; only of tries with such statements.",
			shortSeconds(), "use_case"),
		failures: counter(r, "leasehold_transaction_failures_total",
			"Tries of transactions that failed, by use case and reason: conflict (serialization failure or deadlock, retried inside), unknown_commit (looked for, inside), timeout (of a lock or statement), unavailable (the database), canceled (by the caller), error (a bug).",
			"use_case", "reason"),
		ended: each(counter(r, "leasehold_attempts_ended_total",
			"Attempts that this replica ended, by outcome.", "outcome"), outcomes()...),
		again: each(counter(r, "leasehold_attempt_retries_total",
			"Further attempts that this replica asked for, by the outcome of the attempt before.", "outcome"), outcomes()...),
		closed: each(counter(r, "leasehold_executions_ended_total",
			"Executions that this replica ended, by state.", "state"),
			task.ExecutionSucceeded, task.ExecutionFailed, task.ExecutionCanceled),
		health: h,
	}
}

func outcomes() []task.AttemptState {
	return []task.AttemptState{
		task.AttemptSucceeded, task.AttemptFailed, task.AttemptTimedOut, task.AttemptLost, task.AttemptReleased, task.AttemptCanceled,
	}
}

// Transaction observes a try of a transaction. Use cases are names in the program, so that
// they are few.
func (o *Transactions) Transaction(name string, took, lockWait time.Duration, failed string) {
	o.durationOf(name).Observe(took.Seconds())
	if lockWait > 0 {
		o.lockWait.WithLabelValues(label(name)).Observe(lockWait.Seconds())
	}
	if failed != "" {
		o.failures.WithLabelValues(label(name), failed).Inc()
	}
}

// durationOf is on the path of every transaction, and makes its label once.
func (o *Transactions) durationOf(name string) prometheus.Observer {
	if known, seen := o.seen.Load(name); seen {
		return known.(prometheus.Observer)
	}
	h := o.duration.WithLabelValues(label(name))
	o.seen.Store(name, h)
	return h
}

func label(name string) string { return strings.ReplaceAll(name, " ", "_") }

// AttemptEnded counts an attempt, and the one that follows it.
func (o *Transactions) AttemptEnded(outcome task.AttemptState, again bool) {
	o.ended.add(outcome, 1)
	if again {
		o.again.add(outcome, 1)
	}
}

// ExecutionEnded counts an execution.
func (o *Transactions) ExecutionEnded(state task.ExecutionState) { o.closed.add(state, 1) }

// HintsHeard notes that the connection for hints lives.
func (o *Transactions) HintsHeard() { o.health.beat(loopHints) }
