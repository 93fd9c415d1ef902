package drill

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// noNetwork is how npm says that its registry cannot be reached.
var noNetwork = regexp.MustCompile(`ENOTFOUND|ETIMEDOUT|ECONNREFUSED|ECONNRESET|EAI_AGAIN|ENETUNREACH`)

// nodeExample is a copy of the example with its packages installed.
func nodeExample(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: the worker in Node is not tried", program)
		}
	}
	folder := t.TempDir()
	for _, file := range []string{"package.json", "package-lock.json", "worker.js", "leasehold.binpb"} {
		text, err := os.ReadFile(filepath.Join("../../../api/examples/node", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = folder
	if out, err := install.CombinedOutput(); noNetwork.Match(out) {
		t.Skipf("npm cannot reach its registry: the worker in Node is not tried: %s", out)
	} else if err != nil {
		t.Fatalf("npm ci: %v: %s", err, out)
	}
	return folder
}

// A client that is not ours runs chains of steps while a replica is stopped: nothing is lost and
// nothing done twice, inputs and outputs pass from step to step, and SIGTERM ends it.
func TestNode_RunsChainsWhileAReplicaStops(t *testing.T) {
	t.Parallel()
	folder := nodeExample(t)
	w := newWorld(t)
	var addresses []string
	for i := range 3 {
		addresses = append(addresses, w.Replica(i).Addr())
	}
	var said bytes.Buffer
	node := exec.CommandContext(t.Context(), "node", "worker.js", strings.Join(addresses, ","))
	node.Dir, node.Stdout, node.Stderr = folder, &said, &said
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	upper := func(name, text string, parents ...string) *leaseholdv1.StepSpec {
		return &leaseholdv1.StepSpec{Name: name, Capability: "text.upper/v1", Input: JSON(fmt.Sprintf(`{"text": %q}`, text)), DependsOn: parents}
	}
	ids := w.enqueueMany(count(t, 20, 200), func(i int) *leaseholdv1.EnqueueExecutionRequest {
		return graph(upper("a", "hello"), upper("b", fmt.Sprint("number ", i), "a"),
			&leaseholdv1.StepSpec{Name: "c", Capability: "text.wait/v1", Input: JSON(`{"ms": 20}`), DependsOn: []string{"b"}},
			&leaseholdv1.StepSpec{Name: "d", Capability: "text.join/v1", DependsOn: []string{"a", "b", "c"}})
	})
	w.awaitState(ids[0], succeeded)
	w.Replica(1).Stop()
	each(ids, func(i int, id string) {
		w.awaitState(id, succeeded)
		answer, err := w.Client(0).Executions.GetExecution(w.ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: id, IncludePayloads: true})
		if err != nil {
			t.Error(err)
			return
		}
		want(t, "output", find(t, answer.GetExecution(), "d").GetOutput().GetJson(), fmt.Sprintf(`"HELLO NUMBER %d waited"`, i))
	})
	if err := node.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := endsIn(node, 30*time.Second); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, &said)
	}
}

func endsIn(program *exec.Cmd, limit time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		_ = program.Process.Kill()
		return fmt.Errorf("it is not gone: %w, then %w", context.DeadlineExceeded, <-ended)
	}
}
