package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// trial is one run of a scenario.
type trial struct {
	*stage
	scenario scenario
	result   Result
}

// part is what a scenario compares with itself.
type part struct {
	name string
	run  func(ctx context.Context) (Point, error)
}

// perform runs a scenario.
func (s *stage) perform(ctx context.Context, sc scenario) (Result, error) {
	t := &trial{stage: s, scenario: sc, result: Result{Scenario: sc.name, Side: "leasehold", Unit: sc.unit, LatencyOf: sc.latencyOf, Notes: slices.Clone(s.notes)}}
	s.tell("%s: %s", sc.name, sc.line)
	if err := sc.run(ctx, t); err != nil {
		return t.result, fmt.Errorf("%s: %w", sc.name, err)
	}
	return t.result, nil
}

// executions is how many, by the flag or by the scenario and --size.
func (t *trial) executions() int64 {
	if t.cfg.Executions > 0 {
		return int64(t.cfg.Executions)
	}
	return max(int64(float64(t.scenario.executions)*t.cfg.size()), 1)
}

// duration is how long, by the flag or by the scenario and --size.
func (t *trial) duration() time.Duration {
	if t.cfg.Duration > 0 {
		return t.cfg.Duration
	}
	return time.Duration(float64(t.scenario.duration) * t.cfg.size())
}

// pairs is how often a comparison is made.
func (t *trial) pairs() int {
	if t.cfg.Pairs > 0 {
		return t.cfg.Pairs
	}
	return max(t.scenario.pairs, 1)
}

// on runs something on a site of its own, compares what was answered with the tables, and ends
// the site.
func (t *trial) on(ctx context.Context, servers int, drained bool, work func(ctx context.Context, s *site) (Point, error), flags ...string) (p Point, err error) {
	s, err := t.newSite(ctx, servers, flags...)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if p, err = work(ctx, s); err != nil {
		return p, err
	}
	return p, t.judge(ctx, s, drained)
}

// judge adds what is wrong on a site.
func (t *trial) judge(ctx context.Context, s *site, drained bool) error {
	v, err := s.verdict(ctx, drained)
	if err != nil {
		return err
	}
	t.result.Lost += v.lost
	t.result.Doubled += v.doubled
	t.result.Errors += s.errors.Load()
	return nil
}

// unlessStalled goes on after a stall, and keeps that there was one.
func (t *trial) unlessStalled(err error) error {
	if errors.Is(err, errStalled) {
		t.result.Notes = append(t.result.Notes, err.Error())
		return nil
	}
	return err
}

// alone is the result of a scenario that is not compared with itself.
func (t *trial) alone(p Point) {
	r := &t.result
	r.Count, r.Seconds, r.Rate, r.Latency, r.Postgres, r.CPU, r.Figures = p.Count, p.Seconds, p.Rate, p.Latency, p.Postgres, p.CPU, p.Figures
}

// compare runs the parts one after the other, as often as there are pairs. worse tells which of
// two ratios is the worse one: the scenario's ratio is that of its worst part.
func (t *trial) compare(ctx context.Context, parts []part, ratio func(p, first Point) float64, worse func(a, b float64) float64) error {
	var worst []float64
	for pair := range t.pairs() {
		t.result.Points = nil
		for i, one := range parts {
			t.tell("%s: %s (%d of %d)", t.scenario.name, one.name, pair+1, t.pairs())
			p, err := one.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", one.name, err)
			}
			p.Name, p.Ratio = one.name, 1
			t.result.Points = append(t.result.Points, p)
			switch first := t.result.Points[0]; i {
			case 0:
			case 1:
				p.Ratio = ratio(p, first)
				worst = append(worst, p.Ratio)
			default:
				p.Ratio = ratio(p, first)
				worst[pair] = worse(worst[pair], p.Ratio)
			}
			t.result.Points[i] = p
			t.alone(p)
		}
	}
	t.result.Figures = nil // They are the points'.
	t.result.Ratio = spread(worst)
	return nil
}

// byRate compares rates: the smaller, the worse.
func byRate(p, first Point) float64 { return by(p.Rate, first.Rate) }

func smaller(a, b float64) float64 { return min(a, b) }
func larger(a, b float64) float64  { return max(a, b) }

// spread is the median of ratios with the smallest and the largest; nil if there are none.
func spread(ratios []float64) *Ratio {
	if len(ratios) == 0 {
		return nil
	}
	slices.Sort(ratios)
	n := len(ratios)
	return &Ratio{Median: (ratios[(n-1)/2] + ratios[n/2]) / 2, Min: ratios[0], Max: ratios[n-1], Pairs: n}
}
