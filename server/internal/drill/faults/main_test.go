package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/testdb"
)

// shared is what the tests of one run have in common.
var shared workshop

// workshop has the server's binaries, and a PostgreSQL for the tests that never harm it.
type workshop struct {
	databases testdb.Server
	folder    sync.Once
	dir       string
	plain     binary
	crashing  binary // with crash points
}

// binary is built when it is first asked for.
type binary struct {
	build sync.Once
	path  string
	err   error
}

func TestMain(m *testing.M) {
	if mode := os.Getenv(clientMode); mode != "" {
		fmt.Fprintln(os.Stderr, beClient(mode))
		os.Exit(2)
	}
	if mode := os.Getenv(workerMode); mode != "" {
		os.Exit(beWorkers(mode))
	}
	status := shared.databases.Main(m)
	if shared.dir != "" {
		if err := os.RemoveAll(shared.dir); err != nil {
			fmt.Fprintln(os.Stderr, "remove the server's binary:", err)
		}
	}
	os.Exit(status)
}

// server is the path of the server's binary. In full it is built with the race detector if we
// have it, which makes processes that start often several times slower; in the short form the
// same code runs under it within the packages' own tests.
func (w *workshop) server(t *testing.T) string {
	t.Helper()
	var args []string
	if raceDetector && full() {
		args = append(args, "-race")
	}
	return w.built(t, &w.plain, "leasehold", args...)
}

// crashingServer is the path of one with crash points.
func (w *workshop) crashingServer(t *testing.T) string {
	t.Helper()
	return w.built(t, &w.crashing, "leasehold-crashing", "-tags", "crashpoints")
}

func (w *workshop) built(t *testing.T, b *binary, name string, args ...string) string {
	t.Helper()
	w.folder.Do(func() {
		var err error
		if w.dir, err = os.MkdirTemp("", "leasehold-faults-"); err != nil {
			t.Fatal(err)
		}
	})
	b.build.Do(func() {
		b.path = filepath.Join(w.dir, name)
		args = append([]string{"build", "-buildvcs=false", "-o", b.path}, args...)
		out, err := exec.Command("go", append(args, "github.com/leasehold/leasehold/server")...).CombinedOutput()
		if err != nil {
			b.err = fmt.Errorf("build the server: %w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

// full tells whether the tests run at their full counts.
func full() bool { return os.Getenv("LEASEHOLD_FULL") == "1" }

// sized is the first value in the short form, else the second.
func sized[T any](short, whole T) T {
	if full() {
		return whole
	}
	return short
}

// alongside lets a test run beside others in the short form, where most of the time is
// waited; in full each has the machine for itself.
func alongside(t *testing.T) {
	t.Helper()
	if !full() {
		t.Parallel()
	}
}

// eventually waits until ok, asking often, and fails the test after the limit.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			t.Fatalf("after %s: not %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}
