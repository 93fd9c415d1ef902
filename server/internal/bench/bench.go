package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Config says which scenarios run, on what, and how large they are. Zero values are usable, but
// for Program, Scenarios, Out and Err.
type Config struct {
	Program     string   // path of the program `leasehold`
	DatabaseURL string   // of a PostgreSQL of the user's; empty: a private one
	Scenarios   []string // their names, in any case
	ServeFlags  []string // further flags of the servers
	JSON        bool     // a line of JSON for each scenario
	KeepLogs    bool     // leave the folder with the servers' logs
	Out         io.Writer
	Err         io.Writer // takes what is told meanwhile

	Size       float64       // multiplies the scenarios' own executions and times; default 1
	Executions int           // instead of the scenarios' own
	Duration   time.Duration // instead of the scenarios' own
	Pairs      int           // instead of the scenarios' own
	Workers    int           // default 4
	Slots      int           // of each worker; default 100
	LeaseMost  int           // leases of one poll; default 50
	Producers  int           // that enqueue one by one; default 32
	Batch      int           // executions of a batch, in P3; default 100
	Rate       float64       // enqueues in a second, in P4; default 100
	Backlogs   []int         // of P5; default 10 k, 100 k, 1 M, 5 M
	Replicas   int           // of P8, at most; default 3
	Polls      int           // of P7; default 10,000 by size
	Leases     int           // of P10; default 10,000 by size
}

// ErrWrong is the verdict that something was lost or doubled.
var ErrWrong = errors.New("something was lost or doubled")

// Check says what is wrong with names of scenarios.
func Check(names []string) error {
	if len(names) == 0 {
		return errors.New("name scenarios, such as P1 P4, or all; leasehold bench --list prints them")
	}
	_, err := choose(names)
	return err
}

// List prints all scenarios.
func List(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, sc := range catalogue() {
		fmt.Fprintf(table, "%s\t%s\t%s\n", sc.name, sc.line, sc.defaults())
	}
	return table.Flush()
}

// Run runs scenarios and reports on them. The error is ErrWrong if something was lost or doubled.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg = cfg.withDefaults()
	chosen, err := choose(cfg.Scenarios)
	if err != nil {
		return err
	}
	s, err := newStage(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.tearDown()) }()
	if cfg.KeepLogs {
		s.tell("logs are in %s", s.folder)
	}
	results, err := s.performAll(ctx, chosen)
	if !cfg.JSON && len(results) > 0 { // What was measured before a failure is worth something.
		err = errors.Join(err, printTable(cfg.Out, results))
	}
	if err != nil {
		return err
	}
	return outcome(results)
}

// performAll runs scenarios until one cannot be run. Programs get each result at once.
func (s *stage) performAll(ctx context.Context, chosen []scenario) (results []Result, err error) {
	for _, sc := range chosen {
		r, err := s.perform(ctx, sc)
		if ctx.Err() != nil {
			return results, context.Cause(ctx)
		}
		if err != nil {
			return results, err
		}
		results = append(results, r)
		if s.cfg.JSON {
			if err := printJSON(s.cfg.Out, r); err != nil {
				return results, err
			}
		}
	}
	return results, nil
}

// outcome is ErrWrong if something was lost or doubled.
func outcome(results []Result) error {
	if slices.ContainsFunc(results, func(r Result) bool { return r.Lost != 0 || r.Doubled != 0 }) {
		return ErrWrong
	}
	return nil
}

func (c Config) withDefaults() Config {
	for _, n := range []struct {
		value *int
		usual int
	}{{&c.Workers, 4}, {&c.Slots, 100}, {&c.LeaseMost, 50}, {&c.Producers, 32}, {&c.Batch, 100}, {&c.Replicas, 3}} {
		if *n.value <= 0 {
			*n.value = n.usual
		}
	}
	if c.Rate <= 0 {
		c.Rate = 100
	}
	if len(c.Backlogs) == 0 {
		c.Backlogs = []int{10_000, 100_000, 1_000_000, 5_000_000}
	}
	return c
}

const usualMany = 10_000 // polls, leases

// many is how many, by the flag or by --size.
func (c Config) many(flag int) int {
	if flag > 0 {
		return flag
	}
	return max(int(usualMany*c.size()), 1)
}

func (c Config) size() float64 {
	if c.Size <= 0 {
		return 1
	}
	return c.Size
}

// crew are workers as the flags have them.
func (c Config) crew(batch bool) crewConfig {
	return crewConfig{workers: c.Workers, slots: c.Slots, most: c.LeaseMost, batch: batch}
}

// choose finds scenarios by their names, in the order of the catalogue.
func choose(names []string) ([]scenario, error) {
	all := catalogue()
	for _, name := range names {
		if !strings.EqualFold(name, "all") && !slices.ContainsFunc(all, func(sc scenario) bool { return strings.EqualFold(name, sc.name) }) {
			return nil, fmt.Errorf("there is no scenario %q; leasehold bench --list prints all", name)
		}
	}
	return slices.DeleteFunc(all, func(sc scenario) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, "all") || strings.EqualFold(name, sc.name) })
	}), nil
}

func (s *stage) tell(format string, args ...any) { fmt.Fprintf(s.cfg.Err, format+"\n", args...) }
