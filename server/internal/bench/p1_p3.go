package bench

import (
	"context"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// runP1 enqueues one by one while workers are at work, and waits until all are done.
func runP1(ctx context.Context, t *trial) error {
	p, err := t.on(ctx, 1, true, func(ctx context.Context, s *site) (Point, error) { return t.oneByOne(ctx, s, nil) })
	t.alone(p)
	return err
}

// oneByOne is the work of P1. beside begins when the servers are ready; what it returns is called
// when all is done.
func (t *trial) oneByOne(ctx context.Context, s *site, beside func(ctx context.Context) (end func() error, err error)) (p Point, err error) {
	m, err := s.begin(ctx, t.scenario.name)
	if err != nil {
		return p, err
	}
	end := func() error { return nil }
	if beside != nil {
		if end, err = beside(ctx); err != nil {
			return p, err
		}
	}
	times := newStopwatch()
	enough := during(t.duration())
	if t.cfg.Executions > 0 {
		enough = upTo(t.executions())
	}
	err = s.staffed(ctx, t.cfg.crew(false), func(ctx context.Context) error {
		n, err := s.produce(ctx, production{producers: t.cfg.Producers, enough: enough, each: oneStep, times: times})
		if err != nil {
			return err
		}
		return t.unlessStalled(s.awaitDone(ctx, m.already+n))
	})
	if err != nil {
		_ = end() // What ended it tells more.
		return p, err
	}
	if err := end(); err != nil {
		return p, err
	}
	p, err = m.end(ctx)
	p.Latency = times.latency()
	return p, err
}

// runP2 works off what was enqueued before.
func runP2(ctx context.Context, t *trial) error {
	p, err := t.on(ctx, 1, true, func(ctx context.Context, s *site) (Point, error) { return t.drain(ctx, s, t.executions(), oneStep) })
	t.alone(p)
	return err
}

// drain enqueues executions of one step, and measures how they are worked off.
func (t *trial) drain(ctx context.Context, s *site, n int64, each func(int64) *leaseholdv1.EnqueueExecutionRequest) (p Point, err error) {
	if err := s.fill(ctx, n, each); err != nil {
		return p, err
	}
	return t.workOff(ctx, s, n, nil)
}

// workOff measures how so many steps are worked off. after is called when that is done, before the
// servers end.
func (t *trial) workOff(ctx context.Context, s *site, steps int64, after func(ctx context.Context) error) (p Point, err error) {
	m, err := s.begin(ctx, t.scenario.name)
	if err != nil {
		return p, err
	}
	crew := t.cfg.crew(true)
	crew.reports = newStopwatch()
	err = s.staffed(ctx, crew, func(ctx context.Context) error { return t.unlessStalled(s.awaitDone(ctx, m.already+steps)) })
	if err != nil {
		return p, err
	}
	if after != nil {
		if err := after(ctx); err != nil {
			return p, err
		}
	}
	p, err = m.end(ctx)
	p.Latency = crew.reports.latency()
	return p, err
}

// runP3 enqueues in batches, and nobody works.
func runP3(ctx context.Context, t *trial) error {
	p, err := t.on(ctx, 1, false, func(ctx context.Context, s *site) (p Point, err error) {
		m, err := s.begin(ctx, t.scenario.name)
		if err != nil {
			return p, err
		}
		times := newStopwatch()
		began := time.Now() // monotonic
		n, err := s.produce(ctx, production{producers: fillers, enough: upTo(t.executions()), each: oneStep, batch: t.cfg.Batch, times: times})
		if err != nil {
			return p, err
		}
		p, err = m.endWith(ctx, n, time.Since(began))
		p.Latency = times.latency()
		return p, err
	})
	t.alone(p)
	return err
}
