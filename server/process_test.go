package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// process is a `leasehold` that runs.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *output
	stdout *bufio.Reader
	ready  readyLine
	exited chan struct{} // closed at its end, after which err is set
	err    error
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// launch starts a process, which is killed at the end of the test if it still lives.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	return launchWith(t, nil, args...)
}

// launchWith starts it with further variables in its environment.
func launchWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command("leasehold", args...), stderr: &output{}, exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.stderr
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.stdout = writer, bufio.NewReader(reader)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	go func() {
		defer close(p.exited)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		_ = reader.Close()
		if t.Failed() {
			t.Logf("leasehold %s:\n%s", strings.Join(args, " "), p.stderr)
		}
	})
	return p
}

// start launches a process and waits until it is ready.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return launch(t, args...).awaitReady()
}

// awaitReady waits until the process is ready.
func (p *process) awaitReady() *process {
	t := p.t
	t.Helper()
	line := make(chan error, 1)
	go func() {
		text, err := p.stdout.ReadBytes('\n')
		line <- errors.Join(err, json.Unmarshal(text, &p.ready))
	}()
	select {
	case err := <-line:
		if err != nil || !p.ready.Ready {
			t.Fatalf("no ready line: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("not ready after 60 s")
	}
	if p.ready.PID != p.cmd.Process.Pid || p.ready.Version != version {
		t.Errorf("ready line: %+v, of process %d", p.ready, p.cmd.Process.Pid)
	}
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v", s, err)
	}
}

// wait returns the status of the process, which has to end within the limit.
func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		p.t.Fatalf("still runs after %s", limit)
		return -1
	}
}

// stop ends the process by a signal as a service manager does.
func (p *process) stop(s syscall.Signal) {
	p.t.Helper()
	p.signal(s)
	if status := p.wait(10 * time.Second); status != 0 {
		p.t.Errorf("status %d after %s, want 0", status, s)
	}
	rest, err := io.ReadAll(p.stdout)
	if err != nil || len(rest) > 0 {
		p.t.Errorf("stdout carries more than the ready line: %q, %v", rest, err)
	}
}

// dial connects to the process.
func (p *process) dial() *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.ready.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// serving tells what health says of a service.
func (p *process) serving(service string) bool {
	p.t.Helper()
	answer, err := grpc_health_v1.NewHealthClient(p.dial()).
		Check(testTime(p.t), &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
	return err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

func (p *process) executions() leaseholdv1.ExecutionServiceClient {
	return leaseholdv1.NewExecutionServiceClient(p.dial())
}

// enqueue asks for one step of a capability, under a key.
func (p *process) enqueue(key, capability, input string) *leaseholdv1.EnqueueExecutionResponse {
	p.t.Helper()
	answer, err := p.executions().EnqueueExecution(testTime(p.t), &leaseholdv1.EnqueueExecutionRequest{
		Name: "test", IdempotencyKey: key,
		Steps: []*leaseholdv1.StepSpec{{
			Name: "only", Capability: capability, Input: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: input}},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		p.t.Fatalf("EnqueueExecution: %v", err)
	}
	return answer
}

// awaitState waits until an execution is in a state.
func (p *process) awaitState(id string, want leaseholdv1.ExecutionState) *leaseholdv1.Execution {
	p.t.Helper()
	client := p.executions()
	var last *leaseholdv1.Execution
	eventually(p.t, "execution "+want.String(), func() bool {
		answer, err := client.GetExecution(testTime(p.t), &leaseholdv1.GetExecutionRequest{ExecutionId: id, IncludePayloads: true})
		if err == nil {
			last = answer.GetExecution()
		}
		return last.GetState() == want
	})
	return last
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never happened: %s", what)
}

func testTime(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// reachableDir is t.TempDir, but one that PostgreSQL's user may enter where we are root.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
