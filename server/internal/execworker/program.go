package execworker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

const (
	stderrTail = 4 << 10                // bytes of stderr that stand in a failure
	killSoon   = 200 * time.Millisecond // well within what the SDK leaves handlers when the worker stops
	pipeWait   = time.Second            // for output that others of the group hold open
)

// program is one run of the command.
type program struct {
	path  string
	args  []string
	env   []string
	input []byte
	notes notebook
	lease time.Duration // as granted
	c     *Config

	output limited
	errors tail
}

// run starts the program and waits for its end, which comes soon after that of ctx.
func (p *program) run(ctx context.Context) (*leaseholdv1.Payload, error) {
	p.output.room, p.errors.room = p.c.MaxOutput, stderrTail
	cmd := &exec.Cmd{
		Path: p.path, Args: p.args, Env: append(os.Environ(), p.env...), Stdin: bytes.NewReader(p.input),
		Stdout: &p.output, Stderr: io.MultiWriter(&p.errors, passing{p.c.Stderr}), WaitDelay: pipeWait,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	endWithParent(cmd.SysProcAttr)
	notes, err := p.takeNotes(cmd)
	if err != nil {
		return nil, worker.WithType(err, TypeStart)
	}
	defer notes.finish()
	// The signal at the parent's death is sent when the thread that started the program ends: so
	// this goroutine keeps its own as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, worker.WithType(fmt.Errorf("start %s: %w", p.path, err), TypeStart)
	}
	notes.started()
	over := make(chan struct{})
	ended := make(chan struct{})
	go func() { defer close(ended); p.stopWith(ctx, cmd.Process.Pid, over) }()
	err = cmd.Wait()
	close(over)
	<-ended
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what has outlived its leader
	if ctx.Err() != nil && err != nil {                 // one that came to its end all the same has done its work
		return nil, context.Cause(ctx)
	}
	return p.outcome(err)
}

// stopWith stops the group when ctx ends before the program.
func (p *program) stopWith(ctx context.Context, group int, over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-ctx.Done():
	}
	_ = syscall.Kill(-group, syscall.SIGTERM)
	timer := time.NewTimer(p.patience(context.Cause(ctx)))
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
}

// patience is how long the program gets to end by itself. Only a cancel leaves it time: else its
// lease is over, or handed back, in a moment, and somebody else may have the step. The SDK ends
// the context a twentieth of the lease before that, or half a second.
func (p *program) patience(cause error) time.Duration {
	if errors.Is(cause, worker.ErrCanceled) {
		return p.c.KillAfter
	}
	return min(p.c.KillAfter, killSoon, p.lease/40)
}

// outcome says what the program's end means for the attempt.
func (p *program) outcome(err error) (*leaseholdv1.Payload, error) {
	var exit *exec.ExitError
	succeeded := err == nil || errors.Is(err, exec.ErrWaitDelay)
	switch {
	case succeeded && p.output.over: // the output of one that failed is no result
		return nil, worker.Permanent(worker.WithType(fmt.Errorf("the program wrote more than %d bytes", p.c.MaxOutput), worker.TypeResultTooLarge))
	case succeeded:
		return payloadOf(p.output.kept), nil
	case !errors.As(err, &exit):
		return nil, worker.WithType(fmt.Errorf("run %s: %w", p.path, err), TypeStart)
	case exit.ExitCode() == TempFail:
		return nil, worker.Release(p.describe("the program asks to be tried later (exit status 75)"), p.c.TempFailDelay)
	case exit.ExitCode() == p.c.PermanentExit:
		return nil, worker.Permanent(worker.WithType(errors.New(p.describe(exit.Error())), TypeExit))
	case exit.ExitCode() < 0:
		return nil, worker.WithType(errors.New(p.describe(exit.Error())), TypeSignal)
	default:
		return nil, worker.WithType(errors.New(p.describe(exit.Error())), TypeExit)
	}
}

// describe adds what the program said last.
func (p *program) describe(end string) string {
	said := strings.TrimSpace(strings.ToValidUTF8(string(p.errors.kept), "\uFFFD"))
	if said == "" {
		return end
	}
	return end + ": " + said
}

// payloadOf is JSON where the output is one JSON value, else the bytes as they are.
func payloadOf(output []byte) *leaseholdv1.Payload {
	switch {
	case len(output) == 0:
		return nil
	case json.Valid(output) && utf8.Valid(output):
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(output)}, ContentType: "application/json"}
	case utf8.Valid(output):
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: output}, ContentType: "text/plain; charset=utf-8"}
	default:
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Data{Data: output}, ContentType: "application/octet-stream"}
	}
}

// limited keeps what it has room for, and takes the rest without keeping it, so that the
// program does not wait for ever.
type limited struct {
	kept []byte
	room int
	over bool
}

// Write never fails.
func (l *limited) Write(b []byte) (int, error) {
	if len(l.kept)+len(b) > l.room {
		l.over = true
		return len(b), nil
	}
	l.kept = append(l.kept, b...)
	return len(b), nil
}

// tail keeps the last bytes.
type tail struct {
	kept []byte
	room int
}

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if n := len(t.kept); n > t.room {
		t.kept = append(t.kept[:0], t.kept[n-t.room:]...)
	}
	return len(b), nil
}

// passing hands on what it can: that the worker's own stderr takes nothing, its disk being full,
// is no fault of the program, whose work is done.
type passing struct{ to io.Writer }

// Write never fails.
func (w passing) Write(b []byte) (int, error) {
	_, _ = w.to.Write(b)
	return len(b), nil
}
