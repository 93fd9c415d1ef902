package runner

import (
	"fmt"
	"strings"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// form says how large the scenarios are.
type form struct {
	short bool
	pairs int
	size  float64 // multiplies executions and seconds; 0: 1
}

// catalogue are the scenarios with their goals. The short form has the ones that tell most, at a
// size that lets them end within twelve minutes on two processors.
func (f form) catalogue() []*scenario {
	if f.size == 0 {
		f.size = 1
	}
	if f.short {
		return f.shortForm()
	}
	few := form{pairs: min(f.pairs, 3), size: f.size} // of P6, whose pair lasts twenty minutes
	return []*scenario{
		f.oneByOne(30), f.drain(100_000), f.batches(), f.latency(60),
		f.itself("P5", atMost(1.2), buffers()).with(f.executions(2000), f.backlogs(10_000, 100_000, 1_000_000, 5_000_000)),
		few.itself("P6", atLeast(0.8)).with(f.seconds(600)),
		f.parked(),
		f.itself("P8", atLeast(0.9)).with(f.seconds(30)),
		f.itself("P9", atLeast(0.7)).with(f.executions(20_000)),
		f.itself("P10", atLeast(0.85), renewals()).with(f.seconds(30)),
		f.itself("P11", atLeast(0.8), figure("lag_p99_ms", atMost(1000))).with(f.executions(100_000)),
		f.limit(100_000),
	}
}

func (f form) shortForm() []*scenario {
	return []*scenario{
		f.oneByOne(6), f.drain(40_000), f.latency(8),
		f.itself("P5", atMost(1.2), buffers()).with(f.executions(2000), f.backlogs(10_000, 100_000, 1_000_000)),
		f.itself("P10", atLeast(0.85), renewals()).with(f.seconds(8)),
	}
}

// seconds, executions and backlogs are arguments for either side.
func (f form) seconds(n float64) string { return fmt.Sprintf("--seconds=%g", n*f.size) }

func (f form) executions(n float64) string {
	return fmt.Sprintf("--executions=%d", max(int64(n*f.size), 1))
}

func (f form) backlogs(sizes ...float64) string {
	var list []string
	for _, n := range sizes {
		list = append(list, fmt.Sprint(max(int64(n*f.size), 1)))
	}
	return "--backlogs=" + strings.Join(list, ",")
}

func (s *scenario) with(args ...string) *scenario {
	s.ours = append(s.ours, args...)
	return s
}

func (f form) oneByOne(seconds float64) *scenario {
	return &scenario{
		name: "P1", ours: []string{"P1", f.seconds(seconds)}, peer: []string{"river", "P1", f.seconds(seconds)},
		ratios: []ratio{rate(atLeast(2))},
	}
}

func (f form) drain(executions float64) *scenario {
	return &scenario{
		name: "P2", ours: []string{"P2", f.executions(executions)}, peer: []string{"river", "P2", f.executions(executions)},
		ratios: []ratio{rate(atLeast(1))},
	}
}

// batches has four producers on both sides.
func (f form) batches() *scenario {
	return &scenario{
		name: "P3", ours: []string{"P3", f.executions(100_000)}, peer: []string{"river", "P3", f.executions(100_000), "--producers=4"},
		ratios: []ratio{rate(atLeast(0.5))},
	}
}

func (f form) latency(seconds float64) *scenario {
	return &scenario{
		name: "P4", ours: []string{"P4", f.seconds(seconds)}, peer: []string{"river", "P4", f.seconds(seconds)},
		ratios: []ratio{p50(atMost(0.7)), p99(atMost(0.7))},
	}
}

// limit is P12: P2 against PostgreSQL alone, which writes the same rows.
func (f form) limit(executions float64) *scenario {
	return &scenario{
		name: "P12", ours: []string{"P2", f.executions(executions)}, as: "P2", peer: []string{"limit", f.executions(executions)},
		ratios: []ratio{rate(atLeast(0.6))},
	}
}

// itself is a scenario that compares ours with itself, pairs and all, within one run.
func (f form) itself(name string, g goal, checks ...check) *scenario {
	told := func(r *result.Run) (spread, bool) {
		if r.Ratio == nil {
			return spread{}, false
		}
		return spread{r.Ratio.Median, r.Ratio.Min, r.Ratio.Max}, true
	}
	return &scenario{name: name, ours: []string{name, fmt.Sprintf("--pairs=%d", f.pairs)}, alone: told, goal: g, checks: checks}
}

// parked is P7, which has bounds and nothing to be compared with: its ratio is how much of the
// tighter one is used.
func (f form) parked() *scenario {
	bounds := []check{figure("transactions_per_second", atMost(5)), figure("kib_per_poll", atMost(40))}
	used := func(r *result.Run) (spread, bool) {
		most := 0.0
		for _, c := range bounds {
			value, told := c.figure(r)
			if !told {
				return spread{}, false
			}
			most = max(most, value/c.goal.bound)
		}
		return spread{most, most, most}, true
	}
	return &scenario{name: "P7", ours: []string{"P7", f.seconds(60)}, alone: used, goal: atMost(1), checks: bounds}
}

// figure is a check on a figure of the run, or else on the worst one of its points.
func figure(name string, g goal) check {
	return check{name, func(r *result.Run) (float64, bool) {
		value, told := r.Figures[name]
		for _, p := range r.Points {
			if of, here := p.Figures[name]; here && (!told || g.slack(of) < g.slack(value)) {
				value, told = of, true
			}
		}
		return value, told
	}, g}
}

// buffers are those that 100 leases read.
func buffers() check { return figure("buffers_per_100_leases", atMost(2000)) }

// renewals change no index.
func renewals() check { return figure("renewals_hot_share", atLeast(0.95)) }
