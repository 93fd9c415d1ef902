package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/api/consumer"
)

// exampleDatabase stands for the program's own database, with the migrations of this package.
func exampleDatabase(statements ...string) *pgxpool.Pool {
	pool, err := openDatabase(context.Background(), statements...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return pool
}

// A consumer that pays a bonus for each order that has succeeded, once, although events are
// delivered more than once.
func ExampleInbox_Handle() {
	pool := exampleDatabase(
		`CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL)`,
		`INSERT INTO accounts VALUES ('ada', 100)`)
	defer pool.Close()

	inbox := consumer.Inbox{Consumer: "bonus"}
	// receive is called for each message of NATS, or each request of a webhook. The message
	// may be acknowledged if it returns nil.
	receive := func(ctx context.Context, body []byte) error {
		event, err := consumer.ParseEvent(body)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			outcome, err := inbox.Handle(ctx, tx, event, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 5 WHERE id = 'ada'`)
				return err
			})
			fmt.Println(outcome, err)
			return err
		})
	}

	for range 3 {
		if err := receive(context.Background(), []byte(message)); err != nil {
			fmt.Println(err)
		}
	}
	var balance int
	_ = pool.QueryRow(context.Background(), `SELECT balance FROM accounts`).Scan(&balance)
	fmt.Println("balance", balance)
	// Output:
	// handled <nil>
	// repeat <nil>
	// repeat <nil>
	// balance 105
}

// The other way of consuming: the business state tells itself whether an event was applied,
// and the update is conditional on it. There is no table of events, nothing to purge, and it
// does no harm to read a stream again from its beginning. It works where an event leads to a
// state, as here, and not where it adds to one: for a balance take the inbox.
func Example_conditionalUpdate() {
	pool := exampleDatabase(
		`CREATE TABLE orders (execution_id uuid PRIMARY KEY, state text NOT NULL, sequence bigint NOT NULL)`)
	defer pool.Close()

	apply := func(ctx context.Context, e *consumer.Event) (changed bool, err error) {
		tag, err := pool.Exec(ctx, `
			INSERT INTO orders AS o (execution_id, state, sequence) VALUES ($1, $2, $3)
			ON CONFLICT (execution_id) DO UPDATE SET state = EXCLUDED.state, sequence = EXCLUDED.sequence
			WHERE o.sequence < EXCLUDED.sequence`,
			e.ExecutionID, e.Type, e.Sequence)
		return tag.RowsAffected() == 1, err
	}

	order := uuid.New()
	failed := &consumer.Event{ID: uuid.New(), ExecutionID: order, Sequence: 1, Type: "leasehold.execution.v1.failed"}
	reopened := &consumer.Event{ID: uuid.New(), ExecutionID: order, Sequence: 2, Type: "leasehold.execution.v1.reopened"}
	for _, e := range []*consumer.Event{failed, reopened, reopened, failed} {
		changed, err := apply(context.Background(), e)
		fmt.Println(e.Type, changed, err)
	}
	// Output:
	// leasehold.execution.v1.failed true <nil>
	// leasehold.execution.v1.reopened true <nil>
	// leasehold.execution.v1.reopened false <nil>
	// leasehold.execution.v1.failed false <nil>
}

// A consumer that must see every event of an execution in order.
func ExampleGapError() {
	pool := exampleDatabase()
	defer pool.Close()
	ctx := context.Background()

	inbox := consumer.Inbox{Consumer: "ledger", Order: consumer.Gapless}
	handle := func(e *consumer.Event) error {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := inbox.Handle(ctx, tx, e, func(context.Context, pgx.Tx) error { return nil })
			return err
		})
		var gap *consumer.GapError
		if errors.As(err, &gap) {
			fmt.Printf("%d has to wait for %d\n", gap.Got, gap.Want) // have it delivered again: msg.NakWithDelay
		}
		return err
	}

	third := &consumer.Event{ID: uuid.New(), ExecutionID: uuid.New(), Sequence: 3}
	_ = handle(third)
	// It goes on failing, and an operator of the server says that 1 and 2 were skipped.
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return inbox.Advance(ctx, tx, third.ExecutionID, 2) })
	fmt.Println(err, handle(third))
	// Output:
	// 3 has to wait for 1
	// <nil> <nil>
}

// What no delivery can bring back any more is forgotten, once a day.
func ExampleInbox_Purge() {
	pool := exampleDatabase()
	defer pool.Close()

	// The stream keeps messages for 7 days, the server DEAD events for 30.
	deleted, err := consumer.Inbox{Consumer: "bonus"}.Purge(context.Background(), pool, 40*24*time.Hour)
	fmt.Println(deleted, err)
	// Output: 0 <nil>
}

// Workers that write to a table of PostgreSQL. The one that was frozen past its lease comes
// back, and is refused.
func ExampleFence() {
	pool := exampleDatabase(`CREATE TABLE documents (id text PRIMARY KEY, body text NOT NULL)`)
	defer pool.Close()

	// In a worker's handler the token is job.LeaseVersion().
	save := func(ctx context.Context, body string, leaseVersion int64) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := consumer.Fence(ctx, tx, "documents/report", leaseVersion); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO documents VALUES ('report', $1)
				ON CONFLICT (id) DO UPDATE SET body = EXCLUDED.body`, body)
			return err
		})
	}

	ctx := context.Background()
	fmt.Println(save(ctx, "by the second owner", 1099511627783))
	fmt.Println(save(ctx, "by the first owner, who was frozen", 1099511627782))
	fmt.Println(save(ctx, "by the second owner, corrected", 1099511627783))
	// Output:
	// <nil>
	// leasehold: stale fencing token: documents/report has seen 1099511627783, refused 1099511627782
	// <nil>
}

// Where each row has one owner at a time, the token may stand in the row itself, and neither
// table nor function of FenceMigration is needed.
func ExampleFence_column() {
	pool := exampleDatabase(
		`CREATE TABLE documents (id text PRIMARY KEY, body text NOT NULL, lease_version bigint NOT NULL)`,
		`INSERT INTO documents VALUES ('report', '', 0)`)
	defer pool.Close()

	save := func(ctx context.Context, body string, leaseVersion int64) error {
		tag, err := pool.Exec(ctx, `UPDATE documents SET body = $2, lease_version = $3 WHERE id = $1 AND lease_version <= $3`,
			"report", body, leaseVersion)
		if err == nil && tag.RowsAffected() == 0 {
			return consumer.ErrStaleToken
		}
		return err
	}

	ctx := context.Background()
	fmt.Println(save(ctx, "by the second owner", 1099511627783))
	fmt.Println(save(ctx, "by the first owner, who was frozen", 1099511627782))
	// Output:
	// <nil>
	// leasehold: stale fencing token
}

// A label printer that knows no tokens. This is the one process that it is connected to;
// workers call it with their lease versions.
func ExampleGuard() {
	guard := consumer.NewGuard(&consumer.MemoryTokens{})
	printLabel := func(ctx context.Context, text string, leaseVersion int64) error {
		return guard.Do(ctx, "printer-1", leaseVersion, func(context.Context) error {
			fmt.Println("printing:", text)
			return nil
		})
	}

	ctx := context.Background()
	fmt.Println(printLabel(ctx, "parcel 7", 1099511627783))
	fmt.Println(printLabel(ctx, "parcel 6", 1099511627782))
	// Output:
	// printing: parcel 7
	// <nil>
	// leasehold: stale fencing token: printer-1 has seen 1099511627783, refused 1099511627782
}

// Tokens that outlive the process, and that several processes share, in the table of
// FenceMigration.
func ExampleTokens() {
	pool := exampleDatabase()
	defer pool.Close()

	for _, token := range []int64{1099511627783, 1099511627782} {
		guard := consumer.NewGuard(postgresTokens{pool}) // as after a restart
		err := guard.Do(context.Background(), "printer-1", token, func(context.Context) error { return nil })
		fmt.Println(err)
	}
	// Output:
	// <nil>
	// leasehold: stale fencing token: printer-1 has seen 1099511627783, refused 1099511627782
}
