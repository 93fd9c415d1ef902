// Package db holds the schema's migrations. It imports nothing of ours.
package db

import "embed"

// Migrations are goose migrations, to be applied in order.
//
//go:embed migrations/*.sql
var Migrations embed.FS
