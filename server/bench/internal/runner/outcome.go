package runner

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// outcome is what came of a scenario.
type outcome struct {
	name          string
	values        []measured // the ratios
	checks        []measured
	lost, doubled int64
	err           error // a run failed
}

// measured is a figure with its goal.
type measured struct {
	what       string
	spread     spread
	goal       goal
	ours, peer string // medians of both sides; empty where there is no peer
	untold     bool   // a run does not tell it: PostgreSQL counts no statements here, for instance
}

// line is the scenario's line for scripts. With several ratios it tells the one that is furthest
// from its goal.
func (o *outcome) line() string {
	if len(o.values) == 0 {
		return fmt.Sprintf("%s failed lost %d doubled %d", o.name, o.lost, o.doubled)
	}
	m := o.values[0]
	for _, v := range o.values[1:] {
		if v.goal.slack(v.spread.median) < m.goal.slack(m.spread.median) {
			m = v
		}
	}
	text := fmt.Sprintf("%s ratio %.2f min %.2f max %.2f lost %d doubled %d",
		o.name, m.spread.median, m.spread.min, m.spread.max, o.lost, o.doubled)
	if m.peer != "" {
		text += " ours " + m.ours + " peer " + m.peer
	}
	return text
}

// bad says why the outcome is worth nothing, or nothing.
func (o *outcome) bad() error {
	switch {
	case o.err != nil:
		return fmt.Errorf("%s: %w", o.name, o.err)
	case o.lost != 0 || o.doubled != 0:
		return fmt.Errorf("%s: lost %d, doubled %d: both have to be 0", o.name, o.lost, o.doubled)
	default:
		return nil
	}
}

// compare makes the ratios of pairs of runs.
func (o *outcome) compare(s *scenario, ours, peers []*result.Run) {
	for _, r := range s.ratios {
		var ratios, mine, theirs []float64
		for i := range ours {
			a, told := r.figure(ours[i])
			b, toldToo := r.figure(peers[i])
			if !told || !toldToo {
				o.err = errors.Join(o.err, fmt.Errorf("a run does not tell its %s", r.name))
				return
			}
			ratios, mine, theirs = append(ratios, a/b), append(mine, a), append(theirs, b)
		}
		o.values = append(o.values, measured{
			what: r.name, spread: spreadOf(ratios), goal: r.goal, ours: r.show(median(mine)), peer: r.show(median(theirs)),
		})
	}
	o.check(s, ours)
}

// alone takes the ratio that a run tells of itself.
func (o *outcome) alone(s *scenario, run *result.Run) {
	ratio, told := s.alone(run)
	if !told {
		o.err = errors.Join(o.err, errors.New("the run tells no ratio"))
		return
	}
	o.values = append(o.values, measured{
		what: "ratio", spread: ratio, goal: s.goal,
	})
	o.check(s, []*result.Run{run})
}

func (o *outcome) check(s *scenario, runs []*result.Run) {
	for _, c := range s.checks {
		var values []float64
		for _, r := range runs {
			if value, told := c.figure(r); told {
				values = append(values, value)
			}
		}
		if len(values) < len(runs) {
			o.checks = append(o.checks, measured{what: c.name, goal: c.goal, untold: true})
			continue
		}
		o.checks = append(o.checks, measured{what: c.name, spread: spreadOf(values), goal: c.goal})
	}
}

// table tells people which goals are met. Its lines are indented: scripts look for the others.
func table(to io.Writer, all []*outcome) error {
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\n  scenario\tfigure\tmedian\tmin\tmax\tgoal\t\tours\tpeer")
	for _, o := range all {
		for _, m := range append(append([]measured{}, o.values...), o.checks...) {
			if m.untold {
				fmt.Fprintf(t, "  %s\t%s\t\t\t\t%s\tnot told\t\t\n", o.name, m.what, m.goal)
				continue
			}
			word := "met"
			if !m.goal.met(m.spread.median) {
				word = "NOT met"
			}
			fmt.Fprintf(t, "  %s\t%s\t%.4g\t%.4g\t%.4g\t%s\t%s\t%s\t%s\n",
				o.name, m.what, m.spread.median, m.spread.min, m.spread.max, m.goal, word, m.ours, m.peer)
		}
		if err := o.bad(); err != nil {
			fmt.Fprintf(t, "  %s\tBAD\t\t\t\t\t\t\t\n", o.name)
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	return nil
}
