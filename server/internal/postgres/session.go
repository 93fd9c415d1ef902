package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errSettings says that sessions do not get the settings that they ask for.
var errSettings = errors.New("sessions do not get their settings: a pooler in between seems to refuse or to ignore them; use a URL that leads to PostgreSQL itself")

// decisive are the settings without which a server would seem to work, until one that freezes
// holds its locks for ever, or a plan reads a whole table.
func decisive() []string {
	return []string{"idle_in_transaction_session_timeout", "lock_timeout", "enable_seqscan"}
}

// checkSession looks whether a session has what it was begun with, or its role.
func checkSession(ctx context.Context, conn *pgx.Conn) error {
	for _, name := range decisive() {
		var have string
		if err := conn.QueryRow(ctx, "SHOW "+name, pgx.QueryExecModeSimpleProtocol).Scan(&have); err != nil {
			return fmt.Errorf("look at a session's settings: %w", err)
		}
		if want := conn.Config().RuntimeParams[name]; have != want {
			return fmt.Errorf("%w (%s is %s instead of %s)", errSettings, name, have, want)
		}
	}
	return nil
}
