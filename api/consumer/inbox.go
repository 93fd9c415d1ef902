package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// InboxMigration makes the tables of Inbox. Put it among your own migrations: they belong into
// the database of the business state, on the search_path of its connections. Each statement
// may be run again.
const InboxMigration = `
CREATE TABLE IF NOT EXISTS leasehold_inbox (
    consumer   text        NOT NULL CHECK (consumer <> ''),
    event_id   uuid        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS leasehold_inbox_handled_at ON leasehold_inbox (consumer, handled_at);

-- Only for inboxes that look at the order: the last event of each execution.
CREATE TABLE IF NOT EXISTS leasehold_inbox_positions (
    consumer     text        NOT NULL CHECK (consumer <> ''),
    execution_id uuid        NOT NULL,
    sequence     bigint      NOT NULL CHECK (sequence >= 0),
    moved_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, execution_id)
);
CREATE INDEX IF NOT EXISTS leasehold_inbox_positions_moved_at ON leasehold_inbox_positions (consumer, moved_at);
`

// Order is what an inbox makes of sequence, beside the event's id.
type Order int

const (
	// AnyOrder does not look at it.
	AnyOrder Order = iota
	// Increasing ignores an event that is not newer than the newest one handled of its
	// execution, and does not mind gaps. It suits a consumer that keeps the latest state, or
	// that receives only some of the events.
	Increasing
	// Gapless also refuses an event, with a *GapError, until the one before it was handled,
	// beginning with sequence 1. Have it delivered again a little later. If the missing one
	// never comes (it was published before you began, or an operator skipped it), move on by
	// Inbox.Advance.
	Gapless
)

// Outcome is what became of an event that Handle returned without an error. All three are to
// be acknowledged.
type Outcome int

const (
	// Handled says that fn ran. It counts once the transaction has committed.
	Handled Outcome = iota + 1
	// Repeat says that the event was handled before; fn did not run.
	Repeat
	// Late says that a newer event of the execution was handled before; fn did not run.
	Late
)

func (o Outcome) String() string {
	switch o {
	case Handled:
		return "handled"
	case Repeat:
		return "repeat"
	case Late:
		return "late"
	default:
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
}

// Inbox remembers, in tables beside the business state, which events a consumer has handled.
// It needs InboxMigration. It has no state of its own: make one wherever it is needed, with
// the same values.
type Inbox struct {
	// Consumer names the consumer: each name handles each event once. Required.
	Consumer string
	// Order is AnyOrder unless set. It may be changed later, but an inbox that was AnyOrder
	// knows nothing of the order of what it handled until then.
	Order Order
}

const (
	markHandled = `
INSERT INTO leasehold_inbox (consumer, event_id) VALUES ($1, $2)
ON CONFLICT (consumer, event_id) DO NOTHING`

	// It changes nothing: it locks the row, and returns what the last to commit has left.
	lockPosition = `
INSERT INTO leasehold_inbox_positions AS p (consumer, execution_id, sequence) VALUES ($1, $2, 0)
ON CONFLICT (consumer, execution_id) DO UPDATE SET sequence = p.sequence
RETURNING p.sequence`

	movePosition = `
UPDATE leasehold_inbox_positions SET sequence = $3, moved_at = now()
WHERE consumer = $1 AND execution_id = $2 AND sequence < $3`
)

// Handle runs fn for an event that this consumer has not handled yet, and remembers it, both
// in tx, which stays the caller's: commit it if Handle returned no error, then acknowledge the
// delivery. Until the commit nothing has happened: a rollback lets the event's next delivery
// in. A delivery of the same event that comes meanwhile waits for tx to end; so keep it short.
//
// fn works on the transaction that it is given (a savepoint in tx), and must not end it. If it
// fails or panics, neither its changes nor the mark remain, even if tx is committed after all.
//
// Errors: those of fn and of PostgreSQL, wrapped; *GapError. After an error the delivery is not
// to be acknowledged.
func (i Inbox) Handle(ctx context.Context, tx pgx.Tx, e *Event, fn func(ctx context.Context, tx pgx.Tx) error) (Outcome, error) {
	var outcome Outcome
	err := inSavepoint(ctx, tx, func(part pgx.Tx) (err error) {
		outcome, err = i.enter(ctx, part, e)
		if err != nil || outcome != Handled {
			return err
		}
		return fn(ctx, part)
	})
	if err != nil {
		return 0, fmt.Errorf("inbox %q: event %s: %w", i.Consumer, e.ID, err)
	}
	return outcome, nil
}

// enter marks the event, and tells whether it is to be handled.
func (i Inbox) enter(ctx context.Context, tx pgx.Tx, e *Event) (Outcome, error) {
	tag, err := tx.Exec(ctx, markHandled, i.Consumer, e.ID)
	if err != nil {
		return 0, fmt.Errorf("mark as handled: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return Repeat, nil
	}
	if i.Order == AnyOrder {
		return Handled, nil
	}
	var last int64
	if err := tx.QueryRow(ctx, lockPosition, i.Consumer, e.ExecutionID).Scan(&last); err != nil {
		return 0, fmt.Errorf("look at the order: %w", err)
	}
	if e.Sequence <= last {
		return Late, nil // Its mark stays: next time it is a repeat.
	}
	if i.Order == Gapless && e.Sequence > last+1 {
		return 0, &GapError{ExecutionID: e.ExecutionID, Want: last + 1, Got: e.Sequence}
	}
	return Handled, i.move(ctx, tx, e.ExecutionID, e.Sequence)
}

func (i Inbox) move(ctx context.Context, tx pgx.Tx, executionID uuid.UUID, sequence int64) error {
	if _, err := tx.Exec(ctx, movePosition, i.Consumer, executionID, sequence); err != nil {
		return fmt.Errorf("keep the order: %w", err)
	}
	return nil
}

// Advance makes an ordered inbox take every event of an execution up to sequence as handled,
// in tx. It never goes back. It is how to go on when those that a *GapError misses will never
// come: Advance(ctx, tx, gap.ExecutionID, gap.Got-1).
func (i Inbox) Advance(ctx context.Context, tx pgx.Tx, executionID uuid.UUID, sequence int64) error {
	err := inSavepoint(ctx, tx, func(part pgx.Tx) error {
		var last int64
		if err := part.QueryRow(ctx, lockPosition, i.Consumer, executionID).Scan(&last); err != nil {
			return fmt.Errorf("look at the order: %w", err)
		}
		return i.move(ctx, part, executionID, sequence)
	})
	if err != nil {
		return fmt.Errorf("inbox %q: advance execution %s to %d: %w", i.Consumer, executionID, sequence, err)
	}
	return nil
}

// rollbackLimit bounds the undoing of a savepoint, which also has to be when ctx has ended.
const rollbackLimit = 5 * time.Second

// inSavepoint undoes what f did in tx if it fails, or panics.
func inSavepoint(ctx context.Context, tx pgx.Tx, f func(part pgx.Tx) error) (err error) {
	part, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("set a savepoint: %w", err)
	}
	done := false
	defer func() {
		if done {
			return
		}
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackLimit)
		defer cancel()
		if undone := part.Rollback(limited); undone != nil && !tx.Conn().IsClosed() {
			// Not to be committed by any means: the mark would remain without its effect.
			_ = tx.Conn().Close(limited)
			err = errors.Join(err, fmt.Errorf("undo: %w", undone))
		}
	}()
	if err := f(part); err != nil {
		return err
	}
	if err := part.Commit(ctx); err != nil {
		return fmt.Errorf("release the savepoint: %w", err)
	}
	done = true
	return nil
}
