package main

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestBench_LeavesNothing, no process and no file, when it is interrupted in the middle.
func TestBench_LeavesNothing(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc to look into")
	}
	mark := "BENCH_OF_TEST=" + uuid.NewString()
	folder := t.TempDir()
	p := launchWith(t, []string{mark, "TMPDIR=" + folder}, "bench", "P1", "--seconds=600")
	eventually(t, "the bench is at work", func() bool { return strings.Contains(p.stderr.String(), "done, ") })
	eventually(t, "the bench and a server run", func() bool { return len(processesWith(t, mark)) == 2 })
	p.signal(syscall.SIGINT)
	if status := p.wait(time.Minute); status != 1 {
		t.Errorf("status %d, want 1: nothing was found out", status)
	}
	eventually(t, "every process has ended", func() bool { return len(processesWith(t, mark)) == 0 })
	if left, err := filepath.Glob(filepath.Join(folder, "*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestBench_PrintsOneObject on stdout for each scenario, and nothing else.
func TestBench_PrintsOneObject(t *testing.T) {
	t.Parallel()
	p := launch(t, "bench", "P3", "--json", "--executions=50", "--batch=20", "--database-url", startPostgres(t).URL())
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("%v\n%s", err, p.stderr.String())
	}
	var r struct {
		Scenario, Side, Unit string
		Count, Lost, Doubled int64
		Rate                 float64
		Postgres             map[string]float64
		CPU                  map[string]float64 `json:"cpu_seconds_per_1000"`
		Latency              map[string]float64 `json:"latency_ms"`
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	// The kernel counts other processes in steps of 10 ms, of which so little work may take none.
	if r.Scenario != "P3" || r.Side != "leasehold" || r.Count != 50 || r.Rate <= 0 || r.Postgres["commits"] < 1 || r.CPU["load"] <= 0 || r.Latency["p99"] <= 0 {
		t.Errorf("printed %s", line)
	}
	if rest, _ := p.stdout.ReadString('\n'); rest != "" {
		t.Errorf("and then %q", rest)
	}
	if status := p.wait(time.Minute); status != 0 {
		t.Errorf("status %d: %s", status, p.stderr.String())
	}
}

// TestBench_TellsWhatAServerSaid when it does not start, by a flag that it does not know for instance.
func TestBench_TellsWhatAServerSaid(t *testing.T) {
	t.Parallel()
	p := launch(t, "bench", "P3", "--serve-flag=--nonsense", "--database-url", startPostgres(t).URL())
	if status := p.wait(time.Minute); status != 1 || !strings.Contains(p.stderr.String(), "unknown flag --nonsense") {
		t.Errorf("status %d, %q; want 1 and the server's words", status, p.stderr.String())
	}
}

func TestBench_Settings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, says string }{
		{"", "name scenarios"},
		{"P99", `no scenario "P99"`},
		{"P1 --size=0", "--size"},
		{"P1 --seconds=-1", "--seconds"},
		{"P1 --rate=0", "--rate"},
		{"P1 --size=nan", "--size"},
		{"P1 --seconds=nan", "--seconds"},
		{"P1 --rate=nan", "--rate"},
		{"P1 --lease-most=501", "--lease-most"},
		{"P1 --batch=501", "--batch"},
		{"P5 --backlogs=10,0", "--backlogs"},
		{"P1 --database-url=postgres://h:x/d", "--database-url"},
	} {
		p := launch(t, append([]string{"bench"}, strings.Fields(tt.args)...)...)
		if status := p.wait(time.Minute); status != 2 || !strings.Contains(p.stderr.String(), tt.says) {
			t.Errorf("bench %s: status %d, %q; want 2 and a word of %q", tt.args, status, p.stderr.String(), tt.says)
		}
	}
	p := launch(t, "bench", "--list")
	if line, err := p.stdout.ReadString('\n'); err != nil || !strings.HasPrefix(line, "P1 ") {
		t.Errorf("bench --list prints %q, %v", line, err)
	}
	if status := p.wait(time.Minute); status != 0 {
		t.Errorf("bench --list: status %d", status)
	}
}
