package live

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/leasehold/leasehold/server/internal/history"
)

// Outcome is how a drill ended.
type Outcome string

// The outcomes.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Result is what is reported of a drill.
type Result struct {
	Name     string   `json:"name"`
	Line     string   `json:"line"` // what goes wrong in it
	Outcome  Outcome  `json:"outcome"`
	Attempts int      `json:"attempts"` // of steps
	Faults   int      `json:"faults"`   // that were injected
	Recovery float64  `json:"recovery"` // the longest time until work went on, in seconds
	Lost     int      `json:"lost"`     // what was answered OK and is not there, or never ended
	Doubled  int      `json:"doubled"`  // two owners, two executions of a key, a token twice
	Seconds  float64  `json:"seconds"`  // that it took
	Notes    []string `json:"notes,omitempty"`
	Why      []string `json:"why,omitempty"` // it failed, or was skipped
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// mostTold is how many reasons a failed drill gives.
const mostTold = 12

func (r *Result) fail(why string) {
	r.Outcome = Failed
	if len(r.Why) < mostTold {
		r.Why = append(r.Why, why)
	}
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// broke counts a broken promise.
func (r *Result) broke(v history.Violation) {
	switch {
	case slices.Contains([]string{"durable", "whole", "ends"}, v.Rule):
		r.Lost++
	case slices.Contains([]string{"one-lease", "versions", "linearizable", "keys"}, v.Rule):
		r.Doubled++
	}
	r.fail(v.String())
}

// Report is what the command says in the end.
type Report struct {
	Drills   []Result `json:"drills"`
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Skipped  int      `json:"skipped"`
	Attempts int      `json:"attempts"`
	Lost     int      `json:"lost"`
	Doubled  int      `json:"doubled"`
	Seconds  float64  `json:"seconds"`
}

func (r *Report) add(one Result) {
	r.Drills = append(r.Drills, one)
	switch one.Outcome {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
	r.Attempts += one.Attempts
	r.Lost += one.Lost
	r.Doubled += one.Doubled
}

// print prints it, for people or for programs.
func (r *Report) print(to io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(to)
		encoder.SetEscapeHTML(false) // It is to be read by people too.
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "drill\toutcome\tattempts\tfaults\trecovery\tlost\tdoubled\t")
	for _, d := range r.Drills {
		if d.Outcome == Skipped {
			fmt.Fprintf(table, "%s\t%s\t\t\t\t\t\t%s\n", d.Name, d.Outcome, strings.Join(d.Why, "; "))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%d\t%d\t%s\n", d.Name, d.Outcome, d.Attempts, d.Faults, d.recovery(), d.Lost, d.Doubled, strings.Join(d.Notes, "; "))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	for _, d := range r.Drills {
		if d.Outcome == Failed {
			fmt.Fprintf(to, "%s failed: %s\n", d.Name, strings.Join(d.Why, "\n  "))
		}
	}
	_, err := fmt.Fprintf(to, "drills %d passed %d failed %d attempts %d lost %d doubled %d\n",
		r.Passed+r.Failed, r.Passed, r.Failed, r.Attempts, r.Lost, r.Doubled)
	return err
}

func (r *Result) recovery() string {
	if r.Recovery == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fs", r.Recovery)
}
