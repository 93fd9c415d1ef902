// Package runner measures Leasehold and what it is compared with by turns, A B A B, on one
// PostgreSQL, and tells their ratio: on a machine whose speed changes from minute to minute an
// absolute figure says little, the ratio of two runs that follow each other much more.
//
//	runner.go    the pairs
//	catalogue.go the scenarios with their goals, in a long and a short form
//	scenario.go  what a scenario is, and which figures are compared
//	program.go   a run: a process that prints one result
//	stand.go     PostgreSQL, durable, with a fresh database for each run
//	outcome.go   lines, table and verdict; stats.go: median, and whether a goal is met
//
// It imports result, and devpg of the service.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// Config says what to measure.
type Config struct {
	Ours      string   // path of leasehold
	Peer      string   // path of our own program, which runs the peers
	URL       string   // a server on which databases may be made; empty: a private one
	Scenarios []string // names; empty: all of the form
	Short     bool     // the short form
	Pairs     int      // of runs of each scenario
	Size      float64  // multiplies executions and seconds
	Out       io.Writer
	Err       io.Writer // takes the progress
}

// ErrBad says that a run failed, or lost or doubled something: its figures are worth nothing.
var ErrBad = errors.New("not every run was good")

// Run runs scenarios, and prints a line for each as soon as it is over, and a table of the goals
// in the end. Goals that are missed are no error.
func Run(ctx context.Context, cfg Config) error {
	list, err := choose(form{cfg.Short, cfg.Pairs, cfg.Size}.catalogue(), cfg.Scenarios)
	if err != nil {
		return err
	}
	s, err := openStand(ctx, cfg.URL)
	if err != nil {
		return err
	}
	return errors.Join((&bench{cfg: cfg, stand: s}).all(ctx, list), s.close())
}

// choose finds scenarios by their names, in the order of the catalogue.
func choose(all []*scenario, names []string) ([]*scenario, error) {
	if len(names) == 0 {
		return all, nil
	}
	var list []*scenario
	var known []string
	for _, s := range all {
		known = append(known, s.name)
		if slices.Contains(names, s.name) {
			list = append(list, s)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no scenario %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return list, nil
}

// database makes room for a run.
type database interface {
	fresh(ctx context.Context) (url string, err error)
}

// bench is a row of scenarios.
type bench struct {
	cfg   Config
	stand database
}

func (b *bench) all(ctx context.Context, list []*scenario) error {
	var outcomes []*outcome
	var bad error
	for _, s := range list {
		o := b.one(ctx, s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		outcomes = append(outcomes, o)
		if _, err := fmt.Fprintln(b.cfg.Out, o.line()); err != nil {
			return fmt.Errorf("print a line: %w", err)
		}
		if err := o.bad(); err != nil {
			bad = ErrBad
			b.tell("%v", err)
		}
	}
	return errors.Join(bad, table(b.cfg.Out, outcomes))
}

// one runs one scenario. The first run that fails ends it.
func (b *bench) one(ctx context.Context, s *scenario) *outcome {
	o := &outcome{name: s.name}
	ours := &program{name: "leasehold", path: b.cfg.Ours, args: []string{"bench"}}
	if s.peer == nil {
		if r := b.run(ctx, o, ours, s, s.ours, "1/1"); r != nil {
			o.alone(s, r)
		}
		return o
	}
	peer := &program{name: "peer", path: b.cfg.Peer}
	var mine, theirs []*result.Run
	pairs := b.cfg.Pairs
	for i := range pairs {
		of := fmt.Sprintf("%d/%d", i+1, pairs)
		a := b.run(ctx, o, ours, s, s.ours, of)
		if a == nil {
			return o
		}
		p := b.run(ctx, o, peer, s, s.peer, of)
		if p == nil {
			return o
		}
		mine, theirs = append(mine, a), append(theirs, p)
	}
	o.compare(s, mine, theirs)
	return o
}

// run is one run on a fresh database; nil if it failed.
func (b *bench) run(ctx context.Context, o *outcome, p *program, s *scenario, args []string, of string) *result.Run {
	url, err := b.stand.fresh(ctx)
	if err != nil {
		o.err = err
		return nil
	}
	reports := s.name
	if p.path == b.cfg.Ours {
		reports = s.oursReports()
	}
	began := time.Now() // monotonic
	r, err := p.run(ctx, reports, args, url)
	if r != nil {
		o.lost, o.doubled = o.lost+r.Lost, o.doubled+r.Doubled
	}
	if err != nil {
		o.err = err
		return nil
	}
	times := ""
	if l := r.Latency; l != nil {
		times = fmt.Sprintf(", ms p50 %.2f p95 %.2f p99 %.2f max %.1f", l.P50, l.P95, l.P99, l.Max)
	}
	b.tell("%s %s %s: %.0f %s%s, %.0f WAL bytes each, HOT %.0f %%, %d errors, lost %d, doubled %d, in %s with its preparation",
		s.name, of, r.Side, r.Rate, r.Unit, times, r.Postgres.WALBytes, r.Postgres.HOTShare*100, r.Errors, r.Lost, r.Doubled,
		time.Since(began).Round(100*time.Millisecond))
	return r
}

func (b *bench) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(b.cfg.Err, format+"\n", args...) // Progress that nobody sees costs nothing.
}
