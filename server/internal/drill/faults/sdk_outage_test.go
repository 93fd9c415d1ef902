package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	sdk "github.com/leasehold/leasehold/api/worker"
)

// backLimit is within which workers are back after their servers are.
const backLimit = 30 * time.Second

// TestB109_WorkersComeBackByThemselves: all servers are killed, for a minute, and started. The
// workers of the SDK say meanwhile that they are not well, and all of them and the exec worker
// take work again soon after.
func TestB109_WorkersComeBackByThemselves(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{})
	const n = 5
	outage := sized(5*time.Second, time.Minute)
	workers := make([]*sdk.Worker, n)
	for i := range workers {
		workers[i] = runSDK(t, sdk.Config{Addresses: c.addresses(), Slots: 2}, fmt.Sprintf("b109.%d", i),
			func(context.Context, *sdk.Job[any]) (string, error) { return "done", nil })
	}
	startExecWorker(t, c, "b109.exec")
	p := dial(t, c.replicas[0].addr)
	succeeded := func(want int64) func() bool {
		return func() bool {
			return c.number(`SELECT count(*) FROM executions WHERE state = 'SUCCEEDED'`) == want
		}
	}
	everyone := func() {
		for i := range n {
			enqueue(t, p, 1, fmt.Sprintf("b109.%d", i))
		}
		enqueue(t, p, 1, "b109.exec")
	}
	everyone()
	eventually(t, 30*time.Second, "done by every worker", succeeded(n+1))

	for _, r := range c.replicas {
		r.kill()
	}
	began := time.Now()
	eventually(t, 10*time.Second, "all workers not well", func() bool {
		for _, w := range workers {
			if w.Health() == nil || w.Stats().FailingSince.IsZero() {
				return false
			}
		}
		return true
	})
	time.Sleep(outage - time.Since(began))
	for _, r := range c.replicas {
		r.launch()
	}
	for _, r := range c.replicas {
		r.awaitReady()
	}
	began = time.Now()
	insistOn(t, p)
	everyone()
	eventually(t, backLimit, "done by every worker after the outage", succeeded(2*(n+1)))
	t.Logf("all workers had work done %s after the servers were back", time.Since(began))
	for i, w := range workers {
		if err := w.Health(); err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
}

// insistOn waits until a client's own connection stands again.
func insistOn(t *testing.T, p *peer) {
	t.Helper()
	eventually(t, 10*time.Second, "reached by the producer", func() bool {
		_, err := p.executions.ListExecutions(t.Context(), &leaseholdv1.ListExecutionsRequest{PageSize: 1})
		return err == nil
	})
}

// startExecWorker starts `leasehold worker` with a program that repeats its input.
func startExecWorker(t *testing.T, c *cluster, capability string) {
	t.Helper()
	args := []string{"worker", "--capability", capability, "--log-level", "error"}
	for _, address := range c.addresses() {
		args = append(args, "--address", address)
	}
	cmd := exec.Command(shared.server(t), append(args, "--", "cat")...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithUs(cmd.SysProcAttr)
	worker := startChild(t, cmd)
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("end the exec worker: %v", err)
		}
		<-worker.exited
		if !worker.status.Success() {
			t.Errorf("the exec worker ended with %v", worker.status)
		}
	})
}
