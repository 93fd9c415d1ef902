package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pool is how a pool of connections is used.
type Pool interface {
	AcquiredConns() int32
	IdleConns() int32
	MaxConns() int32
	EmptyAcquireCount() int64
	EmptyAcquireWaitTime() time.Duration
}

// pool shows how the pool of connections is used.
type pool struct{ now func() Pool }

func connectionsDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_connections",
		"Connections of this replica's pool, by state: in_use, idle. LISTEN has one beside it.", []string{"state"}, nil)
}

func connectionsMaxDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_connections_max", "Connections that this replica's pool may have.", nil, nil)
}

func connectionWaitsDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_connection_waits_total",
		"Times that something had to wait for a connection, because all were in use or one had to be made.", nil, nil)
}

func connectionWaitSecondsDesc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_database_connection_wait_seconds_total",
		"Time that was spent waiting for a connection.", nil, nil)
}

// Describe tells what Collect sends.
func (p *pool) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc()
	ch <- connectionsMaxDesc()
	ch <- connectionWaitsDesc()
	ch <- connectionWaitSecondsDesc()
}

// Collect looks at the pool.
func (p *pool) Collect(ch chan<- prometheus.Metric) {
	s := p.now()
	ch <- gauge(connectionsDesc(), float64(s.AcquiredConns()), "in_use")
	ch <- gauge(connectionsDesc(), float64(s.IdleConns()), "idle")
	ch <- gauge(connectionsMaxDesc(), float64(s.MaxConns()))
	ch <- prometheus.MustNewConstMetric(connectionWaitsDesc(), prometheus.CounterValue, float64(s.EmptyAcquireCount()))
	ch <- prometheus.MustNewConstMetric(connectionWaitSecondsDesc(), prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds())
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}
