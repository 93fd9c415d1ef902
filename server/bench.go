package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leasehold/leasehold/server/internal/bench"
)

type benchCommand struct {
	Scenarios []string `arg:"" optional:"" name:"scenario" help:"Names of scenarios, such as P1 P4; or all."`

	URL      string   `name:"database-url" placeholder:"URL" help:"PostgreSQL of yours to measure. Each scenario makes a database of its own beside the one that is named, and drops it in the end, so the role must be allowed to. Without it there is a private one."`
	List     bool     `help:"Print the scenarios with the flags that change them, and run none."`
	JSON     bool     `name:"json" help:"Print a line of JSON for each scenario."`
	KeepLogs bool     `help:"Keep the servers' logs, and say where."`
	Serve    []string `name:"serve-flag" sep:"none" placeholder:"FLAG" help:"Further flag of the servers, such as --serve-flag=--database-max-conns=20; may be repeated."`

	Size       float64 `default:"1" help:"Multiplies the executions, seconds, polls and leases of the scenarios."`
	Executions int     `default:"0" help:"Executions of a scenario, instead of its own; 0: its own."`
	Seconds    float64 `default:"0" help:"Time that a scenario takes, in seconds, instead of its own; 0: its own."`
	Pairs      int     `default:"0" help:"Times that a scenario is compared with itself, instead of its own; 0: its own."`
	Workers    int     `default:"4" help:"Workers."`
	Slots      int     `default:"100" help:"Steps that a worker holds at once, at most."`
	LeaseMost  int     `default:"50" help:"Leases that a worker asks for at once; 1 to 500."`
	Producers  int     `default:"32" help:"Producers that enqueue one by one, in P1, P8 and P10."`
	Batch      int     `default:"100" help:"Executions of a batch, in P3; 1 to 500."`
	Rate       float64 `default:"100" help:"Enqueues in a second, in P4 and P7."`
	Backlogs   []int   `default:"10000,100000,1000000,5000000" help:"Executions that wait, in P5; the first number is what the others are compared with."`
	Replicas   int     `default:"3" help:"Servers, in P8, at most."`
	Polls      int     `default:"0" help:"Polls that wait, in P7; 0: 10,000 by --size."`
	Leases     int     `default:"0" help:"Leases that are renewed, in P10; 0: 10,000 by --size."`
}

const (
	largestLeaseMost = 500 // A report takes no more.
	largestSlots     = 10_000
	mostSeconds      = 24 * 60 * 60
	mostExecutions   = 100_000_000
)

// Validate is called when the command was parsed.
func (c *benchCommand) Validate() error {
	if c.List {
		return nil
	}
	if c.URL != "" {
		if err := checkDatabaseURL(c.URL); err != nil {
			return err
		}
	}
	for _, n := range c.Backlogs {
		if n < 1 || n > mostExecutions {
			return fmt.Errorf("--backlogs: %d is not from 1 to %d", n, mostExecutions)
		}
	}
	var size, seconds, rate error
	// What is no number is not within any bounds.
	if inside := c.Size > 0 && c.Size <= 1000; !inside {
		size = errors.New("--size must be more than 0, and at most 1000")
	}
	if inside := c.Seconds >= 0 && c.Seconds <= mostSeconds; !inside {
		seconds = fmt.Errorf("--seconds must be from 0 to %d", mostSeconds)
	}
	if inside := c.Rate > 0 && c.Rate <= 100_000; !inside {
		rate = errors.New("--rate must be more than 0, and at most 100000")
	}
	return join(
		bench.Check(c.Scenarios), size, seconds, rate,
		checkNumber("executions", c.Executions, 0, mostExecutions),
		checkNumber("pairs", c.Pairs, 0, 1000),
		checkNumber("workers", c.Workers, 1, 1000),
		checkNumber("slots", c.Slots, 1, largestSlots),
		checkNumber("lease-most", c.LeaseMost, 1, largestLeaseMost),
		checkNumber("producers", c.Producers, 1, 10_000),
		checkNumber("batch", c.Batch, 1, 500),
		checkNumber("replicas", c.Replicas, 1, 20),
		checkNumber("polls", c.Polls, 0, 100_000),
		checkNumber("leases", c.Leases, 0, mostExecutions),
	)
}

// Run measures. stdout carries the results.
func (c *benchCommand) Run(ctx context.Context, to console) error {
	if c.List {
		return bench.List(to.out)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run servers by: %w", err)
	}
	return bench.Run(ctx, bench.Config{
		Program: program, DatabaseURL: c.URL, Scenarios: c.Scenarios, ServeFlags: c.Serve, JSON: c.JSON, KeepLogs: c.KeepLogs, Out: to.out, Err: to.err,
		Size: c.Size, Executions: c.Executions, Duration: time.Duration(c.Seconds * float64(time.Second)), Pairs: c.Pairs,
		Workers: c.Workers, Slots: c.Slots, LeaseMost: c.LeaseMost, Producers: c.Producers, Batch: c.Batch, Rate: c.Rate,
		Backlogs: c.Backlogs, Replicas: c.Replicas, Polls: c.Polls, Leases: c.Leases,
	})
}
