package main

import (
	"cmp"
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
)

// databaseFlag names the database of the commands that have none of their own.
type databaseFlag struct {
	URL string `name:"database-url" required:"" placeholder:"URL" help:"PostgreSQL 15 or later to work on, such as postgres://user:password@host:5432/leasehold."`
}

type serveCommand struct {
	Database databaseFlag `embed:""`
	Settings settings     `embed:""`
	Direct   string       `name:"direct-database-url" placeholder:"URL" help:"The same database without a pooler, where --database-url leads to one: to listen for hints, and to migrate. Without it such a server finds other replicas' work by looking, each second."`
	Migrate  bool         `help:"Apply the migrations that the database lacks, before the start; safe when several servers start together."`
}

// Validate is called when the command was parsed.
func (c *serveCommand) Validate() error {
	return join(checkDatabaseURL(c.Database.URL), checkDirectURL(c.Direct), c.Settings.check())
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, to console) error {
	cfg := c.Settings
	cfg.DatabaseURL, cfg.DirectURL, cfg.Migrate, cfg.Sink = c.Database.URL, c.Direct, c.Migrate, cmp.Or(cfg.Sink, sinkNone)
	return run(ctx, cfg, cfg.Log.logger(to.err), func(line readyLine) error {
		line.DatabaseURL = withoutPassword(line.DatabaseURL)
		return line.print(to.out)
	})
}

type migrateCommand struct {
	Up     migrateUp     `cmd:"" help:"Apply the migrations that the database lacks."`
	Status migrateStatus `cmd:"" help:"List the migrations; this changes nothing."`
}

type migrateUp struct {
	Database databaseFlag `embed:""`
	Log      logSettings  `embed:"" prefix:"log-"`
}

// Validate is called when the command was parsed.
func (c *migrateUp) Validate() error { return checkDatabaseURL(c.Database.URL) }

// Run applies the migrations.
func (c *migrateUp) Run(ctx context.Context, to console) error {
	log := c.Log.logger(to.err)
	if err := postgres.Migrate(ctx, c.Database.URL, log); err != nil {
		return err
	}
	log.Info("the schema is up to date")
	return nil
}

type migrateStatus struct {
	Database databaseFlag `embed:""`
}

// Validate is called when the command was parsed.
func (c *migrateStatus) Validate() error { return checkDatabaseURL(c.Database.URL) }

// Run lists the migrations.
func (c *migrateStatus) Run(ctx context.Context, to console) error {
	all, err := postgres.MigrationStatus(ctx, c.Database.URL)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(to.out, 0, 0, 2, ' ', 0)
	for _, m := range all {
		state := "pending"
		if m.Applied {
			state = "applied " + m.Time.UTC().Format(time.RFC3339)
		}
		if m.Name == "" {
			m.Name = "(not known to this version)"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\n", m.Version, m.Name, state)
	}
	return table.Flush()
}
