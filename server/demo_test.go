package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestDemo plays a small one. Breaks seen to fail, each by its own number of the verdict:
// executions without a key, the consumer without its inbox, the mailbox without its fence.
func TestDemo(t *testing.T) {
	t.Parallel()
	p := launch(t, "demo", "--coupons", "200")
	story := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(p.stdout)
		story <- string(text)
	}()
	if status := p.wait(2 * time.Minute); status != 0 {
		t.Errorf("status %d", status)
	}
	text := <-story
	lines := strings.Split(strings.TrimSpace(text), "\n")
	verdict := regexp.MustCompile(`^verdict ok issued 200 lost 0 doubled 0 refused_late [1-9]\d* redelivered [1-9]\d*$`)
	if last := lines[len(lines)-1]; !verdict.MatchString(last) {
		t.Errorf("the last line is %q; the story:\n%s", last, text)
	}
	for _, told := range []string{"replica-1 is killed (SIGKILL)", "not yet reported it; it is killed (SIGKILL)", "it is frozen (SIGSTOP)", "stale fencing token", "the server has refused it"} {
		if !strings.Contains(text, told) {
			t.Errorf("the story does not tell that %q:\n%s", told, text)
		}
	}
}

// TestDemo_LeavesNoProcess: not when it is interrupted, and not when it is killed, where the
// kernel sees to it. Break seen to fail: no parent-death signal.
func TestDemo_LeavesNoProcess(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc to look into")
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			mark := "DEMO_OF_TEST=" + uuid.NewString()
			cmd := exec.Command("leasehold", "demo", "--coupons", "1000")
			folder := t.TempDir() // for what a killed demo leaves
			cmd.Env = append(os.Environ(), mark, "TMPDIR="+folder)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			lines := bufio.NewScanner(stdout)
			for lines.Scan() && !strings.Contains(lines.Text(), "3 replicas on") {
			}
			if n := len(processesWith(t, mark)); n != 10 {
				t.Errorf("%d processes run, want the demo, 3 replicas and 6 workers", n)
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			last := ""
			for lines.Scan() {
				last = lines.Text()
			}
			_ = cmd.Wait() // Its status follows.
			if status := cmd.ProcessState.ExitCode(); s == syscall.SIGINT && (status != 1 || last != "verdict failed") {
				t.Errorf("status %d, last line %q, want 1 and a verdict", status, last)
			}
			eventually(t, "every process has ended", func() bool { return len(processesWith(t, mark)) == 0 })
			// PostgreSQL does not have our mark; it ends, too, and then writes there no more.
			eventually(t, "its folder can be removed", func() bool { return os.RemoveAll(folder) == nil })
		})
	}
}

// processesWith lists the processes that have a setting in their environment.
func processesWith(t *testing.T, setting string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), setting) {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}
