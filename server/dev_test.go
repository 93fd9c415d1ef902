package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const succeeded = leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED

// startDev runs `leasehold dev` on a folder and a free port.
func startDev(t *testing.T, dir string) *process {
	t.Helper()
	return start(t, "dev", "--data-dir", dir, "--listen", "127.0.0.1:0")
}

func TestDev_DoesWorkAndKeepsIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), "data")
	first := startDev(t, dir)
	if !first.serving("") || !first.serving("leasehold.v1.ExecutionService") || !first.serving("leasehold.v1.WorkerService") {
		t.Error("ready, but health does not say SERVING")
	}
	if password(first.ready.DatabaseURL) == "" {
		t.Errorf("database_url %q has no password: nobody can look at the tables", first.ready.DatabaseURL)
	}
	if err := execSQL(first.ready.DatabaseURL, "SELECT count(*) FROM executions"); err != nil {
		t.Errorf("by database_url: %v", err)
	}
	for _, hint := range []string{"EnqueueExecution", "GetExecution", "ListTimeline"} {
		eventually(t, "a hint about "+hint, func() bool {
			return strings.Contains(first.stderr.String(), first.ready.Listen+" leasehold.v1.ExecutionService/"+hint)
		})
	}
	enqueued := first.enqueue("key-1", "example.echo", `{"n": 1.50}`)
	done := first.awaitState(enqueued.GetExecution().GetId(), succeeded)
	if got := done.GetSteps()[0].GetOutput().GetJson(); got != `{"n": 1.50}` {
		t.Errorf("example.echo returned %q", got)
	}
	flaky := first.enqueue("key-2", "example.flaky", `{"fail_times": 1}`)
	if attempts := first.awaitState(flaky.GetExecution().GetId(), succeeded).GetSteps()[0].GetAttempts(); len(attempts) != 2 {
		t.Errorf("example.flaky took %d attempts, want 2", len(attempts))
	}

	first.stop(syscall.SIGINT)
	second := startDev(t, dir)
	again := second.enqueue("key-1", "example.echo", `{"n": 1.50}`)
	if again.GetCreated() || again.GetExecution().GetId() != enqueued.GetExecution().GetId() {
		t.Errorf("after a restart the same key made %v", again)
	}
	second.stop(syscall.SIGTERM)
}

func TestDev_SecondOnTheSameFolderSaysWhoHoldsIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), "data")
	first := startDev(t, dir)
	// The port is taken too; the folder is what has to be told.
	second := launch(t, "dev", "--data-dir", dir, "--listen", first.ready.Listen)
	if status := second.wait(20 * time.Second); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if said, want := second.stderr.String(), fmt.Sprintf("in use by process %d", first.ready.PID); !strings.Contains(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
	if !first.serving("") {
		t.Error("the first no longer serves")
	}
	first.stop(syscall.SIGTERM)
}

func TestDev_BusyPortIsTold(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p := launch(t, "dev", "--ephemeral", "--listen", listener.Addr().String())
	if status := p.wait(60 * time.Second); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if want := "another program listens on " + listener.Addr().String(); !strings.Contains(p.stderr.String(), want) {
		t.Errorf("said %q, want %q", p.stderr, want)
	}
}

func TestDev_RecoversFromKills(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachableDir(t), "data")
	first := startDev(t, dir)
	first.awaitState(first.enqueue("before", "example.echo", `1`).GetExecution().GetId(), succeeded)

	kill9(t, postmaster(t, dir))
	// Calls are refused as UNAVAILABLE until PostgreSQL is back, by itself.
	client := first.executions()
	var accepted *leaseholdv1.EnqueueExecutionResponse
	eventually(t, "an execution accepted after the end of PostgreSQL", func() bool {
		var err error
		accepted, err = client.EnqueueExecution(testTime(t), &leaseholdv1.EnqueueExecutionRequest{
			Name: "test", IdempotencyKey: "after", Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "example.echo"}},
		})
		return err == nil
	})
	first.awaitState(accepted.GetExecution().GetId(), succeeded)

	first.signal(syscall.SIGKILL)
	first.wait(10 * time.Second)
	second := startDev(t, dir)
	if answer := second.enqueue("before", "example.echo", `1`); answer.GetCreated() {
		t.Error("an execution was lost with the process")
	}
	second.stop(syscall.SIGTERM)
}

func TestDev_EphemeralKeepsNothing(t *testing.T) {
	t.Parallel()
	p := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0")
	_, rest, found := strings.Cut(p.stderr.String(), "data_dir=")
	if !found {
		t.Fatal("the data folder is not logged")
	}
	dir, _, _ := strings.Cut(rest, " ")
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the data folder: %v", err)
	}
	p.stop(syscall.SIGTERM)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the data folder is still there: %v", err)
	}
}

func TestDev_EndsInTimeWithWorkUnderWay(t *testing.T) {
	t.Parallel()
	p := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0")
	id := p.enqueue("", "example.sleep", `{"seconds": 60}`).GetExecution().GetId()
	p.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_RUNNING)
	p.stop(syscall.SIGTERM)
}

// TestDev_SecondSignalEndsAtOnce has an attempt under way, for which the worker waits.
func TestDev_SecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0")
	id := p.enqueue("", "example.sleep", `{"seconds": 60}`).GetExecution().GetId()
	p.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_RUNNING)
	p.signal(syscall.SIGTERM)
	time.Sleep(500 * time.Millisecond)
	p.signal(syscall.SIGTERM)
	if status := p.wait(time.Second); status == 0 {
		t.Error("status 0 after a second signal, want that of the signal")
	}
}

// postmaster is the process id of a data folder's PostgreSQL.
func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "pgdata", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return pid
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
