package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

var (
	_ scheduler.Observer          = (*Scheduler)(nil)
	_ scheduler.RetentionObserver = (*Scheduler)(nil)
	_ scheduler.DispatchObserver  = (*Dispatcher)(nil)
)

// Scheduler observes the application.
type Scheduler struct {
	enqueues counters[scheduler.EnqueueAnswer]
	late     *prometheus.CounterVec
	swept    counters[scheduler.SweepWork]
	purged   counters[scheduler.PurgeKind]
	flushes  map[scheduler.Loop]prometheus.Observer
	health   *health
}

func newScheduler(r prometheus.Registerer, h *health) *Scheduler {
	flushes := histogram(r, "leasehold_group_commit_calls",
		"Calls of one kind that one transaction wrote together.", batchSizes(), "kind")
	s := &Scheduler{
		enqueues: each(counter(r, "leasehold_enqueues_total",
			"Executions that producers asked for, by answer: created; existing (the idempotency key was used before, with the same content); conflict (with other content, refused).",
			"answer"), scheduler.EnqueueCreated, scheduler.EnqueueExisting, scheduler.EnqueueConflict),
		late: counter(r, "leasehold_late_calls_refused_total",
			"Renewals and reports that came too late and were refused, by call and reason.", "call", "reason"),
		swept: counters[scheduler.SweepWork]{
			scheduler.SweepLeases: plainCounter(r, "leasehold_leases_expired_total",
				"Leases that the sweeper of this replica ended because their time was over."),
			scheduler.SweepTimers: plainCounter(r, "leasehold_timers_fired_total",
				"Timers (start times, timeouts, deadlines) that the sweeper of this replica looked at because they were due."),
			scheduler.SweepCredits: plainCounter(r, "leasehold_outage_credits_total",
				"Outages of the whole service that this replica found at its first sweep, and after which live leases lasted anew."),
		},
		purged: each(counter(r, "leasehold_retention_removed_total",
			"What retention removed, by kind: executions (whole), events (published or skipped, beside those that went with their execution), dead_events (never published), workers.",
			"kind"), scheduler.PurgeExecutions, scheduler.PurgeEvents, scheduler.PurgeDeadEvents, scheduler.PurgeWorkers),
		flushes: map[scheduler.Loop]prometheus.Observer{}, health: h,
	}
	for _, loop := range []scheduler.Loop{scheduler.LoopEnqueues, scheduler.LoopRenewals, scheduler.LoopReports, scheduler.LoopCancels} {
		s.flushes[loop] = flushes.WithLabelValues(string(loop))
	}
	for _, call := range []scheduler.LateCall{scheduler.LateRenewal, scheduler.LateReport} {
		s.late.WithLabelValues(string(call), string(task.ReasonLeaseExpired))
		s.late.WithLabelValues(string(call), string(task.ReasonLeaseSuperseded))
	}
	return s
}

func plainCounter(r prometheus.Registerer, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

// Enqueued counts an answer to a producer.
func (s *Scheduler) Enqueued(how scheduler.EnqueueAnswer) { s.enqueues.add(how, 1) }

// LateRefused counts a refused renewal or report.
func (s *Scheduler) LateRefused(call scheduler.LateCall, reason task.Reason) {
	s.late.WithLabelValues(string(call), string(reason)).Inc()
}

// Swept counts what the sweeper did.
func (s *Scheduler) Swept(what scheduler.SweepWork, n int) { s.swept.add(what, n) }

// Purged counts what retention removed.
func (s *Scheduler) Purged(kind scheduler.PurgeKind, n int) { s.purged.add(kind, n) }

// Flushed observes the size of a group commit.
func (s *Scheduler) Flushed(loop scheduler.Loop, calls int) {
	if h := s.flushes[loop]; h != nil {
		h.Observe(float64(calls))
	}
}

// Looped notes that a loop lives.
func (s *Scheduler) Looped(loop scheduler.Loop) { s.health.beat(loop) }

// Dispatcher observes the rounds of the dispatcher.
type Dispatcher struct {
	rounds   counters[roundResult]
	duration prometheus.Histogram
	claimed  prometheus.Observer
	granted  prometheus.Observer
	waited   prometheus.Histogram
}

// roundResult is what came of a round.
type roundResult string

const (
	roundGranted roundResult = "granted" // leases
	roundEmpty   roundResult = "empty"   // nothing was due that parked polls can take
	roundLeft    roundResult = "left"    // another transaction, or another replica, was in the way
	roundFailed  roundResult = "failed"
)

func newDispatcher(r prometheus.Registerer) *Dispatcher {
	sizes := histogram(r, "leasehold_dispatch_batch_requests",
		"Scheduling requests of one dispatch round, of those that claimed any: claimed, and granted as leases.", batchSizes(), "stage")
	d := &Dispatcher{
		rounds: each(counter(r, "leasehold_dispatch_rounds_total",
			"Rounds of the dispatcher, by result: granted (leases), empty (nothing was due that parked polls can take), left (rows were held by others), failed.",
			"result"), roundGranted, roundEmpty, roundLeft, roundFailed),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leasehold_dispatch_round_duration_seconds", Buckets: shortSeconds(),
			Help: "Duration of a dispatch round, without the delivery of its leases.",
		}),
		claimed: sizes.WithLabelValues("claimed"), granted: sizes.WithLabelValues("granted"),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "leasehold_dispatch_ready_to_leased_seconds",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
			Help:    "Time from when an attempt was due until it was leased, by PostgreSQL's clock.",
		}),
	}
	r.MustRegister(d.duration, d.waited)
	return d
}

// Round observes a round.
func (d *Dispatcher) Round(r scheduler.Round) {
	if errors.Is(r.Err, context.Canceled) {
		return // the replica stops
	}
	result := roundEmpty
	switch {
	case r.Err != nil:
		result = roundFailed
	case r.Granted > 0:
		result = roundGranted
	case r.Left > 0:
		result = roundLeft
	}
	d.rounds.add(result, 1)
	d.duration.Observe(r.Took.Seconds())
	if r.Claimed > 0 {
		d.claimed.Observe(float64(r.Claimed))
		d.granted.Observe(float64(r.Granted))
	}
}

// Leased observes how long an attempt waited for a worker.
func (d *Dispatcher) Leased(waited time.Duration) { d.waited.Observe(waited.Seconds()) }
