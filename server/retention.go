package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// retentionSettings say for how long things are kept.
type retentionSettings struct {
	Executions keepFor `name:"execution-retention" default:"168h" help:"Time after its end for which an execution is kept, with all that belongs to it; its idempotency key is known as long. Workers that were not seen for so long, an hour at least, go too, unless an operator has drained them. off keeps everything for ever."`
	Events     keepFor `name:"outbox-retention" default:"24h" help:"Time for which an event is kept after it was published or skipped; off keeps it as long as its execution."`
	DeadEvents keepFor `name:"outbox-dead-retention" default:"720h" help:"Time after which an event that is DEAD is dropped, with a word in the log, so that the later events of its execution go on; off keeps it until somebody redrives or skips it."`
}

// keepFor is a duration, or off (0).
type keepFor time.Duration

const shortestRetention = time.Second

// UnmarshalText reads what was typed.
func (k *keepFor) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*k = 0
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is neither off nor a duration such as 168h", text)
	}
	if d < shortestRetention {
		return fmt.Errorf("%s is less than %s; off keeps for ever", d, shortestRetention)
	}
	*k = keepFor(d)
	return nil
}

// retention is what the application is told.
func (s retentionSettings) retention() scheduler.Retention {
	return scheduler.Retention{
		Executions: time.Duration(s.Executions), Events: time.Duration(s.Events), DeadEvents: time.Duration(s.DeadEvents),
	}
}

// purgeCommand does at once what the servers do little by little.
type purgeCommand struct {
	Database databaseFlag      `embed:""`
	Keep     retentionSettings `embed:""`
	DryRun   bool              `help:"Remove nothing; tell how much it would be now."`
	Log      logSettings       `embed:"" prefix:"log-"`
}

// Validate is called when the command was parsed.
func (c *purgeCommand) Validate() error { return checkDatabaseURL(c.Database.URL) }

// Run purges batch by batch, each of which commits. When it is cut off, what was done is done.
func (c *purgeCommand) Run(ctx context.Context, to console) error {
	if err := postgres.CheckSchema(ctx, c.Database.URL); err != nil {
		return err
	}
	log := c.Log.logger(to.err)
	store, err := postgres.Open(ctx, postgres.Config{URL: c.Database.URL, MaxConns: fewestConns, Logger: log})
	if err != nil {
		return err
	}
	defer store.Close()
	removed, err := scheduler.PurgeNow(ctx, store, c.Keep.retention(), c.DryRun, log)
	parts := []string{
		number(removed[scheduler.PurgeExecutions], "execution"), number(removed[scheduler.PurgeEvents], "published or skipped event"),
		number(removed[scheduler.PurgeDeadEvents], "dead event"), number(removed[scheduler.PurgeWorkers], "worker"),
	}
	if err != nil {
		return fmt.Errorf("%w; removed before: %s", err, strings.Join(parts, ", "))
	}
	did := "removed"
	if c.DryRun {
		did = "would remove"
	}
	_, err = fmt.Fprintf(to.out, "%s %s\n", did, strings.Join(parts, ", "))
	return err
}
