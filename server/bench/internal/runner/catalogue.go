package runner

import (
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// catalogue are the scenarios with their goals. The short form has the ones that tell most, at a
// size that lets them end within twelve minutes on two processors.
func catalogue(short bool, pairs int) []*scenario {
	if short {
		return shortForm(pairs)
	}
	return longForm(pairs)
}

func longForm(pairs int) []*scenario {
	few := min(pairs, 3) // of P6, whose pair lasts twenty minutes
	return []*scenario{
		{name: "P1", ours: words("P1 --seconds 30"), peer: words("river P1 --seconds 30"), ratios: []ratio{rate(atLeast(2))}},
		{name: "P2", ours: words("P2"), peer: words("river P2"), ratios: []ratio{rate(atLeast(1))}},
		{name: "P3", ours: words("P3"), peer: words("river P3 --producers 4"), ratios: []ratio{rate(atLeast(0.5))}},
		{name: "P4", ours: words("P4 --seconds 60"), peer: words("river P4 --seconds 60"), ratios: []ratio{p50(atMost(0.7)), p99(atMost(0.7))}},
		itself("P5", pairs, atMost(1.2), buffers()),
		itself("P6", few, atLeast(0.8)),
		parked(),
		itself("P8", pairs, atLeast(0.9)),
		itself("P9", pairs, atLeast(0.7)),
		itself("P10", pairs, atLeast(0.85), renewals()),
		itself("P11", pairs, atLeast(0.8), figure("lag_p99_ms", atMost(1000))),
		limit("P2"),
	}
}

func shortForm(pairs int) []*scenario {
	p10 := itself("P10", pairs, atLeast(0.85), renewals())
	p10.ours = append(p10.ours, "--seconds", "8")
	p5 := itself("P5", pairs, atMost(1.2), buffers())
	p5.ours = append(p5.ours, "--backlogs", "10000,100000,1000000")
	return []*scenario{
		{name: "P1", ours: words("P1 --seconds 6"), peer: words("river P1 --seconds 6"), ratios: []ratio{rate(atLeast(2))}},
		{name: "P2", ours: words("P2 --executions 40000"), peer: words("river P2 --executions 40000"), ratios: []ratio{rate(atLeast(1))}},
		{name: "P4", ours: words("P4 --seconds 8"), peer: words("river P4 --seconds 8"), ratios: []ratio{p50(atMost(0.7)), p99(atMost(0.7))}},
		p5, p10,
	}
}

// limit is P12: P2 against PostgreSQL alone, which writes the same rows.
func limit(ours string) *scenario {
	return &scenario{name: "P12", ours: words(ours), as: ours, peer: words("limit"), ratios: []ratio{rate(atLeast(0.6))}}
}

// itself is a scenario that compares ours with itself, pairs and all, within one run.
func itself(name string, pairs int, g goal, checks ...check) *scenario {
	told := func(r *result.Run) (spread, bool) {
		if r.Ratio == nil {
			return spread{}, false
		}
		return spread{r.Ratio.Median, r.Ratio.Min, r.Ratio.Max}, true
	}
	return &scenario{name: name, ours: []string{name, "--pairs", strconv.Itoa(pairs)}, alone: told, goal: g, checks: checks}
}

// parked is P7, which has bounds and nothing to be compared with: its ratio is how much of the
// tighter one is used.
func parked() *scenario {
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
	return &scenario{name: "P7", ours: words("P7"), alone: used, goal: atMost(1), checks: bounds}
}

func words(text string) []string { return strings.Fields(text) }

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
