// Command ensure sees to it, before the tests run, that this machine has a
// PostgreSQL to run them on: it finds one, or installs one where it may (as root
// on Debian and Ubuntu), or says what to type and ends with status 1. It may
// import devpg.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/leasehold/leasehold/server/internal/devpg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	found, err := devpg.FindOrInstall(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "PostgreSQL %s in %s\n", found.Version, found.Dir)
}
