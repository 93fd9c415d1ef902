package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/leasehold/leasehold/server/bench/internal/river"
	"github.com/leasehold/leasehold/server/bench/internal/runner"
)

type commands struct {
	Run   runCommand   `cmd:"" default:"withargs" help:"Measure by turns, and print the ratios."`
	River riverCommand `cmd:"" help:"Run a scenario on River, once."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c commands
	k := kong.Parse(&c, kong.Name("bench"), kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Description("Measures Leasehold against what users would take instead, and against PostgreSQL itself."))
	k.FatalIfErrorf(k.Run())
}

type runCommand struct {
	Scenarios []string `arg:"" optional:"" name:"scenario" help:"Names, such as P1 P4; by default all of the form."`
	Leasehold string   `default:"bin/leasehold" type:"path" help:"The program that is measured."`
	URL       string   `name:"database-url" placeholder:"URL" help:"PostgreSQL of yours, on which databases may be made; it must commit durably. Without it there is a private one."`
	Short     bool     `help:"The short form: P1, P2, P4, P5 and P10, smaller, within twelve minutes."`
	Pairs     int      `default:"5" help:"Runs of both sides of each scenario; P6 has three at most."`
}

// Run measures.
func (c *runCommand) Run(ctx context.Context) error {
	if c.Pairs < 1 {
		return errors.New("--pairs: at least 1")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run the peers by: %w", err)
	}
	return runner.Run(ctx, runner.Config{
		Ours: c.Leasehold, Peer: self, URL: c.URL, Scenarios: c.Scenarios, Short: c.Short, Pairs: c.Pairs, Out: os.Stdout, Err: os.Stderr,
	})
}

type riverCommand struct {
	Scenario  string  `arg:"" enum:"P1,P2,P3,P4,P6" help:"P1, P2, P3, P4 or P6."`
	URL       string  `name:"database-url" required:"" placeholder:"URL" help:"An empty database."`
	JSON      bool    `name:"json" help:"Accepted, as leasehold bench has it: the result is always JSON."`
	Count     int     `name:"executions" default:"100000" help:"P2, P3: jobs. P6: jobs of each drain."`
	Seconds   float64 `default:"20" help:"P1, P4, P6: how long."`
	Producers int     `default:"32" help:"P1, P3: goroutines that insert."`
	Batch     int     `default:"100" help:"P3: jobs of one call."`
	Rate      float64 `default:"100" help:"P4: jobs a second."`
	Snapshot  bool    `help:"P6: hold a snapshot open in another transaction."`
}

// Run runs the scenario.
func (c *riverCommand) Run(ctx context.Context) error {
	r, err := river.Run(ctx, river.Config{
		URL: c.URL, Scenario: c.Scenario, Count: c.Count, Duration: time.Duration(c.Seconds * float64(time.Second)), Producers: c.Producers, Batch: c.Batch, Rate: c.Rate,
		Snapshot: c.Snapshot, Logger: river.Quiet(),
	})
	if err != nil {
		return err
	}
	return r.Write(os.Stdout)
}
