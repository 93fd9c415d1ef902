package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/leasehold/leasehold/server/internal/demo"
)

type demoCommand struct {
	Coupons int `default:"2000" help:"Coupons to send; 100 to 5000."`
}

// Validate is called when the command was parsed.
func (c *demoCommand) Validate() error {
	return checkNumber("coupons", c.Coupons, demo.FewestCoupons, demo.MostCoupons)
}

// Run plays the demo. stdout carries its story, whose last line is the verdict.
func (c *demoCommand) Run(ctx context.Context, to console) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run replicas by: %w", err)
	}
	return demo.Run(ctx, demo.Config{Coupons: c.Coupons, Program: program, Out: to.out, Err: to.err})
}

// demoWorkerCommand is one of the demo's workers, a process of its own.
type demoWorkerCommand struct {
	Name     string        `required:"" help:"Name of the worker."`
	Replicas []string      `required:"" help:"Addresses of the servers."`
	Mailbox  string        `required:"" help:"URL of the mail provider's database."`
	Pace     time.Duration `required:"" help:"Time that a coupon takes."`
	Fate     string        `enum:",sleep,die" default:"" help:"What happens to it: sleep, die, or nothing."`
	At       int64         `default:"0" help:"With which of its coupons, from 1."`
	Log      logSettings   `embed:"" prefix:"log-"`
}

// Run works until ctx ends.
func (c *demoWorkerCommand) Run(ctx context.Context, to console) error {
	return demo.Work(ctx, demo.WorkerConfig{
		Name: c.Name, Replicas: c.Replicas, Mailbox: c.Mailbox, Pace: c.Pace, Fate: c.Fate, At: c.At,
		Out: to.out, Logger: c.Log.logger(to.err),
	})
}
