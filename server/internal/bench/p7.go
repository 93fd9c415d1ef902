package bench

import (
	"context"
	"time"

	"github.com/prometheus/procfs"
)

const (
	connsOfPolls = 100
	arrivalsTime = 5 * time.Second // that leases are waited for after the polls were measured
	parkTime     = 50 * time.Second

	// PostgreSQL's sessions that idle tell what they did after 10 s.
	countedAfter = 11 * time.Second
)

// runP7 parks polls, and measures what they cost while there is no work, and then how soon one of
// them gets a lease.
func runP7(ctx context.Context, t *trial) error {
	p, err := t.on(ctx, 1, true, func(ctx context.Context, s *site) (p Point, err error) {
		m, err := s.begin(ctx, t.scenario.name)
		if err != nil {
			return p, err
		}
		polls := t.cfg.many(t.cfg.Polls)
		crew := crewConfig{workers: polls, conns: connsOfPolls, slots: 1, most: 1, wait: parkTime}
		figures := map[string]float64{"polls": float64(polls)}
		before := s.memory()
		n := max(int(t.cfg.Rate*min(arrivalsTime, t.duration()).Seconds()), 1)
		var began time.Time
		times, err := t.arrivals(ctx, s, crew, n, m.already, func(ctx context.Context) error {
			err := t.idle(ctx, s, figures)
			figures["kib_per_poll"] = by(s.memory()-before, float64(polls)) / 1024
			began = time.Now() // monotonic
			return err
		})
		if err != nil {
			return p, err
		}
		done, last := s.progress.now()
		p = Point{Count: done, Seconds: last.Sub(began).Seconds(), Latency: times.latency(), Figures: figures}
		p.Rate = by(float64(p.Count), p.Seconds)
		_, err = m.end(ctx)
		return p, err
	})
	t.alone(p)
	return err
}

// idle measures while nothing happens.
func (t *trial) idle(ctx context.Context, s *site, figures map[string]float64) error {
	t.tell("%s: %s polls wait; measuring for %s", t.scenario.name, thousands(int64(t.cfg.many(t.cfg.Polls))), t.duration())
	pause(ctx, min(countedAfter, t.duration()))
	before, err := s.counters(ctx)
	if err != nil {
		return err
	}
	used, began := s.processorTime(), time.Now() // monotonic
	pause(ctx, t.duration())
	after, err := s.counters(ctx)
	if err != nil {
		return err
	}
	took, spent := time.Since(began).Seconds(), s.processorTime().since(used)
	figures["transactions_per_second"] = float64(after.since(before).Commits) / took
	figures["server_cpu_percent"] = spent.servers / took * 100
	if s.postmaster != 0 {
		figures["postgres_cpu_percent"] = spent.postgres / took * 100
	}
	return nil
}

// memory is what the servers use, in bytes.
func (s *site) memory() (bytes float64) {
	for _, r := range s.replicas {
		p, err := procfs.NewProc(r.process.PID())
		if err != nil {
			continue
		}
		if stat, err := p.Stat(); err == nil {
			bytes += float64(stat.ResidentMemory())
		}
	}
	return bytes
}
