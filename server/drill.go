package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leasehold/leasehold/server/internal/drill/live"
)

type drillCommand struct {
	URL      string   `name:"database-url" placeholder:"URL" help:"Database of yours to drill on, in namespaces of its own, whose rows are removed in the end; its schema is brought up to date, and it must not be at work. Drills that stop or move the database itself are then skipped. Without it there is a private one."`
	Only     []string `default:"" help:"Names of the drills to run, with commas; by default all."`
	Soak     int      `default:"0" help:"Not the drills, but faults at random under as much load as the machine carries, until so many attempts were made; 0: none of that."`
	List     bool     `help:"Print the drills, and run none."`
	JSON     bool     `name:"json" help:"Report as JSON."`
	KeepLogs bool     `help:"Keep the logs and histories, and say where."`
}

// Validate is called when the command was parsed.
func (c *drillCommand) Validate() error {
	if c.URL != "" {
		if err := checkDatabaseURL(c.URL); err != nil {
			return err
		}
	}
	if c.Soak < 0 || c.Soak > 0 && (c.URL != "" || len(c.Only) > 0) {
		return errors.New("--soak: a number of attempts, without --only and --database-url")
	}
	return live.Check(c.Only)
}

// Run runs the drills. stdout carries the report.
func (c *drillCommand) Run(ctx context.Context, to console) error {
	if c.List {
		return live.List(to.out)
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run replicas by: %w", err)
	}
	return live.Run(ctx, live.Config{
		Program: program, DatabaseURL: c.URL, Only: c.Only, Soak: c.Soak, JSON: c.JSON, KeepLogs: c.KeepLogs, Out: to.out, Err: to.err,
	})
}

// drillWorkerCommand is one of the drill's workers, a process of its own.
type drillWorkerCommand struct {
	Name      string        `required:"" help:"Name of the worker."`
	Namespace string        `required:"" help:"Namespace to work in."`
	Replicas  []string      `required:"" help:"Addresses of the servers."`
	History   string        `required:"" help:"File that takes what the worker does."`
	Slots     int           `required:"" help:"Steps at once."`
	Pace      time.Duration `required:"" help:"Time that a step takes."`
	Sleepwalk bool          `help:"Be frozen with the first step, and report it late."`
	Log       logSettings   `embed:"" prefix:"log-"`
}

// Run works until ctx ends.
func (c *drillWorkerCommand) Run(ctx context.Context, to console) error {
	return live.Work(ctx, live.WorkerConfig{
		Name: c.Name, Namespace: c.Namespace, Replicas: c.Replicas, History: c.History, Slots: c.Slots, Pace: c.Pace,
		Sleepwalk: c.Sleepwalk, Out: to.out, Logger: c.Log.logger(to.err),
	})
}
