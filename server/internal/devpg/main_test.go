package devpg

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// ownerEnv makes the test binary a process that owns a data folder, so that a
// test can kill it.
const ownerEnv = "DEVPG_TEST_OWNER"

// ownerOrder is what such a process is to do; ownerReport what it says when the
// server is ready.
type ownerOrder struct {
	DataDir       string
	Ephemeral     bool
	Supervise     bool
	NoDeathSignal bool
}

type ownerReport struct {
	DataDir, URL string
	PID          int
	Error        string
}

func TestMain(m *testing.M) {
	if order := os.Getenv(ownerEnv); order != "" {
		os.Exit(ownFolder(order))
	}
	goleak.VerifyTestMain(m)
}

func ownFolder(text string) int {
	var order ownerOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var report ownerReport
	s, err := Start(context.Background(), Config{
		DataDir: order.DataDir, Ephemeral: order.Ephemeral, Supervise: order.Supervise,
		noDeathSignal: order.NoDeathSignal, Log: os.Stderr,
	})
	if err != nil {
		report.Error = err.Error()
	} else {
		report = ownerReport{DataDir: s.DataDir(), URL: s.URL(), PID: s.PID()}
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil || report.Error != "" {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // Until the test ends, or tells us to.
	if err := s.Stop(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// owner is a process of the kind above.
type owner struct {
	ownerReport
	cmd *exec.Cmd
}

func startOwner(t *testing.T, order ownerOrder) *owner {
	t.Helper()
	o, stdout := launchOwner(t, order)
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("the owner says nothing: %v", err)
	}
	if err := json.Unmarshal(line, &o.ownerReport); err != nil {
		t.Fatal(err)
	}
	if o.Error != "" {
		t.Fatalf("the owner failed: %s", o.Error)
	}
	return o
}

// launchOwner does not wait for its report, which comes on its stdout.
func launchOwner(t *testing.T, order ownerOrder) (*owner, io.Reader) {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return &owner{cmd: cmd}, stdout
}

// kill9 ends the owner so that it can tidy up nothing.
func (o *owner) kill9(t *testing.T) {
	t.Helper()
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
}

// reachableDir is t.TempDir, but one that PostgreSQL's user may enter.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func bound(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func mustStart(t *testing.T, cfg Config) *Server {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = &testLog{t: t}
	}
	s, err := Start(bound(t), cfg)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return s
}

// testLog passes lines to the test's log, and remembers them.
type testLog struct {
	t    *testing.T
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%s", strings.TrimSpace(string(p)))
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// exec runs one statement on a connection of its own.
func execSQL(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(bound(t), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(bound(t), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func queryValue[T any](t *testing.T, url, sql string) T {
	t.Helper()
	var value T
	conn, err := pgx.Connect(bound(t), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(bound(t), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// eventually waits up to 30 s for something that other processes do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func noneLeft(t *testing.T, pgdata string) {
	t.Helper()
	eventually(t, "the end of all processes on "+pgdata, func() bool {
		left, err := processesOf(pgdata)
		if err != nil {
			t.Fatal(err)
		}
		return len(left) == 0
	})
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to kill: %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill -9 %d: %v", pid, err)
	}
}
