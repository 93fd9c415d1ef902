package telemetry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const (
	defaultFresh = 5 * time.Second
	readTimeout  = 2 * time.Second // of each read
	// restAfter times the time that reading took nothing is read again, up to mostRest: reading
	// takes a twentieth of a connection's time, and a sixth at worst.
	restAfter  = 20
	mostRest   = 30 * time.Second
	mostQueues = 100 // capabilities with series of their own, the busiest; then all others together
	others     = "(other)"
)

// database shows what is committed. It reads when it is asked, unless it has read just before.
type database struct {
	queues scheduler.MeasureStore
	outbox outbox.BacklogSource
	fresh  time.Duration
	log    *slog.Logger

	mu   sync.Mutex
	last *reading
}

// reading is what was read together, and how long that took. What could not be read is nil.
type reading struct {
	at     time.Time // monotonic
	took   time.Duration
	oldest *time.Duration // transaction
	queues *[]scheduler.QueueDepth
	outbox *outbox.Backlog
}

func newDatabase(queues scheduler.MeasureStore, backlog outbox.BacklogSource, fresh time.Duration, log *slog.Logger) *database {
	return &database{queues: queues, outbox: backlog, fresh: fresh, log: log}
}

func databaseUpDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_up",
		"1 if the last read of the numbers that come from the database succeeded, else 0; then they are left out.", nil, nil)
}

func attemptsDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_queue_attempts",
		"Attempts that are not over, by capability and state: ready (due, waiting for a worker), delayed (due later), running (leased). The same on all replicas.",
		[]string{"namespace", "capability", "state"}, nil)
}

func oldestReadyDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_queue_oldest_ready_age_seconds",
		"Time since the oldest ready attempt was due, by capability; 0 if there is none. The same on all replicas.",
		[]string{"namespace", "capability"}, nil)
}

func eventsDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_outbox_events",
		"Events that are not published yet, or were given up (DEAD), by status. The same on all replicas.", []string{"status"}, nil)
}

func oldestEventDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_outbox_oldest_unsent_age_seconds",
		"Age of the oldest event that is on its way, neither DEAD nor behind a DEAD one; 0 if there is none. The same on all replicas.", nil, nil)
}

func oldestTransactionDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_oldest_transaction_seconds",
		"Age of the oldest open transaction in the database, anybody's, as far as the service's role may see it. The same on all replicas.", nil, nil)
}

// Describe tells what Collect sends.
func (d *database) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		databaseUpDesc(), attemptsDesc(), oldestReadyDesc(), eventsDesc(), oldestEventDesc(), oldestTransactionDesc(),
	} {
		ch <- desc
	}
}

// Collect sends what was read, all but what could not be read.
func (d *database) Collect(ch chan<- prometheus.Metric) {
	r := d.read()
	up := 0.0
	if r.oldest != nil && r.queues != nil && r.outbox != nil {
		up = 1
	}
	ch <- gauge(databaseUpDesc(), up)
	if r.oldest != nil {
		ch <- gauge(oldestTransactionDesc(), r.oldest.Seconds())
	}
	if r.queues != nil {
		for _, q := range busiest(*r.queues, mostQueues) {
			ch <- gauge(attemptsDesc(), float64(q.Ready), q.Namespace, q.Capability, "ready")
			ch <- gauge(attemptsDesc(), float64(q.Delayed), q.Namespace, q.Capability, "delayed")
			ch <- gauge(attemptsDesc(), float64(q.Running), q.Namespace, q.Capability, "running")
			ch <- gauge(oldestReadyDesc(), q.OldestReady.Seconds(), q.Namespace, q.Capability)
		}
	}
	if b := r.outbox; b != nil {
		ch <- gauge(oldestEventDesc(), b.OldestUnsent.Seconds())
		for _, status := range outbox.Unsettled() {
			ch <- gauge(eventsDesc(), float64(b.Events[status]), string(status))
		}
	}
}

// read reads, or returns what was read just before. Those that ask meanwhile wait for it.
func (d *database) read() *reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil && time.Since(d.last.at) < max(d.fresh, min(restAfter*d.last.took, mostRest)) {
		return d.last
	}
	began := time.Now() // monotonic
	r := &reading{}
	var err error
	// The first one reads no table: if it fails, so will the others.
	if r.oldest, err = readOne(d.queues.OldestTransaction); err == nil {
		var queues, backlog error
		r.queues, queues = readOne(d.queues.QueueDepths)
		r.outbox, backlog = readOne(d.outbox.Backlog)
		err = errors.Join(queues, backlog)
	}
	if err != nil {
		d.log.Warn("metrics: the database was not read", "error", err)
	}
	r.at = time.Now() // monotonic
	r.took = r.at.Sub(began)
	d.last = r
	return r
}

// readOne reads something, within the time of one read.
func readOne[T any](read func(ctx context.Context) (T, error)) (*T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	v, err := read(ctx)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// busiest are the n queues with most in them; all others are put together in one.
func busiest(queues []scheduler.QueueDepth, n int) []scheduler.QueueDepth {
	if len(queues) <= n {
		return queues
	}
	sorted := slices.Clone(queues)
	slices.SortFunc(sorted, func(a, b scheduler.QueueDepth) int {
		return cmp.Or(cmp.Compare(b.Ready+b.Delayed+b.Running, a.Ready+a.Delayed+a.Running),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Capability, b.Capability))
	})
	rest := scheduler.QueueDepth{Namespace: others, Capability: others}
	for _, q := range sorted[n:] {
		rest.Ready += q.Ready
		rest.Delayed += q.Delayed
		rest.Running += q.Running
		rest.OldestReady = max(rest.OldestReady, q.OldestReady)
	}
	return append(sorted[:n:n], rest)
}
