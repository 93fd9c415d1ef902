package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

func printJSON(to io.Writer, r Result) error {
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false) // It is to be read by people too.
	return encoder.Encode(r)
}

// printTable prints results for people: a row for each, with rows for its points, and then a
// line for each that programs can read too.
func printTable(to io.Writer, results []Result) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tcount\tseconds\trate\tp50 ms\tp95\tp99\tmax\tratio\terrors\tlost\tdoubled\tcommits\tWAL B\tHOT\tdead\tqueries\tCPU s/1000 server\tpostgres\tload\t")
	for _, r := range results {
		for _, p := range r.Points {
			fmt.Fprintf(table, "%s %s\t%s\t%.2f\t\t\t\t%s\t\n", r.Scenario, p.Name, p.row(), p.Ratio, p.Postgres.row(p.CPU))
		}
		whole, counted, used, ratio := Point{Count: r.Count, Seconds: r.Seconds, Rate: r.Rate, Latency: r.Latency}.row(), r.Postgres, r.CPU, ""
		if r.Ratio != nil { // What it compares stands above.
			whole, counted, used, ratio = strings.Repeat("\t", columnsOfPoint-1), nil, nil, fmt.Sprintf("%.2f", r.Ratio.Median)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\t\n", r.Scenario, whole, ratio, r.Errors, r.Lost, r.Doubled, counted.row(used))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	for _, r := range results {
		fmt.Fprintf(to, "%s: %s; percentiles of %s\n", r.Scenario, r.Unit, r.LatencyOf)
		for _, p := range r.Points {
			printFigures(to, r.Scenario+" "+p.Name, p.Figures)
		}
		printFigures(to, r.Scenario, r.Figures)
		for _, note := range r.Notes {
			fmt.Fprintf(to, "%s: %s\n", r.Scenario, note)
		}
	}
	for _, r := range results {
		if _, err := fmt.Fprintln(to, r.line()); err != nil {
			return err
		}
	}
	return nil
}

func printFigures(to io.Writer, name string, figures map[string]float64) {
	if len(figures) == 0 {
		return
	}
	var list []string
	for _, key := range slices.Sorted(maps.Keys(figures)) {
		list = append(list, fmt.Sprintf("%s %.5g", strings.ReplaceAll(key, "_", " "), figures[key]))
	}
	fmt.Fprintf(to, "%s: %s\n", name, strings.Join(list, ", "))
}

// line is the result in one line.
func (r Result) line() string {
	if r.Ratio == nil {
		return fmt.Sprintf("%s lost %d doubled %d ours %.0f/s", r.Scenario, r.Lost, r.Doubled, r.Rate)
	}
	return fmt.Sprintf("%s ratio %.2f min %.2f max %.2f lost %d doubled %d", r.Scenario, r.Ratio.Median, r.Ratio.Min, r.Ratio.Max, r.Lost, r.Doubled)
}

const columnsOfPoint = 7 // of a point's row

func (p Point) row() string {
	latency := "\t\t\t"
	if l := p.Latency; l != nil {
		latency = fmt.Sprintf("%.1f\t%.1f\t%.1f\t%.1f", l.P50, l.P95, l.P99, l.Max)
	}
	return fmt.Sprintf("%s\t%.1f\t%.0f/s\t%s", thousands(p.Count), p.Seconds, p.Rate, latency)
}

// row is what PostgreSQL counted, and the processor time.
func (p *Postgres) row(cpu *CPU) string {
	counted, used := "\t\t\t\t", "\t\t"
	if p != nil {
		counted = fmt.Sprintf("%s\t%.0f\t%.2f\t%s\t%s", thousands(p.Commits), p.WALBytes, p.HOTShare, thousands(p.DeadTuples), optional(p.Queries))
	}
	if cpu != nil {
		used = fmt.Sprintf("%.3f\t%s\t%.3f", cpu.Server, optional(cpu.Postgres), cpu.Load)
	}
	return counted + "\t" + used
}

func optional(value *float64) string {
	if value == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *value)
}
