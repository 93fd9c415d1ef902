package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/server/internal/execworker"
)

// workerCommand runs a program for each attempt.
type workerCommand struct {
	Address      []string          `default:"127.0.0.1:50051" help:"Where a server is reached; several with commas."`
	Capability   []string          `required:"" placeholder:"NAME" help:"What the program can do; several with commas."`
	Slots        int               `default:"1" help:"Programs that run at once; 1 to 10000."`
	Namespace    string            `default:"default" help:"Namespace to work for."`
	Name         string            `default:"" help:"The worker's name; another process that takes it ends this one. By default a unique one is made."`
	Node         string            `default:"" help:"Where it runs; steps can be pinned to it."`
	Label        map[string]string `placeholder:"KEY=VALUE" help:"Labels, for people."`
	Lease        time.Duration     `name:"lease-duration" default:"30s" help:"How long the work of a worker that died lies still; 1s to 1h."`
	Wait         time.Duration     `name:"wait-timeout" default:"20s" help:"How long a poll waits for work, below the idle timeout of proxies on the way; 1s to 55s."`
	Grace        time.Duration     `default:"10s" help:"Time that programs get to finish when the worker stops."`
	KillAfter    time.Duration     `default:"5s" help:"Time between SIGTERM and SIGKILL for a program whose execution is cancelled; when its lease or the grace is over SIGKILL follows at once."`
	Permanent    int               `name:"permanent-exit-code" default:"65" help:"Exit code of a failure that trying again cannot cure; 1 to 255, but 75, which hands the attempt back."`
	HandBack     time.Duration     `name:"temporary-delay" default:"1s" help:"Time until a step that was handed back (exit code 75) is due again."`
	MaxOutput    int               `name:"max-output-bytes" default:"1048576" help:"What a program may write to stdout."`
	Log          logSettings       `embed:"" prefix:"log-"`
	ProgramWords []string          `arg:"" name:"program" passthrough:"" help:"The program and its arguments, after two dashes: it gets the input on stdin, writes the output to stdout, and finds the rest in LEASEHOLD_* variables."`
}

// Validate is called when the command was parsed.
func (c *workerCommand) Validate() error {
	var status error
	if c.Permanent == execworker.TempFail {
		status = fmt.Errorf("--permanent-exit-code: %d hands an attempt back", execworker.TempFail)
	}
	var program error
	if words := c.program(); len(words) == 0 {
		program = errors.New("name a program after two dashes, as in: leasehold worker --capability thumbnails -- ./make-thumb.sh")
	}
	return join(
		checkNumber("slots", c.Slots, 1, 10_000),
		checkDuration("lease-duration", c.Lease, time.Second),
		checkDuration("wait-timeout", c.Wait, time.Second),
		checkDuration("kill-after", c.KillAfter, 1),
		checkNumber("permanent-exit-code", c.Permanent, 1, 255),
		checkNumber("max-output-bytes", c.MaxOutput, 1, largestMessage),
		status, program,
	)
}

// program is what follows the two dashes.
func (c *workerCommand) program() []string {
	if len(c.ProgramWords) > 0 && c.ProgramWords[0] == "--" {
		return c.ProgramWords[1:]
	}
	return c.ProgramWords
}

// Run works until ctx ends.
func (c *workerCommand) Run(ctx context.Context, to console) error {
	return execworker.Run(ctx, execworker.Config{
		Worker: worker.Config{
			Addresses: c.Address, Namespace: c.Namespace, Name: c.Name, Node: c.Node, Labels: c.Label, Version: "leasehold " + version,
			Slots: c.Slots, LeaseDuration: c.Lease, WaitTimeout: c.Wait, Grace: graceOf(c.Grace), Logger: c.Log.logger(to.err),
		},
		Capabilities: c.Capability, Command: c.program(), PermanentExit: c.Permanent, TempFailDelay: c.HandBack,
		MaxOutput: c.MaxOutput, KillAfter: c.KillAfter, Stderr: to.err,
	})
}

// graceOf is none for 0, which the SDK takes for its default.
func graceOf(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
