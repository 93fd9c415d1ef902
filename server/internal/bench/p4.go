package bench

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// runP4 enqueues at a fixed rate while workers wait. The latency counts from the instant at which
// an enqueue was meant to be sent until a worker has its lease.
func runP4(ctx context.Context, t *trial) error {
	p, err := t.on(ctx, 1, true, func(ctx context.Context, s *site) (p Point, err error) {
		m, err := s.begin(ctx, t.scenario.name)
		if err != nil {
			return p, err
		}
		n := t.cfg.Executions
		if n == 0 {
			n = max(int(t.cfg.Rate*t.duration().Seconds()), 1)
		}
		crew := t.cfg.crew(false)
		times, err := t.arrivals(ctx, s, crew, n, m.already, nil)
		if err != nil {
			return p, err
		}
		p, err = m.end(ctx)
		p.Latency = times.latency()
		return p, err
	})
	t.alone(p)
	return err
}

// arrivals enqueues n executions at the rate of the flags while a crew waits for them, and
// measures when their leases arrive. before is called when the crew is there.
func (t *trial) arrivals(ctx context.Context, s *site, cfg crewConfig, n int, already int64, before func(ctx context.Context) error) (*stopwatch, error) {
	var intended sync.Map // by the number of the execution: an instant
	times := newStopwatch()
	cfg.held = func(l *leaseholdv1.Lease, at time.Time) {
		if began, ok := intended.Load(numberOf(l)); ok {
			times.record(at.Sub(began.(time.Time)))
		}
	}
	conn, err := s.dial(0)
	if err != nil {
		return nil, err
	}
	client := leaseholdv1.NewExecutionServiceClient(conn)
	return times, s.staffed(ctx, cfg, func(ctx context.Context) error {
		if before != nil {
			if err := before(ctx); err != nil {
				return err
			}
		}
		pace(ctx, t.cfg.Rate, n, func(i int, at time.Time) {
			intended.Store(int64(i), at)
			if err := s.enqueueOne(ctx, client, oneStep(int64(i))); err != nil {
				s.ledger.doubt(1) // It is counted.
			}
		})
		return t.unlessStalled(s.awaitDone(ctx, already+int64(n)))
	})
}

// numberOf is the number of a leased execution, as oneStep gave it.
func numberOf(l *leaseholdv1.Lease) int64 {
	var input struct{ N int64 }
	if err := json.Unmarshal([]byte(l.GetInput().GetJson()), &input); err != nil {
		return -1 // Nobody waits for it.
	}
	return input.N
}
