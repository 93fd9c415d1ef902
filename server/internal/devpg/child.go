package devpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// child is a process that we started, and that ends when we do.
type child struct {
	pid    int
	exited chan struct{}
	// err is how it ended; to be read after exited is closed.
	err  error
	proc *os.Process
}

// startChild starts a process as an account, in a process group of its own: a
// Ctrl-C at the terminal is ours to handle, in our order.
func startChild(cmd *exec.Cmd, who account, tied bool) (*child, error) {
	cmd.Env = childEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who.credential, Setpgid: true}
	if tied {
		endWithParent(cmd.SysProcAttr)
	}
	c := &child{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that started the
		// child ends, so this thread stays with it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	c.pid, c.proc = cmd.Process.Pid, cmd.Process
	return c, nil
}

// signal sends a signal; that the child has ended is no error.
func (c *child) signal(sig syscall.Signal) error {
	if err := c.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, c.pid, err)
	}
	return nil
}

// killGroup ends the child and what it started in its own process group.
func (c *child) killGroup() {
	_ = syscall.Kill(-c.pid, syscall.SIGKILL) // It may have ended meanwhile.
	<-c.exited
}

// status is the child's end in words.
func (c *child) status() string {
	if c.err == nil {
		return "exit status 0"
	}
	return c.err.Error()
}
