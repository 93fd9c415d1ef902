package live

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/leasehold/leasehold/server/internal/history"
)

// TestReport_LastLine is for scripts: it counts what ran.
func TestReport_LastLine(t *testing.T) {
	t.Parallel()
	good := Result{Name: "claimers", Outcome: Passed, Attempts: 30, Recovery: 0.25}
	bad := Result{Name: "listen", Outcome: Passed, Attempts: 4}
	bad.broke(history.Violation{Rule: "durable", Text: "x"})
	bad.broke(history.Violation{Rule: "versions", Text: "y"})
	left := Result{Name: "outage", Outcome: Skipped, Why: []string{"not here"}}
	for name, tt := range map[string]struct {
		results []Result
		want    string
		failed  bool
	}{
		"good":    {[]Result{good}, "drills 1 passed 1 failed 0 attempts 30 lost 0 doubled 0\n", false},
		"bad":     {[]Result{good, bad}, "drills 2 passed 1 failed 1 attempts 34 lost 1 doubled 1\n", true},
		"skipped": {[]Result{good, left}, "drills 1 passed 1 failed 0 attempts 30 lost 0 doubled 0\n", false},
	} {
		var text, machine strings.Builder
		for to, asJSON := range map[*strings.Builder]bool{&text: false, &machine: true} {
			c := &course{cfg: Config{Out: to, JSON: asJSON}, chosen: catalogue(), results: map[string]Result{}}
			for _, r := range tt.results {
				c.results[r.Name] = r
			}
			if err := c.report(0); errors.Is(err, ErrFailed) != tt.failed {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !strings.HasSuffix(text.String(), "\n"+tt.want) {
			t.Errorf("%s: %q, want it to end with %q", name, text.String(), tt.want)
		}
		if tt.failed && !strings.Contains(text.String(), "listen failed: durable: x\n  versions: y\n") {
			t.Errorf("%s does not say why: %q", name, text.String())
		}
		var report Report
		if err := json.Unmarshal([]byte(machine.String()), &report); err != nil || len(report.Drills) != len(tt.results) || (report.Failed > 0) != tt.failed {
			t.Errorf("%s as JSON: %+v, %v", name, report, err)
		}
	}
}

// TestCatalogue_NamesAreUnique, and each drill says what it is.
func TestCatalogue_NamesAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, d := range catalogue() {
		if seen[d.name] || d.line == "" || d.run == nil || Check([]string{d.name}) != nil {
			t.Errorf("drill %+v", d)
		}
		seen[d.name] = true
	}
	if Check([]string{"claimers", "nonsense"}) == nil {
		t.Error("nonsense is a drill")
	}
}

// TestFirstAfter: of the calls that were sent after an instant, the one that was answered first.
func TestFirstAfter(t *testing.T) {
	t.Parallel()
	list := []span{{sent: 1, got: 9}, {sent: 5, got: 8}, {sent: 4, got: 6}, {sent: 3, got: 4}}
	if s, ok := firstAfter(list, 3); !ok || s.got != 6 {
		t.Errorf("got %+v, %t", s, ok)
	}
	if s, ok := firstAfter(list, 5); ok {
		t.Errorf("got %+v, which was sent before", s)
	}
}
