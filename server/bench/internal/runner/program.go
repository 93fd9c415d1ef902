package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

const (
	stopLimit = 20 * time.Second // for a run that is told to end
	tailBytes = 2000             // of what a failed run said
	runLimit  = 4 * time.Hour    // for a run that hangs: longer than any that works
)

// program is one side of a comparison: each run is a process of its own.
type program struct {
	name string
	path string
	args []string // before those of the scenario
}

// run runs a scenario on a database. Where a run failed and yet told a result, both are returned.
func (p *program) run(ctx context.Context, name string, args []string, database string) (*result.Run, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit, fmt.Errorf("a run lasts longer than %s", runLimit))
	defer cancel()
	all := append(append(append([]string{}, p.args...), args...), "--json", "--database-url", database)
	cmd := exec.CommandContext(ctx, p.path, all...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &said, plainEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	failed := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
	}
	r, err := result.Read(&out, name)
	if failed != nil {
		return r, fmt.Errorf("%s: %s: %w%s", p.name, strings.Join(args, " "), failed, tail(said.String()))
	}
	if err == nil && (r.Rate <= 0 || r.Count <= 0) {
		err = errors.New("nothing was done")
	}
	if err != nil {
		return r, fmt.Errorf("%s: %s: %w%s", p.name, strings.Join(args, " "), err, tail(said.String()))
	}
	return r, nil
}

// plainEnv is our environment without settings of the program, which are not what is measured.
func plainEnv() []string {
	var env []string
	for _, setting := range os.Environ() {
		if !strings.HasPrefix(setting, "LEASEHOLD_") || strings.HasPrefix(setting, "LEASEHOLD_PG_BIN=") {
			env = append(env, setting)
		}
	}
	return env
}

func tail(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	return "\n" + text[max(0, len(text)-tailBytes):]
}
