package telemetry

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Config says how telemetry works. Zero values are usable.
type Config struct {
	Version string        // of the program
	Fresh   time.Duration // how long what was read from the database is good for; default 5 s
	Logger  *slog.Logger
}

// Telemetry is what operators see of one replica. Its first fields are the observers.
type Telemetry struct {
	Scheduler    *Scheduler
	Dispatcher   *Dispatcher
	Relay        *Relay
	Transactions *Transactions

	registry *prometheus.Registry
	calls    *calls
	health   *health
	log      *slog.Logger
	fresh    time.Duration
}

// Sources are asked for what nobody tells.
type Sources struct {
	Ping        func(ctx context.Context) error // whether the database answers
	Queues      scheduler.MeasureStore
	Outbox      outbox.BacklogSource
	Pool        func() Pool
	ParkedPolls func() int
	Watches     func() int // streams of WatchExecution that are open
	// Loops are the loops of the replica, each with the time within which it gets through a
	// round.
	Loops map[scheduler.Loop]time.Duration
	Relay bool // it has a relay
}

// New makes the telemetry of a replica: observers to be handed to its parts. Watch comes next.
func New(c Config) *Telemetry {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Fresh <= 0 {
		c.Fresh = defaultFresh
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(c.Version))
	health := newHealth()
	return &Telemetry{
		Scheduler: newScheduler(r, health), Dispatcher: newDispatcher(r), Relay: newRelay(r, health),
		Transactions: newTransactions(r, health), registry: r, calls: newCalls(r), health: health, log: c.Logger, fresh: c.Fresh,
	}
}

// Watch names what is asked for the rest. Call it once, before the parts run.
func (t *Telemetry) Watch(s Sources) {
	t.health.watch(s)
	t.registry.MustRegister(
		t.health,
		newDatabase(s.Queues, s.Outbox, t.fresh, t.log),
		&pool{s.Pool},
		asked("leasehold_parked_polls", "LeaseAttempt calls that wait on this replica for work.", s.ParkedPolls),
		asked("leasehold_watches", "WatchExecution streams that are open on this replica.", s.Watches),
	)
}

// asked is a gauge that asks for its value.
func asked(name, help string, value func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func buildInfo(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "leasehold_build_info", Help: "1, with the program's version in the labels.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	g.Set(1)
	return g
}

// counter makes and registers a counter with labels.
func counter(r prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

// histogram makes and registers a histogram with labels.
func histogram(r prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(h)
	return h
}

// counters are those of one metric, by what they count. What has none is not counted.
type counters[K ~string] map[K]prometheus.Counter

func (c counters[K]) add(what K, n int) {
	if known := c[what]; known != nil {
		known.Add(float64(n))
	}
}

// each makes the children of a counter for the values of its one label that are known.
func each[K ~string](c *prometheus.CounterVec, values ...K) counters[K] {
	children := make(counters[K], len(values))
	for _, v := range values {
		children[v] = c.WithLabelValues(string(v))
	}
	return children
}

// The buckets of histograms: durations of what is short, in seconds; and sizes of batches.

func shortSeconds() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
}

func batchSizes() []float64 { return []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000} }
