package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// replica is one `serve` process, which may end and start again on the same port.
type replica struct {
	t       *testing.T
	name    string
	role    string // of PostgreSQL: tells this replica's sessions from the others'
	url     string
	args    []string
	program string   // the server's path
	env     []string // further variables
	addr    string   // once it was ready
	logPath string

	proc *process // the current or last one
}

// process is one run of a replica.
type process struct {
	cmd    *exec.Cmd
	ready  chan string   // its address; closed without one if it ends before
	exited chan struct{} // closed when it was reaped
	err    error         // of Wait, after exited
}

const startLimit = 30 * time.Second

// launch starts the process without waiting until it is ready.
func (r *replica) launch() {
	r.t.Helper()
	listen := r.addr
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	log, err := os.OpenFile(r.logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(r.program, append([]string{
		"serve", "--migrate", "--database-url", r.url, "--listen", listen, "--http-listen", "off",
	}, r.args...)...)
	cmd.Env = append(append(os.Environ(), "GORACE=halt_on_error=0"), r.env...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithUs(cmd.SysProcAttr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	p := &process{cmd: cmd, ready: make(chan string, 1), exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.live(out, log, started)
	if err := <-started; err != nil {
		r.t.Fatalf("start %s: %v", r.name, err)
	}
	r.proc = p
}

// live starts the process and waits for its end, on one thread: the parent-death signal is
// sent when that ends.
func (p *process) live(out io.Reader, log io.Closer, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer log.Close()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var line struct {
			Ready  bool   `json:"ready"`
			Listen string `json:"listen"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Ready {
			p.ready <- line.Listen
		}
	}
	close(p.ready)
	p.err = p.cmd.Wait()
	close(p.exited)
}

// awaitReady waits until the process says that it is ready.
func (r *replica) awaitReady() {
	r.t.Helper()
	select {
	case addr, ok := <-r.proc.ready:
		if !ok {
			r.t.Fatalf("%s ended before it was ready", r.name)
		}
		r.addr = addr
	case <-time.After(startLimit):
		r.t.Fatalf("%s was not ready within %s", r.name, startLimit)
	}
}

// start starts it, again on the port that it had before.
func (r *replica) start() {
	r.t.Helper()
	r.launch()
	r.awaitReady()
}

func (r *replica) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.proc.cmd.Process.Signal(s); err != nil {
		r.t.Fatalf("send %v to %s: %v", s, r.name, err)
	}
}

// kill ends it at once, as a crash of its machine does.
func (r *replica) kill() {
	r.t.Helper()
	r.signal(syscall.SIGKILL)
	<-r.proc.exited
}

// freeze stops it wherever it is, with its connections open; thaw lets it go on.
func (r *replica) freeze() { r.t.Helper(); r.signal(syscall.SIGSTOP) }
func (r *replica) thaw()   { r.t.Helper(); r.signal(syscall.SIGCONT) }

// terminate asks it to end, and returns how long that took and its status.
func (r *replica) terminate(limit time.Duration) (time.Duration, int) {
	r.t.Helper()
	began := time.Now()
	r.signal(syscall.SIGTERM)
	select {
	case <-r.proc.exited:
	case <-time.After(limit):
		r.t.Fatalf("%s did not end within %s of SIGTERM", r.name, limit)
	}
	return time.Since(began), r.proc.cmd.ProcessState.ExitCode()
}

// running tells whether its process has not ended.
func (r *replica) running() bool {
	if r.proc == nil {
		return false
	}
	select {
	case <-r.proc.exited:
		return false
	default:
		return true
	}
}

// end kills what is left, also if it is frozen, and looks at the log.
func (r *replica) end() {
	if r.running() {
		if err := r.proc.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			r.t.Errorf("end %s: %v", r.name, err)
		}
		<-r.proc.exited
	}
	r.examineLog()
}

// examineLog fails the test for what a log must never say, and shows the log of a failed test.
func (r *replica) examineLog() {
	log, err := os.ReadFile(r.logPath)
	if err != nil {
		r.t.Errorf("log of %s: %v", r.name, err)
		return
	}
	for _, bad := range []string{
		"DATA RACE", "panic: ", "fatal error: ", "a call failed for a reason that has no code", "rows changed under their lock",
	} {
		if i := bytes.Index(log, []byte(bad)); i >= 0 {
			r.t.Errorf("%s logged %q:\n%s", r.name, bad, log[max(0, i-200):min(len(log), i+3000)])
		}
	}
	if r.t.Failed() {
		r.t.Logf("log of %s:\n%s", r.name, lastLines(log, 25))
	}
	if dir := os.Getenv("LEASEHOLD_FAULTS_LOGS"); dir != "" {
		name := strings.ReplaceAll(r.t.Name(), "/", "_") + "-" + r.name + "-" + strconv.Itoa(os.Getpid()) + ".log"
		if err := os.WriteFile(filepath.Join(dir, name), log, 0o600); err != nil {
			r.t.Log(err)
		}
	}
}

// lastLines are the last lines of a log, but for those that only repeat that a call ended.
func lastLines(text []byte, n int) string {
	var lines []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "finished call") && !strings.Contains(line, "storage is unavailable") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
