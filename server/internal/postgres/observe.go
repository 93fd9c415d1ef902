package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Observer hears of the store's transactions, for metrics. Its methods return at once, and are
// called from several goroutines.
type Observer interface {
	// Transaction tells of each try of a transaction: its use case, how long it took with the
	// wait for a connection, how much of that was spent in statements that wait for locks, and
	// why it failed, one of the Failed constants; empty if it did not.
	Transaction(useCase string, took, lockWait time.Duration, failed string)
	// AttemptEnded tells of an attempt that ended, by a committed transaction, and whether its
	// step gets another one.
	AttemptEnded(outcome task.AttemptState, again bool)
	// ExecutionEnded tells of an execution that ended, by a committed transaction.
	ExecutionEnded(state task.ExecutionState)
	// HintsHeard tells that the connection for hints lives.
	HintsHeard()
}

// Tracer makes spans of the store's transactions. A span ends when the function that comes
// with it is called.
type Tracer interface {
	// Transaction begins a span within that of ctx; if ctx has none it begins none.
	Transaction(ctx context.Context, useCase string) (context.Context, func(err error))
}

// Why a try of a transaction fails.
const (
	FailedConflict    = "conflict"       // serialization failure or deadlock: it is tried again
	FailedTimeout     = "timeout"        // a lock or a statement took too long
	FailedUnknown     = "unknown_commit" // the commit's answer was lost, or came with a warning: it is looked for
	FailedUnavailable = "unavailable"    // the database is away, restarting, or cut the session
	FailedCanceled    = "canceled"       // the caller left
	FailedError       = "error"          // PostgreSQL refused a statement: a bug
)

// failureOf names why a try failed. An answer that the transaction's function gives on purpose
// is no failure.
func failureOf(ctx context.Context, committing bool, err error) string {
	var refused *pgconn.PgError
	switch kind := classify(err); {
	case err == nil:
		return ""
	case committing:
		return FailedUnknown
	case kind == faultRetry, kind == faultFound:
		return FailedConflict
	case kind == faultLocked:
		return FailedTimeout
	case errors.Is(ctx.Err(), context.Canceled):
		return FailedCanceled
	case kind == faultTransient:
		return FailedUnavailable
	case errors.As(err, &refused), errors.Is(err, errStale):
		return FailedError
	default:
		return ""
	}
}

func onlyIf(failed bool, err error) error {
	if failed {
		return err
	}
	return nil
}

// tally is what a transaction ended, to be told once it is committed.
type tally struct {
	attempts   []task.AttemptData
	executions []task.ExecutionState
}

func (a *tally) add(d *task.ExecutionData, c *task.Changes) {
	for _, ended := range c.Ended {
		a.attempts = append(a.attempts, ended.Data())
	}
	if c.Closed {
		a.executions = append(a.executions, d.State)
	}
}

func (a tally) empty() bool { return len(a.attempts) == 0 && len(a.executions) == 0 }

func (s *Store) tell(a tally) {
	for i := range a.attempts {
		s.observer.AttemptEnded(a.attempts[i].State, a.attempts[i].NextDue != nil)
	}
	for _, state := range a.executions {
		s.observer.ExecutionEnded(state)
	}
}

// untraced is a tracer where there is none.
type untraced struct{}

// Transaction begins nothing.
func (untraced) Transaction(ctx context.Context, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// nobody is an observer where there is none.
type nobody struct{}

// Transaction is not heard.
func (nobody) Transaction(string, time.Duration, time.Duration, string) {}

// AttemptEnded is not heard.
func (nobody) AttemptEnded(task.AttemptState, bool) {}

// ExecutionEnded is not heard.
func (nobody) ExecutionEnded(task.ExecutionState) {}

// HintsHeard is not heard.
func (nobody) HintsHeard() {}
