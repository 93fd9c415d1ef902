package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// tiny is a configuration by which every scenario takes a second or two.
func tiny(t *testing.T, scenarios ...string) Config {
	t.Helper()
	return Config{
		Program: shared.program(t), Scenarios: scenarios, JSON: true, Err: io.Discard,
		Executions: 60, Duration: 500 * time.Millisecond, Pairs: 1, Workers: 2, Slots: 20, LeaseMost: 10, Producers: 4, Batch: 20,
		Rate: 100, Backlogs: []int{60, 300}, Replicas: 2, Polls: 20, Leases: 150,
	}
}

// run runs scenarios and reads what they print.
func run(t *testing.T, cfg Config) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	var out, told bytes.Buffer
	cfg.Out, cfg.Err = &out, &told
	if err := Run(ctx, cfg); err != nil {
		t.Fatalf("%v\n%s", err, told.String())
	}
	var results []Result
	for decoder := json.NewDecoder(&out); ; {
		var r Result
		switch err := decoder.Decode(&r); {
		case errors.Is(err, io.EOF):
			return results
		case err != nil:
			t.Fatal(err)
		}
		results = append(results, r)
	}
}

// TestScenarios_AtATinySize runs all of them on a given PostgreSQL.
func TestScenarios_AtATinySize(t *testing.T) {
	t.Parallel()
	cfg := tiny(t, "all")
	cfg.DatabaseURL = shared.databases.New(t)
	results := run(t, cfg)
	if got, want := len(results), len(catalogue()); got != want {
		t.Fatalf("%d results, want %d", got, want)
	}
	counts := map[string]int64{"P1": 60, "P2": 60, "P3": 60, "P4": 60, "P5": 60, "P8": 60, "P9": 60, "P10": 60, "P11": 60}
	points := map[string][]string{
		"P5": {"60", "300"}, "P6": {"without", "snapshot open"}, "P8": {"1 server", "2 servers"},
		"P9": {"1 step", "fan-out of 15", "10 steps"}, "P10": {"alone", "with renewals"}, "P11": {"sink none", "sink NATS"},
	}
	for i, r := range results {
		if r.Scenario != catalogue()[i].name || r.Side != "leasehold" || r.Unit == "" {
			t.Errorf("result %d is of %q, by %q, in %q", i, r.Scenario, r.Side, r.Unit)
		}
		if r.Errors != 0 || r.Lost != 0 || r.Doubled != 0 {
			t.Errorf("%s: errors %d, lost %d, doubled %d; notes %q", r.Scenario, r.Errors, r.Lost, r.Doubled, r.Notes)
		}
		if want, fixed := counts[r.Scenario]; r.Count < 1 || fixed && r.Count != want {
			t.Errorf("%s: count %d, want %d", r.Scenario, r.Count, want)
		}
		if r.Seconds <= 0 || r.Rate <= 0 || r.Latency == nil || r.Latency.P50 <= 0 || r.Latency.Max < r.Latency.P99 || r.Latency.P99 < r.Latency.P50 {
			t.Errorf("%s: %.3f s, %.1f/s, latency %+v", r.Scenario, r.Seconds, r.Rate, r.Latency)
		}
		if !slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, "fsync is off") }) {
			t.Errorf("%s does not say that fsync is off: %q", r.Scenario, r.Notes)
		}
		checkPoints(t, r, points[r.Scenario])
	}
}

func checkPoints(t *testing.T, r Result, names []string) {
	t.Helper()
	var got []string
	for _, p := range r.Points {
		got = append(got, p.Name)
		if p.Count < 1 || p.Rate <= 0 || p.Ratio <= 0 {
			t.Errorf("%s %s: count %d, %.1f/s, ratio %.2f", r.Scenario, p.Name, p.Count, p.Rate, p.Ratio)
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("%s: points %q, want %q", r.Scenario, got, names)
	}
	if names == nil {
		return
	}
	if r.Ratio == nil || r.Ratio.Pairs != 1 || r.Points[0].Ratio != 1 || r.Ratio.Median != r.Ratio.Min || r.Ratio.Min != r.Ratio.Max {
		t.Errorf("%s: ratio %+v, first point %.2f", r.Scenario, r.Ratio, r.Points[0].Ratio)
	}
	last := r.Points[len(r.Points)-1].Figures
	switch r.Scenario {
	case "P10":
		if last["renewals"] < 100 || // the first call of two; the other is due after five seconds
			last["renewals_hot_share"] <= 0 {
			t.Errorf("P10: %v", last)
		}
	case "P11": // The end of each step and of each execution.
		if last["events"] != 120 || last["lag_p99_ms"] <= 0 {
			t.Errorf("P11: %v", last)
		}
	}
}

// TestRun_CountsWhatPostgresDoes on a private one, which loads pg_stat_statements.
func TestRun_CountsWhatPostgresDoes(t *testing.T) {
	t.Parallel()
	r := run(t, tiny(t, "p2"))[0]
	p := r.Postgres
	if p == nil || p.Commits < 3 || p.WALBytes < 100 || p.HOTShare < 0 || p.HOTShare > 1 {
		t.Fatalf("counted %+v", p)
	}
	if p.Queries == nil || *p.Queries <= 0 {
		t.Errorf("queries %v: is pg_stat_statements not loaded?", p.Queries)
	}
	if r.CPU == nil || r.CPU.Server <= 0 || r.CPU.Load <= 0 || r.CPU.Postgres == nil || *r.CPU.Postgres <= 0 {
		t.Errorf("processor time %+v", r.CPU)
	}
	if len(r.Notes) > 0 {
		t.Errorf("notes %q: it is not as durable as it should be", r.Notes)
	}
}

// TestRun_LeavesNoDatabase beside the given one.
func TestRun_LeavesNoDatabase(t *testing.T) {
	t.Parallel()
	cfg := tiny(t, "P3")
	cfg.DatabaseURL = shared.databases.New(t)
	run(t, cfg)
	conn, err := pgx.Connect(context.Background(), cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var tables int
	if err := conn.QueryRow(context.Background(), `SELECT count(*) FROM executions`).Scan(&tables); err != nil || tables != 0 {
		t.Errorf("the given database has %d executions, %v", tables, err)
	}
}

func TestOutcome_IsAFailureIfAnythingIsWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		results []Result
		want    error
	}{
		{nil, nil},
		{[]Result{{Errors: 3}}, nil}, // They were repeated.
		{[]Result{{}, {Lost: 1}}, ErrWrong},
		{[]Result{{Doubled: 1}, {}}, ErrWrong},
	} {
		if got := outcome(tt.results); !errors.Is(got, tt.want) {
			t.Errorf("outcome of %+v: %v, want %v", tt.results, got, tt.want)
		}
	}
}

func TestCheck_KnowsScenarios(t *testing.T) {
	t.Parallel()
	for names, good := range map[string]bool{"P1": true, "p11 P4": true, "all": true, "P12": false, "": false, "P1 x": false} {
		if err := Check(strings.Fields(names)); (err == nil) != good {
			t.Errorf("Check(%q): %v", names, err)
		}
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	if got := spread(nil); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
	if got, want := *spread([]float64{3, 1, 2}), (Ratio{Median: 2, Min: 1, Max: 3, Pairs: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := *spread([]float64{4, 1}), (Ratio{Median: 2.5, Min: 1, Max: 4, Pairs: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestPrintTable_LinesForScripts are the last ones, as they are agreed.
func TestPrintTable_LinesForScripts(t *testing.T) {
	t.Parallel()
	queries := 1.5
	var out strings.Builder
	err := printTable(&out, []Result{
		{Scenario: "P1", Unit: "executions/s", LatencyOf: "EnqueueExecution", Count: 12_345, Seconds: 2, Rate: 6172.5, Latency: &Latency{P50: 1, P95: 2, P99: 3, Max: 4},
			Postgres: &Postgres{Commits: 77, Queries: &queries}, CPU: &CPU{Server: 0.5}},
		{Scenario: "P5", Ratio: &Ratio{Median: 1.08, Min: 1, Max: 1.25}, Lost: 2, Doubled: 3, Points: []Point{{Name: "10k", Ratio: 1}, {Name: "1M", Ratio: 1.25, Figures: map[string]float64{"buffers_per_100_leases": 812}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got, want := lines[len(lines)-2:], []string{"P1 lost 0 doubled 0 ours 6172/s", "P5 ratio 1.08 min 1.00 max 1.25 lost 2 doubled 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.Contains(out.String(), "12,345") || !strings.Contains(out.String(), "P5 1M: buffers per 100 leases 812\n") {
		t.Error(out.String())
	}
	width := len(lines[0])
	for _, line := range lines[1:5] { // A row has as many columns as the header.
		if len(line) != width {
			t.Errorf("%d wide, want %d: %q", len(line), width, line)
		}
	}
}

func TestWithDatabase(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"postgres://u:p@h:5432/one?sslmode=disable": "postgres://u:p@h:5432/two?sslmode=disable",
		"postgres://h":        "postgres://h/two",
		"host=h dbname=one":   "host=h dbname=one dbname=two",
		"postgresql://h/one/": "postgresql://h/two",
	} {
		got, err := withDatabase(given, "two")
		if err != nil || got != want {
			t.Errorf("withDatabase(%q) = %q, %v; want %q", given, got, err, want)
			continue
		}
		if cfg, err := pgx.ParseConfig(got); err != nil || cfg.Database != "two" {
			t.Errorf("%q leads to database %q, %v", got, cfg.Database, err)
		}
	}
}
