package execworker

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// script runs a shell script as an attempt's program.
func script(ctx context.Context, text, input string, change ...func(*Config)) (*leaseholdv1.Payload, error) {
	c := Config{PermanentExit: DefaultPermanentExit, MaxOutput: 1000, KillAfter: time.Minute, Stderr: io.Discard}
	for _, f := range change {
		f(&c)
	}
	p := &program{path: "/bin/sh", args: []string{"sh", "-c", text}, input: []byte(input), notes: &notesHeard{}, lease: 30 * time.Second, c: &c}
	return p.run(ctx)
}

func TestProgram_OutputByItsForm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, input, contentType, want string }{
		{"JSON", `cat`, `{"a": 1.50}`, "application/json", `{"a": 1.50}`},
		{"text", `tr a-z A-Z`, "hello\n", "text/plain; charset=utf-8", "HELLO\n"},
		{"bytes", `printf '\377\000'`, "", "application/octet-stream", "\xff\x00"},
		{"none", `true`, "", "", ""},
		{"input that is not read", `echo 1`, strings.Repeat("x", 1<<20), "application/json", "1\n"},
		{"as much as it may be", `head -c 1000 /dev/zero | tr '\0' 7`, "", "application/json", strings.Repeat("7", 1000)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, err := script(t.Context(), tt.script, tt.input)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(bodyOf(out)); got != tt.want || out.GetContentType() != tt.contentType {
				t.Errorf("got %q (%s), want %q (%s)", got, out.GetContentType(), tt.want, tt.contentType)
			}
		})
	}
}

func TestProgram_FailuresSayWhy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, script, want string }{
		{"status", `echo something is wrong >&2; exit 3`, "exit status 3: something is wrong"},
		{"permanent", `echo bad input >&2; exit 65`, "exit status 65: bad input"},
		{"signal", `kill -9 $$`, "signal: killed"},
		{"a long tail", `seq 100000 >&2; exit 1`, "\n100000"},
		{"too much output", `yes | head -c 2000000`, "wrote more than 1000 bytes"},
		{"too much output of one that failed", `yes | head -c 2000000; exit 3`, "exit status 3"},
		{"too much output of one that asks for later", `yes | head -c 2000000; exit 75`, "released: the program asks to be tried later"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			out, err := script(t.Context(), tt.script, "")
			if out != nil || err == nil || !strings.Contains(err.Error(), tt.want) || len(err.Error()) > stderrTail+100 {
				t.Errorf("got %d bytes, %.200v; want %q", len(bodyOf(out)), err, tt.want)
			}
		})
	}
}

// The whole group ends with its context: the leader, which ignores SIGTERM, and what it has
// started. Caught: signals that go to the leader alone; no SIGKILL.
func TestProgram_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cause     error
		killAfter time.Duration
	}{
		{worker.ErrCanceled, 300 * time.Millisecond},
		{worker.ErrLeaseLost, time.Hour}, // held to much less, as are the next
		{worker.ErrDeadline, time.Hour},
		{worker.ErrStopping, time.Hour},
	} {
		t.Run(tt.cause.Error(), func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := script(ctx, `trap '' TERM; sleep 1000 & echo $! > `+folder+`/pid.tmp; mv `+folder+`/pid.tmp `+folder+`/pid; while :; do sleep 0.1; done`,
					"", func(c *Config) { c.KillAfter = tt.killAfter })
				ended <- err
			}()
			pid := awaitPID(t, filepath.Join(folder, "pid"))
			cancel(tt.cause)
			select {
			case err := <-ended:
				if !errors.Is(err, tt.cause) {
					t.Errorf("ended with %v, want %v", err, tt.cause)
				}
			case <-time.After(time.Minute):
				t.Fatal("the program outlives its context")
			}
			awaitGone(t, pid)
		})
	}
}

// However short the lease: SIGKILL comes within the margin that the SDK keeps to its end.
func TestProgram_IsKilledBeforeItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{time.Second, 4 * time.Second, 30 * time.Second, time.Hour} {
		p := &program{lease: lease, c: &Config{KillAfter: time.Minute}}
		margin := min(lease/20, 500*time.Millisecond)
		for _, cause := range []error{worker.ErrLeaseLost, worker.ErrDeadline, worker.ErrStopping} {
			if got := p.patience(cause); got > margin/2 || got <= 0 {
				t.Errorf("%v of a lease of %v: killed after %v, of %v that are left", cause, lease, got, margin)
			}
		}
	}
}

// A program that finishes its work on SIGTERM has done it.
func TestProgram_MayFinishOnSIGTERM(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	var out *leaseholdv1.Payload
	go func() {
		var err error
		out, err = script(ctx, `trap 'echo 7; exit 0' TERM; echo $$ > `+folder+`/pid.tmp; mv `+folder+`/pid.tmp `+folder+`/pid; while :; do sleep 0.05; done`, "")
		ended <- err
	}()
	awaitPID(t, filepath.Join(folder, "pid"))
	cancel(worker.ErrCanceled)
	if err := <-ended; err != nil || string(bodyOf(out)) != "7\n" {
		t.Errorf("got %q, %v", bodyOf(out), err)
	}
}

// What a program leaves behind ends with it, and does not hold up the attempt. Caught: waiting
// for the pipe's other holders; leaving the group alone.
func TestProgram_LeavesNothingBehind(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	out, err := script(t.Context(), `sleep 1000 & echo $! > `+folder+`/pid; echo 1`, "")
	if err != nil || string(bodyOf(out)) != "1\n" {
		t.Fatalf("got %q, %v", bodyOf(out), err)
	}
	awaitGone(t, awaitPID(t, filepath.Join(folder, "pid")))
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// What the worker cannot pass on does not undo what a program has done, and stands in a failure.
func TestProgram_StderrThatTakesNothing(t *testing.T) {
	t.Parallel()
	toFull := func(c *Config) { c.Stderr = full{} }
	out, err := script(t.Context(), `seq 100000 >&2; echo 1`, "", toFull)
	if err != nil || string(bodyOf(out)) != "1\n" {
		t.Errorf("got %q, %v", bodyOf(out), err)
	}
	if _, err = script(t.Context(), `echo why >&2; exit 3`, "", toFull); err == nil || err.Error() != "exit status 3: why" {
		t.Errorf("got %v", err)
	}
}

func TestRun_ProgramThatIsNotThere(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Config{Command: []string{"./no-such-program"}, Capabilities: []string{"a"}})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func awaitPID(t *testing.T, file string) int {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return pid
		}
	}
	t.Fatal("the program does not start")
	return 0
}

// awaitGone waits until a process is gone, or is reaped by nobody yet.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return
		}
		if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil && strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Fatalf("process %d lives on", pid)
}
