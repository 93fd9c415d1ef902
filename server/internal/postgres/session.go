package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errSettings says that sessions do not get the settings that they ask for.
var errSettings = errors.New("sessions do not get their settings: a pooler in between seems to refuse or to ignore them; use a URL that leads to PostgreSQL itself, or give them to the role by ALTER ROLE ... SET")

// errPrepared says that statements would be prepared in sessions that others get next.
var errPrepared = errors.New("a pooler is in between, and PostgreSQL's session may be another one for each transaction: add default_query_exec_mode=cache_describe to the URL, or cache_statement if each client keeps its session or the pooler knows prepared statements")

// errPooled says that what needs a session of its own has none.
var errPooled = errors.New("a pooler is in between, and this needs a session of its own: use a URL that leads to PostgreSQL itself")

// errMode says that statements cannot be sent in the way that the URL asks for.
var errMode = errors.New("database url: default_query_exec_mode must be cache_statement, cache_describe or describe_exec")

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
	return checkPrepared(ctx, conn)
}

// checkPrepared looks whether statements may be prepared. Whoever names a mode knows his pooler.
func checkPrepared(ctx context.Context, conn *pgx.Conn) error {
	asked, err := pgconn.ParseConfig(conn.Config().ConnString())
	if err != nil {
		return fmt.Errorf("database url: %w", err)
	}
	if _, named := asked.RuntimeParams["default_query_exec_mode"]; named {
		return nil
	}
	if err := checkOwnSession(ctx, conn); errors.Is(err, errPooled) {
		return errPrepared
	} else if err != nil {
		return err
	}
	return nil
}

// checkOwnSession looks whether a connection leads to PostgreSQL itself. A pooler makes up the
// process that it names at the start: it stands for none.
func checkOwnSession(ctx context.Context, conn *pgx.Conn) error {
	var pid int64
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return fmt.Errorf("look for the session's process: %w", err)
	}
	if pid != int64(conn.PgConn().PID()) {
		return errPooled
	}
	return nil
}

// checkMode refuses the modes that guess a parameter's type by its value: lists of ids have none then.
func checkMode(mode pgx.QueryExecMode) error {
	if mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol {
		return errMode
	}
	return nil
}
