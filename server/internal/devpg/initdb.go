package devpg

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const initPrefix = "init-"

// initialise has PostgreSQL's folder made if it is absent. It is made under
// another name and renamed when whole, so that a kill in between leaves none that
// is half made.
func (f *folder) initialise(ctx context.Context, fill func(ctx context.Context, target string) error) error {
	halves, _ := filepath.Glob(filepath.Join(f.path, initPrefix+"*")) // The only error is a malformed pattern.
	for _, half := range halves {
		if err := removeAll(half); err != nil {
			return fmt.Errorf("remove a half-made data folder: %w", err)
		}
	}
	if _, err := os.Stat(f.pgdata()); err == nil {
		return nil
	}
	half, err := os.MkdirTemp(f.path, initPrefix)
	if err != nil {
		return fmt.Errorf("make PostgreSQL's folder: %w", err)
	}
	defer os.RemoveAll(half)
	if err := f.who.own(half); err != nil {
		return err
	}
	made := filepath.Join(half, "pgdata")
	if err := fill(ctx, made); err != nil {
		return err
	}
	if err := os.Rename(made, f.pgdata()); err != nil {
		return fmt.Errorf("put PostgreSQL's folder in place: %w", err)
	}
	return nil
}

// initdb makes a cluster whose superuser has no password yet; and whose texts
// are compared by their bytes, which is the same on every system.
func (f *folder) initdb(ctx context.Context, bin Binaries, target string, sync bool) error {
	args := []string{
		"--pgdata=" + target, "--username=" + superuser, "--encoding=UTF8", "--locale=C",
		"--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions",
	}
	if !sync {
		args = append(args, "--no-sync")
	}
	return f.tool(ctx, filepath.Dir(target), bin.initdb(), args...)
}

// tool runs one of PostgreSQL's programs to its end, as the server's user.
func (f *folder) tool(ctx context.Context, dir, program string, args ...string) error {
	name := filepath.Base(program)
	var output bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = &output, &output
	c, err := startChild(cmd, f.who, true)
	if err != nil {
		return err
	}
	select {
	case <-c.exited:
	case <-ctx.Done():
		c.killGroup()
		return fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	if c.err != nil {
		return &StartError{Err: fmt.Errorf("%s: %w", name, c.err), LogTail: lastLines(output.Bytes())}
	}
	return nil
}
