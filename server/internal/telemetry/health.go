package telemetry

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const (
	pingTimeout = 2 * time.Second
	pingFresh   = time.Second // that long an answer of the database is good for
)

// The phases of a replica's life.
const (
	phaseStarting int32 = iota
	phaseServing
	phaseStopping
)

// health knows whether the replica is ready: it serves, its database answers, and each of its
// loops got through a round not long ago.
type health struct {
	phase atomic.Int32
	began time.Time // monotonic
	loops map[scheduler.Loop]*loop
	ping  func(ctx context.Context) error

	mu     sync.Mutex
	pinged time.Time // monotonic
	away   bool      // what the last ping told
}

// loop is when a loop last got through a round. A loop with no bound only informs.
type loop struct {
	within time.Duration
	last   atomic.Int64 // nanoseconds after began
}

func newHealth() *health { return &health{began: time.Now(), loops: map[scheduler.Loop]*loop{}} } // monotonic

// watch names the loops. They get their first time from now.
func (h *health) watch(s Sources) {
	h.ping = s.Ping
	for name, within := range s.Loops {
		h.loops[name] = &loop{within: within}
	}
	if s.Relay {
		h.loops[loopRelay] = &loop{within: outbox.LoopsWithin}
	}
	h.loops[loopHints] = &loop{} // hints only make things faster
	for name := range h.loops {
		h.beat(name)
	}
}

func (h *health) beat(name scheduler.Loop) {
	if l := h.loops[name]; l != nil {
		l.last.Store(int64(time.Since(h.began)))
	}
}

func (h *health) age(l *loop) time.Duration {
	return time.Since(h.began) - time.Duration(l.last.Load())
}

// Serving tells that the replica serves from now on.
func (t *Telemetry) Serving() { t.health.phase.CompareAndSwap(phaseStarting, phaseServing) }

// Stopping tells that the replica stops: it is not ready any more.
func (t *Telemetry) Stopping() { t.health.phase.Store(phaseStopping) }

// problems are why the replica is not ready; none: it is.
func (h *health) problems(ctx context.Context) []string {
	switch h.phase.Load() {
	case phaseStarting:
		return []string{"starting"}
	case phaseStopping:
		return []string{"stopping"}
	}
	var list []string
	for name, l := range h.loops {
		if age := h.age(l); l.within > 0 && age > l.within {
			list = append(list, fmt.Sprintf("loop %s: its last success was %s ago, and must be at most %s ago",
				name, age.Round(time.Second), l.within))
		}
	}
	slices.Sort(list)
	if !h.databaseAnswers(ctx) {
		list = append([]string{"database: it does not answer"}, list...)
	}
	return list
}

// databaseAnswers asks the database, unless it was asked just before. Those that ask meanwhile
// wait for the answer.
func (h *health) databaseAnswers(ctx context.Context) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pinged.IsZero() && time.Since(h.pinged) < pingFresh {
		return !h.away
	}
	// Whoever asked may leave: the answer is for the others too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	h.away = h.ping(ctx) != nil
	h.pinged = time.Now() // monotonic
	return !h.away
}

func loopAgeDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_loop_last_success_age_seconds",
		"Time since a loop of this replica last got through a round without an error of the database.", []string{"loop"}, nil)
}

// Describe tells what Collect sends.
func (h *health) Describe(ch chan<- *prometheus.Desc) { ch <- loopAgeDesc() }

// Collect sends the loops' ages.
func (h *health) Collect(ch chan<- prometheus.Metric) {
	for name, l := range h.loops {
		ch <- gauge(loopAgeDesc(), h.age(l).Seconds(), string(name))
	}
}
