// Command leasehold is the scheduler: `serve` runs it against a PostgreSQL, `dev` with one of
// its own. It is the outermost layer: it may import everything of the server's, and nothing
// imports it. main.go has the commands, settings.go what can be set, run.go puts the parts
// together.
//
// stdout carries one line, when the server is ready, of `demo` its story, of `drill` and `bench` their reports; logs and hints go
// to stderr. The status is 0 after an end that was asked for, 1 after a failure, 2 if a setting
// is wrong.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/alecthomas/kong"
)

// version is set by the linker.
var version = "dev"

// commands are what can be typed after the program's name.
type commands struct {
	Serve   serveCommand   `cmd:"" help:"Run the server against a PostgreSQL."`
	Dev     devCommand     `cmd:"" help:"Run the server on a PostgreSQL of its own, with a small worker to try things with."`
	Migrate migrateCommand `cmd:"" help:"Bring a database's schema up to date, or look at it."`
	Outbox  outboxCommand  `cmd:"" help:"Work on the events that wait to be published."`
	Purge   purgeCommand   `cmd:"" help:"Remove at once what the servers remove little by little: executions that ended long ago, and old events."`
	Worker  workerCommand  `cmd:"" help:"Run a program for each attempt of a step: a shell script as a worker."`
	Demo    demoCommand    `cmd:"" help:"Send coupons on three servers, six workers and NATS, while some of them are killed and frozen; two minutes at most."`
	Drill   drillCommand   `cmd:"" help:"Before you go live: kill, freeze and cut off every part of an installation under load, and check that nothing is lost or doubled; some minutes."`
	Bench   benchCommand   `cmd:"" help:"Measure how fast the service is here: throughput, latencies, and what PostgreSQL does for it."`
	Version versionCommand `cmd:"" help:"Print the version."`

	DemoWorker  demoWorkerCommand  `cmd:"" hidden:"" help:"A worker of the demo."`
	DrillWorker drillWorkerCommand `cmd:"" hidden:"" help:"A worker of the drill."`
}

func main() {
	os.Exit(execute(os.Args[1:], console{out: os.Stdout, err: os.Stderr}))
}

// console is where commands write.
type console struct {
	out io.Writer // what programs read
	err io.Writer // what people read
}

// execute runs the command that the arguments name, and returns the status to exit with.
func execute(args []string, to console) int {
	parser, err := newParser(to)
	if err != nil {
		return fail(to, 2, err)
	}
	selected, err := parser.Parse(args)
	if err != nil {
		return fail(to, 2, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From the first signal on, the next one ends the process at once.
	context.AfterFunc(ctx, stop)
	selected.BindTo(ctx, (*context.Context)(nil))
	if err := selected.Run(to); err != nil {
		return fail(to, 1, err)
	}
	return 0
}

func newParser(to console) (*kong.Kong, error) {
	return kong.New(&commands{},
		kong.Name("leasehold"),
		kong.Description("A gRPC task scheduler on PostgreSQL. Each flag can also be set by the environment variable that is named with it."),
		kong.DefaultEnvars("LEASEHOLD"),
		kong.Writers(to.out, to.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)
}

func fail(to console, status int, err error) int {
	fmt.Fprintf(to.err, "leasehold: %v\n", err)
	return status
}

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(to console) error {
	_, err := fmt.Fprintf(to.out, "leasehold %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
