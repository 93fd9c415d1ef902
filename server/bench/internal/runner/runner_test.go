package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// fakes is a stand of databases that nobody needs.
type fakes struct{ made int }

func (f *fakes) fresh(context.Context) (string, error) {
	f.made++
	return fmt.Sprintf("postgres://nowhere/%d", f.made), nil
}

// fake makes a program that answers one run after the other with what is given, then ends with a
// status, and keeps the arguments of every run in the file calls beside it. It is a link: a file
// that was just written may still be open in a child that another test starts, and is not run then.
func fake(t *testing.T, status int, answers ...string) (path string) {
	t.Helper()
	folder := t.TempDir()
	files := map[string]string{"status": fmt.Sprint(status)}
	for i, a := range answers {
		files[fmt.Sprint(i)] = a
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs("testdata/fake.sh")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(folder, "program")
	if err := os.Symlink(script, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func answer(t *testing.T, r result.Run) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func ran(t *testing.T, scenario string, rate float64) string {
	t.Helper()
	return answer(t, result.Run{Scenario: scenario, Side: "fake", Count: 10, Rate: rate, Unit: "jobs/s"})
}

func took(t *testing.T, p50, p99 float64) string {
	t.Helper()
	return answer(t, result.Run{Scenario: "P4", Count: 10, Rate: 100, Latency: &result.Latency{P50: p50, P99: p99}})
}

// measure runs one scenario of the long form with programs, and returns what was printed.
func measure(t *testing.T, name string, pairs int, ours, peer string) (string, *fakes, error) {
	t.Helper()
	list, err := choose(form{pairs: pairs}.catalogue(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	stand := &fakes{}
	b := &bench{cfg: Config{Ours: ours, Peer: peer, Pairs: pairs, Out: &out, Err: &bytes.Buffer{}}, stand: stand}
	err = b.all(t.Context(), list)
	return out.String(), stand, err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func TestRun_ComparesPairByPair(t *testing.T) {
	t.Parallel()
	ours := fake(t, 0, ran(t, "P1", 4000), ran(t, "P1", 4200), ran(t, "P1", 5000))
	peer := fake(t, 0, ran(t, "P1", 2000), ran(t, "P1", 1400), ran(t, "P1", 2000))
	out, stand, err := measure(t, "P1", 3, ours, peer)
	if err != nil {
		t.Fatal(err)
	}
	const want = "P1 ratio 2.50 min 2.00 max 3.00 lost 0 doubled 0 ours 4200/s peer 2000/s"
	if got := firstLine(out); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if !regexp.MustCompile(`(?m)^  P1 +rate +2\.5 .* >= 2 +met`).MatchString(out) {
		t.Errorf("the table says %s", out)
	}
	if stand.made != 6 {
		t.Errorf("%d databases for 6 runs", stand.made)
	}
	calls, err := os.ReadFile(filepath.Join(filepath.Dir(ours), "calls"))
	if err != nil {
		t.Fatal(err)
	}
	if got := firstLine(string(calls)); got != "bench P1 --seconds=30 --json --database-url postgres://nowhere/1" {
		t.Errorf("ours was called with %q", got)
	}
	if calls, err = os.ReadFile(filepath.Join(filepath.Dir(peer), "calls")); err != nil {
		t.Fatal(err)
	}
	if got := firstLine(string(calls)); got != "river P1 --seconds=30 --json --database-url postgres://nowhere/2" {
		t.Errorf("the peer was called with %q", got)
	}
}

// Of latencies ours by theirs has to be small, and the line tells the one that is worse.
func TestRun_ComparesLatencies(t *testing.T) {
	t.Parallel()
	out, _, err := measure(t, "P4", 1, fake(t, 0, took(t, 2, 12)), fake(t, 0, took(t, 4, 15)))
	if err != nil {
		t.Fatal(err)
	}
	const want = "P4 ratio 0.80 min 0.80 max 0.80 lost 0 doubled 0 ours 12.00ms peer 15.00ms"
	if got := firstLine(out); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for _, row := range []string{`P4 +p50 +0\.5 .* met`, `P4 +p99 +0\.8 .* NOT met`} {
		if !regexp.MustCompile(row).MatchString(out) {
			t.Errorf("no %q in the table: %s", row, out)
		}
	}
}

func TestRun_ComparesWithItself(t *testing.T) {
	t.Parallel()
	r := result.Run{
		Scenario: "P10", Count: 10, Rate: 100, Ratio: &result.Ratio{Median: 0.9, Min: 0.84, Max: 1.01},
		Points: []result.Point{{Name: "alone"}, {Name: "with renewals", Figures: map[string]float64{"renewals_hot_share": 0.5}}},
	}
	ours := fake(t, 0, answer(t, r))
	out, stand, err := measure(t, "P10", 4, ours, "/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if got := firstLine(out); got != "P10 ratio 0.90 min 0.84 max 1.01 lost 0 doubled 0" {
		t.Errorf("got %q", got)
	}
	if !regexp.MustCompile(`P10 +renewals_hot_share +0\.5 .* NOT met`).MatchString(out) {
		t.Errorf("the table says %s", out)
	}
	calls, err := os.ReadFile(filepath.Join(filepath.Dir(ours), "calls"))
	if err != nil || !strings.HasPrefix(string(calls), "bench P10 --pairs=4 --seconds=30 --json") || stand.made != 1 {
		t.Errorf("called with %q on %d databases (%v)", calls, stand.made, err)
	}
}

// A figure that is not there is told, and is no failure: not every PostgreSQL counts statements.
func TestRun_AFigureMayBeMissing(t *testing.T) {
	t.Parallel()
	r := result.Run{Scenario: "P5", Count: 10, Rate: 100, Ratio: &result.Ratio{Median: 1.1, Min: 1, Max: 1.3}}
	out, _, err := measure(t, "P5", 5, fake(t, 0, answer(t, r)), "/nowhere")
	if err != nil || firstLine(out) != "P5 ratio 1.10 min 1.00 max 1.30 lost 0 doubled 0" {
		t.Errorf("got %q (%v)", firstLine(out), err)
	}
	if !regexp.MustCompile(`P5 +buffers_per_100_leases +<= 2000 +not told`).MatchString(out) {
		t.Errorf("the table says %s", out)
	}
	// A ratio has to be there.
	r.Ratio = nil
	if out, _, err = measure(t, "P5", 5, fake(t, 0, answer(t, r)), "/nowhere"); !errors.Is(err, ErrBad) {
		t.Errorf("without a ratio: %s", out)
	}
}

// The limit is compared with P2.
func TestRun_ComparesWithTheLimit(t *testing.T) {
	t.Parallel()
	out, _, err := measure(t, "P12", 1, fake(t, 0, ran(t, "P2", 70)), fake(t, 0, ran(t, "P12", 100)))
	if want := "P12 ratio 0.70 min 0.70 max 0.70 lost 0 doubled 0 ours 70/s peer 100/s"; err != nil || firstLine(out) != want {
		t.Errorf("got %q (%v)", firstLine(out), err)
	}
}

func TestRun_RefusesWhatIsBad(t *testing.T) {
	t.Parallel()
	good := func(t *testing.T) string { return fake(t, 0, ran(t, "P1", 10)) }
	wrong := func(lost, doubled int64) func(*testing.T) string {
		return func(t *testing.T) string {
			return fake(t, 0, answer(t, result.Run{Scenario: "P1", Count: 10, Rate: 10, Lost: lost, Doubled: doubled}))
		}
	}
	for name, tt := range map[string]struct {
		ours, peer func(*testing.T) string
		line       string
	}{
		"ours lost":        {wrong(1, 0), good, "P1 ratio 1.00 min 1.00 max 1.00 lost 1 doubled 0 ours 10/s peer 10/s"},
		"ours doubled":     {wrong(0, 2), good, "P1 ratio 1.00 min 1.00 max 1.00 lost 0 doubled 2 ours 10/s peer 10/s"},
		"the peer lost":    {good, wrong(3, 0), "P1 ratio 1.00 min 1.00 max 1.00 lost 3 doubled 0 ours 10/s peer 10/s"},
		"ours crashes":     {func(t *testing.T) string { return fake(t, 2, "") }, good, "P1 failed lost 0 doubled 0"},
		"the peer crashes": {good, func(t *testing.T) string { return fake(t, 2, "") }, "P1 failed lost 0 doubled 0"},
		"lost and fails":   {func(t *testing.T) string { return fake(t, 1, answer(t, result.Run{Scenario: "P1", Lost: 4})) }, good, "P1 failed lost 4 doubled 0"},
		"good and fails":   {func(t *testing.T) string { return fake(t, 1, ran(t, "P1", 10)) }, good, "P1 failed lost 0 doubled 0"},
		"no result":        {func(t *testing.T) string { return fake(t, 0, "") }, good, "P1 failed lost 0 doubled 0"},
		"no JSON":          {func(t *testing.T) string { return fake(t, 0, "P1 is fast") }, good, "P1 failed lost 0 doubled 0"},
		"two results":      {func(t *testing.T) string { return fake(t, 0, ran(t, "P1", 1)+"\n"+ran(t, "P1", 1)) }, good, "P1 failed lost 0 doubled 0"},
		"another scenario": {func(t *testing.T) string { return fake(t, 0, ran(t, "P2", 10)) }, good, "P1 failed lost 0 doubled 0"},
		"nothing was done": {func(t *testing.T) string { return fake(t, 0, answer(t, result.Run{Scenario: "P1"})) }, good, "P1 failed lost 0 doubled 0"},
		"no word of losses": {func(t *testing.T) string {
			return fake(t, 0, `{"scenario":"P1","count":10,"rate":10,"errors":0,"doubled":0}`)
		}, good, "P1 failed lost 0 doubled 0"},
		"there is no program": {func(*testing.T) string { return "/nowhere/leasehold" }, good, "P1 failed lost 0 doubled 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, _, err := measure(t, "P1", 1, tt.ours(t), tt.peer(t))
			if !errors.Is(err, ErrBad) {
				t.Errorf("the error is %v", err)
			}
			if got := firstLine(out); got != tt.line {
				t.Errorf("got  %q\nwant %q", got, tt.line)
			}
			if !regexp.MustCompile(`(?m)^  P1 +BAD`).MatchString(out) {
				t.Errorf("the table says %s", out)
			}
		})
	}
}

// A goal that is missed is told, and is no failure of the run.
func TestRun_AMissedGoalIsNoError(t *testing.T) {
	t.Parallel()
	out, _, err := measure(t, "P2", 1, fake(t, 0, ran(t, "P2", 50)), fake(t, 0, ran(t, "P2", 100)))
	if err != nil || !strings.Contains(out, "NOT met") {
		t.Errorf("%v: %s", err, out)
	}
}

// A failed run tells what it said, for whoever has to find out.
func TestProgram_TellsWhatAFailedRunSaid(t *testing.T) {
	t.Parallel()
	p := &program{name: "leasehold", path: fake(t, 3, "")}
	if _, err := p.run(t.Context(), "P1", []string{"P1"}, "postgres://nowhere"); err == nil || !strings.Contains(err.Error(), "it is broken") {
		t.Errorf("the error is %v", err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	names := func(list []*scenario) (text string) {
		for _, s := range list {
			text += s.name + " "
		}
		return text
	}
	if got := names(form{short: true, pairs: 5}.catalogue()); got != "P1 P2 P4 P5 P10 " {
		t.Errorf("the short form has %s", got)
	}
	if got := names(form{pairs: 5}.catalogue()); got != "P1 P2 P3 P4 P5 P6 P7 P8 P9 P10 P11 P12 " {
		t.Errorf("the long form has %s", got)
	}
	list, err := choose(form{pairs: 5}.catalogue(), []string{"P4", "P1"})
	if err != nil || names(list) != "P1 P4 " {
		t.Errorf("chose %s(%v)", names(list), err)
	}
	if _, err := choose(form{short: true, pairs: 5}.catalogue(), []string{"P3"}); err == nil {
		t.Error("the short form has no P3, and nobody says so")
	}
	for _, s := range (form{pairs: 5}).catalogue() {
		if s.name == "P6" && strings.Join(s.ours, " ") != "P6 --pairs=3 --seconds=600" {
			t.Errorf("P6 is run as %q", s.ours)
		}
	}
}
