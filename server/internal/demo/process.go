package demo

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

// process is a `leasehold` that we started. On Linux it ends when we do, however we end;
// elsewhere a demo that is killed by SIGKILL leaves its replicas behind.
type process struct {
	name   string
	cmd    *exec.Cmd
	lines  chan string   // of its stdout; closed at its end
	exited chan struct{} // closed at its end
	ending atomic.Bool   // it was told to end
}

// startProcess runs our own program with other arguments. Its logs go to a file.
func startProcess(program, folder, name string, env []string, args ...string) (*process, error) {
	log, err := os.Create(filepath.Join(folder, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer writer.Close()
	p := &process{name: name, cmd: exec.Command(program, args...), lines: make(chan string, 16), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = writer, log, append(plainEnv(), env...)
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
func (p *process) run() error {
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

// line waits for the next line of stdout.
func (p *process) line(ctx context.Context) (string, error) {
	select {
	case text, ok := <-p.lines:
		if !ok {
			return "", fmt.Errorf("%s ended", p.name)
		}
		return text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("%s says nothing: %w", p.name, context.Cause(ctx))
	}
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// kill ends the process as a crash does.
func (p *process) kill() error {
	p.ending.Store(true)
	err := p.signal(syscall.SIGKILL)
	<-p.exited
	return err
}

// stop asks the process to end, also one that is frozen, and then makes it end.
func (p *process) stop() {
	p.ending.Store(true)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		if err := p.signal(s); errors.Is(err, os.ErrProcessDone) {
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
