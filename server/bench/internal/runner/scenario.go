package runner

import (
	"fmt"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// scenario is one of those of a benchmark, with what it is compared with and the goal.
type scenario struct {
	name string
	ours []string // arguments of `leasehold bench`
	as   string   // scenario that ours runs and reports, if it is another than name
	// peer are arguments of our own program; none: ours compares itself with itself, in one run.
	peer   []string
	ratios []ratio // with a peer
	// Without one: the ratio that ours tells, and its goal.
	alone  func(*result.Run) (spread, bool)
	goal   goal
	checks []check // beside the ratio
}

// oursReports is the scenario that ours calls its result.
func (s *scenario) oursReports() string {
	if s.as != "" {
		return s.as
	}
	return s.name
}

// ratio is ours by theirs, of one figure.
type ratio struct {
	name   string
	figure func(*result.Run) (float64, bool) // false: it was not told
	unit   string
	goal   goal
}

func rate(g goal) ratio {
	return ratio{"rate", func(r *result.Run) (float64, bool) { return r.Rate, r.Rate > 0 }, "/s", g}
}

func p50(g goal) ratio {
	return latency("p50", g, func(l *result.Latency) float64 { return l.P50 })
}

func p99(g goal) ratio {
	return latency("p99", g, func(l *result.Latency) float64 { return l.P99 })
}

func latency(name string, g goal, of func(*result.Latency) float64) ratio {
	return ratio{name, func(r *result.Run) (float64, bool) {
		if r.Latency == nil {
			return 0, false
		}
		return of(r.Latency), of(r.Latency) > 0
	}, "ms", g}
}

// show prints a figure for the line: rates without decimals, times with two.
func (r ratio) show(value float64) string {
	if r.unit == "ms" {
		return fmt.Sprintf("%.2fms", value)
	}
	return fmt.Sprintf("%.0f%s", value, r.unit)
}

// check is a bound on a figure that is no ratio.
type check struct {
	name   string
	figure func(*result.Run) (float64, bool)
	goal   goal
}
