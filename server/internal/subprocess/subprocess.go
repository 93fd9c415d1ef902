// Package subprocess runs further processes of our own program, for commands that play with real
// ones: they can be killed and frozen, and end with their parent. It imports nothing of ours.
package subprocess

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const stopLimit = 3 * time.Second // then a process is killed

// Process is a `leasehold` that we started. On Linux it ends when we do, however we end;
// elsewhere a command that is killed by SIGKILL leaves its processes behind.
type Process struct {
	Name string

	cmd    *exec.Cmd
	log    string        // the file to which it writes stderr
	lines  chan string   // of its stdout; closed at its end
	exited chan struct{} // closed at its end
	ending atomic.Bool   // it was told to end
}

// Config says what to run.
type Config struct {
	Program string   // path of our own program
	Folder  string   // takes the log: what the process writes to stderr
	Name    string   // of the process, for people; and of its log, to which later ones add
	Env     []string // beside our own environment without settings of the program
	Args    []string
}

// Start runs our own program with other arguments.
func Start(cfg Config) (*Process, error) {
	name := cfg.Name
	path := filepath.Join(cfg.Folder, name+".log")
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer writer.Close()
	p := &Process{Name: name, cmd: exec.Command(cfg.Program, cfg.Args...), log: path, lines: make(chan string, 16), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = writer, log, append(plainEnv(), cfg.Env...)
	// A process group of its own: a Ctrl-C at the terminal is ours to handle.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(p.cmd.SysProcAttr)
	if err := p.run(); err != nil {
		_ = reader.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer reader.Close()
		defer close(p.lines)
		for text := bufio.NewScanner(reader); text.Scan(); {
			select {
			case p.lines <- text.Text():
			default: // Nobody reads that many.
			}
		}
	}()
	return p, nil
}

// plainEnv is our environment without settings of the program, which are not what is shown.
func plainEnv() []string {
	var env []string
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "LEASEHOLD_") {
			env = append(env, setting)
		}
	}
	return env
}

// run starts the process, and waits for its end beside. The signal that ends it with its
// parent comes when the thread that started it ends, so that thread stays.
func (p *Process) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // What it ended with stands in cmd.ProcessState.
			close(p.exited)
		}
	}()
	return <-started
}

// Line waits for the next line of stdout. If there is none any more the error has the end of the log:
// whoever gave it a wrong setting looks here.
func (p *Process) Line(ctx context.Context) (string, error) {
	select {
	case text, ok := <-p.lines:
		if !ok {
			return "", fmt.Errorf("%s ended: %s", p.Name, p.lastWords())
		}
		return text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("%s says nothing: %w", p.Name, context.Cause(ctx))
	}
}

const tailBytes = 1000 // of a log

// lastWords are the end of the log.
func (p *Process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "it has no log"
	}
	return strings.TrimSpace(string(text[max(0, len(text)-tailBytes):]))
}

// PID is its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.Name, err)
	}
	return nil
}

// Kill ends the process as a crash does.
func (p *Process) Kill() error {
	p.ending.Store(true)
	err := p.Signal(syscall.SIGKILL)
	<-p.exited
	return err
}

// Stop asks the process to end, also one that is frozen, and then makes it end.
func (p *Process) Stop() {
	p.ending.Store(true)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := p.Signal(s); errors.Is(err, os.ErrProcessDone) {
			break
		}
	}
	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// Exited is closed at the end of the process.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ByItself says how a process ended that nobody had told to; or nothing. It may be asked once
// Exited is closed.
func (p *Process) ByItself() error {
	if p.ending.Load() {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %s", p.Name, p.cmd.ProcessState)
}

// Result says how a process failed that was to end by itself; nothing if it did not. It may be
// asked once Exited is closed.
func (p *Process) Result() error {
	if p.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s failed: %s", p.Name, p.cmd.ProcessState)
}
