package live

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

// Config says which drills run, and on what.
type Config struct {
	Program     string   // path of the program `leasehold`
	DatabaseURL string   // of the user's own database; empty: a private one
	Only        []string // names of drills; empty: all
	Soak        int      // not the drills, but faults at random until so many attempts were made
	JSON        bool     // report as JSON
	KeepLogs    bool     // leave the folders with logs and histories
	Out         io.Writer
	Err         io.Writer // takes what is told meanwhile
}

// ErrFailed is the verdict that a drill failed.
var ErrFailed = errors.New("a drill failed")

// Check says what is wrong with names of drills.
func Check(only []string) error {
	for _, name := range only {
		if !slices.ContainsFunc(catalogue(), func(d drill) bool { return d.name == name }) {
			return fmt.Errorf("there is no drill %q; leasehold drill --list prints all", name)
		}
	}
	return nil
}

// List prints all drills.
func List(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, d := range catalogue() {
		own := ""
		if d.ownPostgres {
			own = " (not with --database-url)"
		}
		fmt.Fprintf(table, "%s\t%s%s\n", d.name, d.line, own)
	}
	return table.Flush()
}

// course is one run of the command.
type course struct {
	cfg     Config
	chosen  []drill           // in the order of the report
	started bool              // a drill
	results map[string]Result // by its name
}

// Run runs drills and reports on them. The error is ErrFailed if one failed.
func Run(ctx context.Context, cfg Config) error {
	began := time.Now() // monotonic
	c := &course{cfg: cfg, results: map[string]Result{}}
	chosen := slices.DeleteFunc(catalogue(), func(d drill) bool { return len(cfg.Only) > 0 && !slices.Contains(cfg.Only, d.name) })
	if cfg.Soak > 0 {
		chosen = []drill{soak(cfg.Soak)}
	}
	c.chosen = chosen
	for len(chosen) > 0 && ctx.Err() == nil {
		scene := chosen[0].scene
		var group, rest []drill
		for _, d := range chosen {
			switch {
			case c.skip(d):
			case d.scene == scene:
				group = append(group, d)
			default:
				rest = append(rest, d)
			}
		}
		if err := c.runGroup(ctx, scene, group); err != nil {
			return err
		}
		chosen = rest
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.report(time.Since(began))
}

// skip leaves out what cannot be done to a database that is not ours.
func (c *course) skip(d drill) bool {
	why := ""
	switch {
	case c.cfg.DatabaseURL == "":
	case d.ownPostgres:
		why = "it needs a PostgreSQL of its own, not yours"
	case d.between:
		_, why = way(c.cfg.DatabaseURL)
	}
	if why != "" {
		c.results[d.name] = Result{Name: d.name, Line: d.line, Outcome: Skipped, Why: []string{why}}
	}
	return why != ""
}

// runGroup runs the drills of one scene. One that fails leaves a new stage to the next. The error
// is that there is none at all.
func (c *course) runGroup(ctx context.Context, scene scene, group []drill) error {
	var s *stage
	var over []*exercise
	for _, d := range group {
		if ctx.Err() != nil {
			break
		}
		if s == nil {
			var err error
			if s, err = newStage(ctx, c.cfg, scene); err != nil && !c.started {
				return err
			} else if err != nil {
				r := Result{Name: d.name, Line: d.line}
				r.fail(err.Error())
				c.keep(r)
				continue
			}
		}
		c.started = true
		c.tell("%s: %s", d.name, d.line)
		x := s.perform(ctx, d)
		if over = append(over, x); x.err != nil || x.spent {
			c.conclude(ctx, s, over)
			s, over = nil, nil
		}
	}
	if s != nil {
		c.conclude(ctx, s, over)
	}
	return nil
}

// conclude judges the drills of a stage and ends it.
func (c *course) conclude(ctx context.Context, s *stage, over []*exercise) {
	if ctx.Err() == nil {
		c.tell("waiting for the last events, and comparing what clients were told with the tables")
	}
	for _, x := range over {
		if ctx.Err() == nil {
			c.keep(x.judge(ctx))
		}
	}
	if c.cfg.DatabaseURL != "" {
		if err := s.removeTraces(context.WithoutCancel(ctx), over); err != nil {
			c.tell("%v", err)
		}
	}
	if err := s.tearDown(); err != nil {
		c.tell("%v", err)
	}
	if c.cfg.KeepLogs {
		c.tell("logs and histories are in %s", s.folder)
	}
}

func (c *course) keep(r Result) {
	c.results[r.Name] = r
	if r.Outcome == Failed {
		c.tell("%s failed: %s", r.Name, strings.Join(r.Why, "\n  "))
	}
}

func (c *course) tell(format string, args ...any) { fmt.Fprintf(c.cfg.Err, format+"\n", args...) }

// report prints what there is, in the order of the catalogue.
func (c *course) report(took time.Duration) error {
	report := &Report{Seconds: seconds(took)}
	for _, d := range c.chosen {
		if r, ran := c.results[d.name]; ran {
			report.add(r)
		}
	}
	if err := report.print(c.cfg.Out, c.cfg.JSON); err != nil {
		return err
	}
	if report.Failed > 0 {
		return ErrFailed
	}
	return nil
}
