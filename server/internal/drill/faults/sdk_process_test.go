package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	sdk "github.com/leasehold/leasehold/api/worker"
)

// workerMode makes this test binary a process with workers of the SDK: its value is a workersJob.
const workerMode = "LEASEHOLD_FAULTS_WORKERS"

// workersJob is what such a process does until SIGTERM.
type workersJob struct {
	Addrs      []string
	Capability string
	Workers    int
	Slots      int
	Lease      time.Duration
	Grace      time.Duration
}

// workersLine is what it says of itself whenever it is asked by a line on its stdin.
type workersLine struct {
	Healthy    int // workers
	Busy       int // slots of them
	Goroutines int
	Sockets    int
	Heap       uint64 // bytes that are in use after collections
}

// sleepInput is what its handler is told to do.
type sleepInput struct {
	For   time.Duration
	Fails bool
}

// sleepFor works for as long as it is told to, and leaves a checkpoint if it cannot.
func sleepFor(ctx context.Context, job *sdk.Job[sleepInput]) (string, error) {
	select {
	case <-time.After(job.Input.For):
	case <-ctx.Done():
		return "", errors.Join(job.SetCheckpoint("half way"), ctx.Err())
	}
	if job.Input.Fails {
		return "", errors.New("told to fail")
	}
	return "done", nil
}

// beWorkers is the process. It returns its exit status.
func beWorkers(mode string) int {
	var job workersJob
	if err := json.Unmarshal([]byte(mode), &job); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	workers := make([]*sdk.Worker, job.Workers)
	var running errgroup.Group
	for i := range workers {
		workers[i] = sdk.New(sdk.Config{
			Addresses: job.Addrs, Slots: job.Slots, LeaseDuration: job.Lease, Grace: job.Grace, Logger: slog.New(slog.DiscardHandler),
		})
		sdk.Handle(workers[i], job.Capability, sleepFor)
		running.Go(func() error { return workers[i].Run(ctx) })
	}
	go func() {
		lines, say := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
		for lines.Scan() {
			_ = say.Encode(present(workers)) // nobody to tell if that fails
		}
	}()
	if err := running.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func present(workers []*sdk.Worker) workersLine {
	runtime.GC()
	runtime.GC() // pools keep what they have over the first
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	line := workersLine{Goroutines: runtime.NumGoroutine(), Sockets: sockets(), Heap: memory.HeapAlloc}
	for _, w := range workers {
		line.Busy += w.Stats().Busy
		if w.Health() == nil {
			line.Healthy++
		}
	}
	return line
}

// sockets is how many sockets this process has, where that can be seen.
func sockets() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && len(target) > 7 && target[:7] == "socket:" {
			n++
		}
	}
	return n
}

// child is a process that ends with the test.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{}
	status *os.ProcessState // once it has exited
}

func startChild(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	c := &child{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal is sent when this thread ends
		defer runtime.UnlockOSThread()
		defer close(c.exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			c.status, _ = cmd.Process.Wait() // not cmd.Wait, which closes the pipes
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-c.exited
	})
	return c
}

// workersProcess is a process with workers under test.
type workersProcess struct {
	*child
	t     *testing.T
	ask   io.Writer
	lines *bufio.Scanner
}

func startWorkers(t *testing.T, job workersJob) *workersProcess {
	t.Helper()
	cmd := ourselves(t, workerMode, job)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return &workersProcess{child: startChild(t, cmd), t: t, ask: in, lines: bufio.NewScanner(out)}
}

// look asks the process how it is.
func (p *workersProcess) look() workersLine {
	p.t.Helper()
	var line workersLine
	if _, err := io.WriteString(p.ask, "\n"); err != nil {
		p.t.Fatal(err)
	}
	if !p.lines.Scan() {
		p.t.Fatal("the workers have ended")
	}
	if err := json.Unmarshal(p.lines.Bytes(), &line); err != nil {
		p.t.Fatal(err)
	}
	return line
}
