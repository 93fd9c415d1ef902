// Command lend runs an empty PostgreSQL for tests that cannot import devpg, those of the
// packages in api/: it prints the server's URL, and ends it when its stdin ends, and so with
// the test that started it, however that ends. It may import devpg.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/leasehold/leasehold/server/internal/devpg"
)

func main() {
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // Ctrl-C ends the test, and that our stdin.
	if err := lend(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// lend gives up durability for speed: who needs it starts a server of its own.
func lend(ctx context.Context, until io.Reader, to io.Writer) error {
	pg, err := devpg.Start(ctx, devpg.Config{Ephemeral: true, Settings: map[string]string{
		"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
	}})
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(to, pg.URL()); err == nil {
		_, err = io.Copy(io.Discard, until)
	}
	if stopped := pg.Stop(ctx); err == nil {
		err = stopped
	}
	return err
}
