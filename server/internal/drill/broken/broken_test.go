package broken

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/drill/live"
)

// root is the module's folder.
const root = "../../../.."

// limit is for one run of the drills of a fault.
const limit = 10 * time.Minute

// Every fault stands where it says: so that the proof does not rot unseen.
func TestFaults_StandWhereTheySay(t *testing.T) {
	t.Parallel()
	for _, f := range faults() {
		if text := read(t, f.file); strings.Count(text, f.old) != 1 {
			t.Errorf("%s: %q is %d times in %s", f.name, f.old, strings.Count(text, f.old), f.file)
		}
		if err := live.Check(strings.Split(f.drills, ",")); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}

// TestDrill_FailsOnBrokenBuilds: the drills pass on the server as it is, and fail on each build
// with a fault, by name.
func TestDrill_FailsOnBrokenBuilds(t *testing.T) {
	if os.Getenv("LEASEHOLD_PROVE") != "1" {
		t.Skip("builds the server many times: make prove-drill")
	}
	drills := map[string]bool{}
	for _, f := range faults() {
		for _, d := range strings.Split(f.drills, ",") {
			drills[d] = true
		}
	}
	t.Run("as it is", func(t *testing.T) {
		var all []string
		for d := range drills {
			all = append(all, d)
		}
		report := run(t, build(t, nil), strings.Join(all, ","))
		for _, d := range report.Drills {
			if d.Outcome != live.Passed {
				t.Errorf("%s %s: %s", d.Name, d.Outcome, strings.Join(d.Why, "; "))
			}
		}
	})
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			report := run(t, build(t, &f), f.drills)
			for _, d := range report.Drills {
				if d.Outcome != live.Failed {
					t.Errorf("%s %s, though broken: %s", d.Name, d.Outcome, f.breaks)
				}
				t.Logf("%s %s: %s", d.Name, d.Outcome, strings.Join(d.Why, "\n\t"))
			}
		})
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// build makes the server, with a fault laid over its file, and returns its path.
func build(t *testing.T, f *fault) string {
	t.Helper()
	folder := t.TempDir()
	program := filepath.Join(folder, "leasehold")
	args := []string{"build", "-buildvcs=false", "-o", program}
	if f != nil {
		args = append(args, "-overlay", overlay(t, folder, f))
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./server")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// overlay has the compiler read another text in place of the file.
func overlay(t *testing.T, folder string, f *fault) string {
	t.Helper()
	original, err := filepath.Abs(filepath.Join(root, f.file))
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(folder, filepath.Base(f.file))
	write(t, changed, []byte(strings.Replace(read(t, f.file), f.old, f.new, 1)))
	text, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(folder, "overlay.json")
	write(t, list, text)
	return list
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs drills, which may fail, and returns their report.
func run(t *testing.T, program, drills string) live.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "drill", "--json", "--only", drills)
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it has processes of its own to end
	cmd.WaitDelay = time.Minute
	failure := cmd.Run()
	var report live.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v, %v: %s\n%s", failure, err, out.Bytes(), said.Bytes())
	}
	if failed := report.Failed > 0; failed != (cmd.ProcessState.ExitCode() == 1) {
		t.Errorf("%s, and exit status %d", fmt.Sprintf("%d drills failed", report.Failed), cmd.ProcessState.ExitCode())
	}
	return report
}
