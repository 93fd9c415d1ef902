package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// The SQLSTATE codes that mean something here.
const (
	codeSerialization     = "40001"
	codeDeadlock          = "40P01"
	codeLockNotAvailable  = "55P03"
	codeQueryCanceled     = "57014"
	codeTooManyClients    = "53300"
	codeProtocolViolation = "08P01"
	codeUndefinedTable    = "42P01"
	codeUniqueViolation   = "23505"
	codeNotNullViolation  = "23502"
	codeNotSupported      = "0A000"
	codeInexact           = "LH001" // of our function exactly

	keyConstraint = "executions_key"  // the index of idempotency keys
	ownConstraint = "executions_pkey" // of ids that are drawn for one call
)

// changedPlan is the place in PostgreSQL that refuses a prepared statement whose answer has other types
// since a migration; the code alone would not tell. The driver forgets the statement, so the next
// try prepares it anew.
const changedPlan = "RevalidateCachedQuery"

// errStale says that rows which were locked were not as they were read: a bug, never a race.
var errStale = errors.New("rows changed under their lock")

// stale turns the complaint of a statement that did not change just what it was to change into errStale.
func stale(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codeInexact {
		return fmt.Errorf("%w: %s", errStale, pg.Message)
	}
	return err
}

// fault is what an error of the driver means for the transaction that met it.
type fault int

const (
	faultOther     fault = iota // ours, or a bug: not tried again
	faultRetry                  // PostgreSQL asks for another try
	faultLocked                 // a lock did not come in time
	faultFound                  // an earlier try was committed after all
	faultTransient              // the server is away, restarting, or cut the session
)

func classify(err error) fault {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case codeSerialization, codeDeadlock:
			return faultRetry
		case codeUniqueViolation:
			switch pg.ConstraintName {
			case keyConstraint: // by somebody who does not lock keys: it is found now
				return faultRetry
			case ownConstraint: // its commit was still under way when this try looked for it
				return faultFound
			}
			return faultOther
		case codeNotSupported:
			if pg.Routine == changedPlan {
				return faultTransient
			}
		case codeLockNotAvailable:
			return faultLocked
		case codeQueryCanceled: // a statement took too long: one item of a batch may be to blame
			return faultLocked
		case codeTooManyClients:
			return faultTransient
		}
		switch pg.Code[:2] {
		case "08", "57", "53", "58": // connection, operator intervention, resources, system
			return faultTransient
		case "25": // in_failed_sql_transaction, idle_in_transaction_session_timeout, read-only standby
			return faultTransient
		}
		return faultOther
	}
	if isOurs(err) || !fromConnection(err) {
		return faultOther
	}
	return faultTransient
}

// lacksCapability tells whether steps were to be written whose capability has no row.
func lacksCapability(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeNotNullViolation && pg.ColumnName == "capability_id"
}

// isRefusedStart tells whether a session was refused for how it was begun: so a pooler answers
// settings that it does not know. It has the same code for a database that is away.
func isRefusedStart(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeProtocolViolation && strings.Contains(pg.Message, "startup parameter")
}

// fromConnection tells whether an error is one of the connection or of time, rather than of
// what was sent or decided.
func fromConnection(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connect) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, puddle.ErrClosedPool) ||
		errors.Is(err, errWarned)
}

// errWarned says that a commit was answered with a warning: it was not replicated.
var errWarned = errors.New("commit was answered with a warning")

// isOurs tells whether an error is the application's or the domain's own answer.
func isOurs(err error) bool {
	if errors.Is(err, errStale) || errors.Is(err, scheduler.ErrBusy) {
		return true
	}
	var marked *ownError
	return errors.As(err, &marked)
}

// ownError marks an answer that a transaction's function gives on purpose.
type ownError struct{ err error }

func (e *ownError) Error() string { return e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

// own marks an error as an answer: the transaction is rolled back and not tried again.
func own(err error) error {
	if err == nil {
		return nil
	}
	return &ownError{err}
}

// outward turns what is left of an error into one that callers know.
func outward(ctx context.Context, err error) error {
	var marked *ownError
	if errors.As(err, &marked) {
		return marked.err
	}
	if errors.Is(err, scheduler.ErrBusy) || errors.Is(err, errStale) {
		return err
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return ctx.Err()
	}
	kind := classify(err)
	if kind == faultOther {
		return err
	}
	return &scheduler.UnavailableError{Cause: err, RetryAfter: time.Second, Locked: kind != faultTransient}
}

// outwardOrNil turns the error of a read into one that callers know.
func outwardOrNil(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	return outward(ctx, fmt.Errorf("%s: %w", what, err))
}
