// Package result is what a run of a benchmark says: one JSON object on stdout, the same from
// `leasehold bench` and from the peers here, so that the runner compares like with like. It
// imports nothing of ours: the two programs share the form, not the code.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Run is what one run of one scenario did. Fields of `leasehold bench` that nobody here looks at
// are left out.
type Run struct {
	Scenario string   `json:"scenario"`
	Side     string   `json:"side"`    // who ran: leasehold, river or limit
	Count    int64    `json:"count"`   // pieces of work that were done
	Seconds  float64  `json:"seconds"` // that they took
	Rate     float64  `json:"rate"`    // Count by Seconds
	Unit     string   `json:"unit"`    // of Rate, such as jobs/s
	Latency  *Latency `json:"latency_ms,omitempty"`
	Errors   int64    `json:"errors"`  // calls that failed
	Lost     int64    `json:"lost"`    // accepted, and never done
	Doubled  int64    `json:"doubled"` // done more than once
	Postgres Postgres `json:"postgres"`
	CPU      CPU      `json:"cpu_seconds_per_1000"`

	// Of scenarios that compare Leasehold with itself.
	Points  []Point            `json:"points,omitempty"`
	Ratio   *Ratio             `json:"ratio,omitempty"`
	Figures map[string]float64 `json:"figures,omitempty"`
}

// Latency are percentiles in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Postgres is what the run cost the database, by its own counters.
type Postgres struct {
	Commits    int64   `json:"commits"`
	WALBytes   float64 `json:"wal_bytes_per_execution"`
	HOTShare   float64 `json:"hot_share"`   // of all updates of rows; 0 to 1
	DeadTuples int64   `json:"dead_tuples"` // in the end
}

// CPU are seconds of processor time for a thousand pieces of work.
type CPU struct {
	Server float64 `json:"server"` // of the processes that schedule; with a library: the whole program
}

// Point is a part of a scenario that compares with itself.
type Point struct {
	Name    string             `json:"name"`
	Ratio   float64            `json:"ratio"` // to the first point
	Figures map[string]float64 `json:"figures,omitempty"`
}

// Ratio is the median over pairs, with the smallest and the largest.
type Ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Took sets what follows from how much was done in what time.
func (r *Run) Took(count int64, took time.Duration) {
	r.Count, r.Seconds = count, took.Seconds()
	if r.Seconds > 0 {
		r.Rate = float64(count) / r.Seconds
	}
}

// Percentiles reads a histogram of microseconds.
func Percentiles(h *hdrhistogram.Histogram) *Latency {
	ms := func(micros int64) float64 { return float64(micros) / 1000 }
	return &Latency{
		P50: ms(h.ValueAtQuantile(50)), P95: ms(h.ValueAtQuantile(95)), P99: ms(h.ValueAtQuantile(99)), Max: ms(h.Max()),
	}
}

// Write prints the object on one line.
func (r *Run) Write(to io.Writer) error {
	if err := json.NewEncoder(to).Encode(r); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// Read reads what a run printed: exactly one object, of that scenario. It has to tell what it lost and
// doubled: the other program's form may change, and silence is no zero.
func Read(from io.Reader, scenario string) (*Run, error) {
	var text json.RawMessage
	d := json.NewDecoder(from)
	if err := d.Decode(&text); err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	if d.More() {
		return nil, errors.New("read the result: something follows it")
	}
	var r Run
	var told struct{ Lost, Doubled, Errors *int64 }
	if err := errors.Join(json.Unmarshal(text, &r), json.Unmarshal(text, &told)); err != nil {
		return nil, fmt.Errorf("read the result: %w", err)
	}
	if told.Lost == nil || told.Doubled == nil || told.Errors == nil {
		return nil, errors.New("the result does not tell lost, doubled and errors")
	}
	if r.Scenario != scenario {
		return nil, fmt.Errorf("the result is that of scenario %q, not of %s", r.Scenario, scenario)
	}
	return &r, nil
}
