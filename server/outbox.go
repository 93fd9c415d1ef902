package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

type outboxCommand struct {
	Discard discardCommand `cmd:"" help:"Skip the events that wait to be published, for good: after a sink was switched off, they would keep their executions for ever. It works beside servers that run, and without any."`
}

// discardCommand settles what nobody will publish.
type discardCommand struct {
	Database  databaseFlag `embed:""`
	Namespace string       `default:"" help:"Only events of this namespace; empty means all."`
	Status    []string     `default:"PENDING,FAILED,DEAD" enum:"PENDING,FAILED,DEAD" help:"Only events of these states, with commas. One that a server is just publishing is left alone."`
	Reason    string       `default:"" help:"Why, for the timelines of the executions; at most 1024 bytes. It must be given, but for a dry run."`
	DryRun    bool         `help:"Change nothing; tell how many it would be."`
	Log       logSettings  `embed:"" prefix:"log-"`
}

const longestReason = 1024

// Validate is called when the command was parsed.
func (c *discardCommand) Validate() error {
	var reason error
	switch {
	case c.Reason == "" && !c.DryRun:
		reason = errors.New("--reason is not set; it says in the executions' timelines why their events are not published")
	case len(c.Reason) > longestReason:
		reason = fmt.Errorf("--reason has %d bytes, and may have at most %d", len(c.Reason), longestReason)
	}
	return join(checkDatabaseURL(c.Database.URL), reason)
}

// Run discards batch by batch, each of which commits. When it is cut off, what was done is done.
func (c *discardCommand) Run(ctx context.Context, to console) error {
	if err := postgres.CheckSchema(ctx, c.Database.URL); err != nil {
		return err
	}
	store, err := postgres.Open(ctx, postgres.Config{URL: c.Database.URL, MaxConns: fewestConns, Logger: c.Log.logger(to.err)})
	if err != nil {
		return err
	}
	defer store.Close()
	operator := outbox.NewOperator(store.Outbox(), nil)
	selected := outbox.Selection{Namespace: c.Namespace}
	for _, s := range c.Status {
		selected.Statuses = append(selected.Statuses, outbox.Status(s))
	}
	if c.DryRun {
		total, err := operator.Count(ctx, outbox.Skip, selected)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(to.out, "would discard %s\n", told(total))
		return err
	}
	var all outbox.Total
	for more := true; more; {
		total, err := operator.Change(ctx, outbox.Skip, selected, c.Reason)
		all.Events, all.Executions = all.Events+total.Events, all.Executions+total.Executions
		if err != nil {
			return fmt.Errorf("%w; %s are discarded, run it again for the rest", err, told(all))
		}
		more = total.More
	}
	_, err = fmt.Fprintf(to.out, "discarded %s\n", told(all))
	return err
}

func told(t outbox.Total) string {
	return number(t.Events, "event") + " of " + number(t.Executions, "execution")
}

// number tells how many of a thing there are.
func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
