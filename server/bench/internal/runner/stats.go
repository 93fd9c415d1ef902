package runner

import (
	"fmt"
	"slices"
)

// spread is a row of ratios: the median with the smallest and the largest.
type spread struct {
	median, min, max float64
}

// spreadOf needs one value at least.
func spreadOf(values []float64) spread {
	return spread{median: median(values), min: slices.Min(values), max: slices.Max(values)}
}

// median is the middle value; of an even number the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// goal is a bound that a ratio has to keep.
type goal struct {
	atLeast bool // else at most
	bound   float64
}

func atLeast(bound float64) goal { return goal{true, bound} }
func atMost(bound float64) goal  { return goal{false, bound} }

func (g goal) met(value float64) bool {
	if g.atLeast {
		return value >= g.bound
	}
	return value <= g.bound
}

// slack says how far a value is from the bound: 1 on it, less if it is missed.
func (g goal) slack(value float64) float64 {
	if g.atLeast {
		return value / g.bound
	}
	return g.bound / value
}

func (g goal) String() string {
	if g.atLeast {
		return fmt.Sprintf(">= %g", g.bound)
	}
	return fmt.Sprintf("<= %g", g.bound)
}
