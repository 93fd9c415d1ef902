// Command bench measures Leasehold against what users would take instead, and against the physical
// limit of the same PostgreSQL. `make bench` runs its short form, `make bench-full` all of it;
// `leasehold bench` is the other side, a part of the product, and knows nothing of this program.
//
// It is a module of its own, so that the service does not depend on what it is compared with; it
// lies below server/ and may therefore use the service's internal packages.
//
// # How it compares
//
// A machine's speed changes from minute to minute, most of all one that is shared. So a figure by
// itself is for orientation only, and what counts is a ratio: both sides run by turns, A B A B, on
// one PostgreSQL, five pairs unless --pairs says otherwise. Each pair has its ratio; the median is
// printed with the smallest and the largest, a line for each scenario as soon as it is over:
//
//	P1 ratio 2.31 min 2.10 max 2.50 lost 0 doubled 0 ours 4200/s peer 1820/s
//
// Of rates that is ours by theirs. Of P4 it is ours by theirs too, so that less is better; the
// line tells that percentile, p50 or p99, which is further from its goal. Scenarios that compare
// Leasehold with itself are run by `leasehold bench` with all their pairs, and have no sides in the
// line. P7 has bounds only: its ratio is the used part of the tighter one. A table of goals ends it.
//
// What was accepted and not done is lost, what was done twice is doubled, on either side. If that
// is not 0, or a run fails, the exit status is 1: such figures are worth nothing. A goal that is
// missed is told in the table and is no failure.
//
// Both sides have the same conditions:
//
//   - One PostgreSQL with fsync, synchronous_commit and full_page_writes on, else nothing is
//     measured. Its other settings are those of `leasehold dev`.
//   - A fresh database for each run, the one before it dropped, and a checkpoint: nobody pays for
//     what the other left behind.
//   - A process of its own for each run, River's too, on the same machine as PostgreSQL.
//   - Work that is nothing but to be counted.
//
// They differ in one thing that favours the peer: River is a library within the worker, and its
// jobs make no call over a network, while Leasehold is a service, whose producers and workers are
// other processes and talk gRPC with it. That is part of what it costs to use it, and so is measured.
//
// # Peers
//
//	internal/river   River, set up for speed as its own benchmark is: P1, P2, P3, P4, P6
//	internal/limit   pgbench, writing the rows of a drain and doing nothing else: P12
//	internal/runner  the pairs, the lines, the goals
//	internal/result  what a run prints; internal/figures what it cost PostgreSQL
//
// Each peer is also a command of this program, which runs one scenario once and prints one JSON
// object, in the form of `leasehold bench --json`: `bench river P6 --snapshot` shows, for instance,
// what an old snapshot does to River, which the runner does not compare.
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

	"github.com/leasehold/leasehold/server/bench/internal/limit"
	"github.com/leasehold/leasehold/server/bench/internal/river"
	"github.com/leasehold/leasehold/server/bench/internal/runner"
)

type commands struct {
	Run   runCommand   `cmd:"" default:"withargs" help:"Measure by turns, and print the ratios."`
	Limit limitCommand `cmd:"" help:"Run P12 on PostgreSQL alone, once: what a drain writes, by pgbench."`
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
	Size      float64  `default:"1" help:"Multiplies the executions and seconds of the scenarios; ratios of small ones say little."`
}

// Run measures.
func (c *runCommand) Run(ctx context.Context) error {
	if c.Pairs < 1 {
		return errors.New("--pairs: at least 1")
	}
	if positive := c.Size > 0; !positive { // What is no number is not.
		return errors.New("--size: more than 0")
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program to run the peers by: %w", err)
	}
	return runner.Run(ctx, runner.Config{
		Ours: c.Leasehold, Peer: self, URL: c.URL, Scenarios: c.Scenarios, Short: c.Short, Pairs: c.Pairs, Size: c.Size,
		Out: os.Stdout, Err: os.Stderr,
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

type limitCommand struct {
	URL     string `name:"database-url" required:"" placeholder:"URL" help:"An empty database."`
	JSON    bool   `name:"json" help:"Accepted, as leasehold bench has it: the result is always JSON."`
	Count   int    `name:"executions" default:"100000" help:"Executions."`
	Batch   int    `default:"200" help:"Executions of a round: as many as one of Leasehold's dispatcher."`
	Clients int    `default:"4" help:"Connections."`
}

// Run measures the limit.
func (c *limitCommand) Run(ctx context.Context) error {
	r, err := limit.Run(ctx, limit.Config{URL: c.URL, Count: c.Count, Batch: c.Batch, Clients: c.Clients})
	if err != nil {
		return err
	}
	return r.Write(os.Stdout)
}
