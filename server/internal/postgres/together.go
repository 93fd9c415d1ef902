package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

// call runs one generated query: what it wants is sent by its only statement. It is run twice: to hear
// what it sends, which then fails with errNotSent, and with the answer. So it does nothing before its
// statement, and after an error of it nothing that counts.
type call func(q *dbsqlc.Queries) error

// together runs calls in one round trip: all statements are sent before the first answer is read.
// PostgreSQL runs them one after the other, each with a snapshot of its own, so that one which
// looks still sees what the locks of one before it were waiting for. After an error the rest
// does not run. A call that sends nothing costs nothing. The transaction's BEGIN goes with the
// first ones.
//
// A transaction of a dispatch has some twenty statements. One by one each costs two wake-ups of
// a process on either side, which is more than what most of them do.
func (t *txn) together(ctx context.Context, calls ...call) error {
	return t.roundTrip(ctx, "", calls)
}

// last runs calls and commits in the same round trip: for what nobody looks at before the commit.
func (t *txn) last(ctx context.Context, name string, calls ...call) error {
	if t.writeWAL {
		calls = append(calls, func(q *dbsqlc.Queries) error { return q.WriteWAL(ctx) })
	}
	delete(t.conn.PgConn().CustomData(), warnedKey)
	t.s.commits(name, false)
	defer t.s.commits(name, true)
	return t.roundTrip(ctx, commitSQL, calls)
}

func (t *txn) roundTrip(ctx context.Context, end string, calls []call) error {
	batch := &pgx.Batch{}
	if !t.begun {
		batch.Queue(beginSQL)
	}
	sent := make([]call, 0, len(calls))
	for _, c := range calls {
		heard := &statement{}
		switch err := c(dbsqlc.New(heard)); {
		case heard.n > 1:
			return heard.second()
		case heard.n == 1:
			batch.Queue(heard.sql, heard.args...)
			sent = append(sent, c)
		case err != nil:
			return err
		}
	}
	if len(sent) == 0 {
		return nil
	}
	if end != "" {
		batch.Queue(end)
		t.ended = true
	}
	return t.answers(t.conn.SendBatch(ctx, batch), sent)
}

// answers reads the answers in the order of the statements, and lets each call have its own.
func (t *txn) answers(results pgx.BatchResults, calls []call) error {
	defer func() { _ = results.Close() }() // it repeats the error, if there was one
	if !t.begun {
		if _, err := results.Exec(); err != nil {
			return err
		}
		t.begun = true
	}
	for _, c := range calls {
		a := &answer{results: results}
		if err := c(dbsqlc.New(a)); err != nil {
			return err
		}
		if a.n > 1 {
			return a.second()
		}
	}
	if !t.ended {
		return results.Close()
	}
	tag, err := results.Exec()
	if err := errors.Join(err, rolledBack(tag), results.Close()); err != nil {
		return err
	}
	t.committed = true
	return nil
}

var errNotSent = errors.New("the statement was not sent yet")

// statement hears what a call sends. It is what the generated queries take for a connection.
type statement struct {
	sql  string
	args []any
	n    int // how many it has sent
}

func (s *statement) hear(sql string, args []any) error {
	s.sql, s.args = sql, args
	s.n++
	return errNotSent
}

func (s *statement) second() error {
	return fmt.Errorf("a second statement in one call: %s", s.sql)
}

// Exec is for the generated queries.
func (s *statement) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, s.hear(sql, args)
}

// Query is for the generated queries.
func (s *statement) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	return nil, s.hear(sql, args)
}

// QueryRow is for the generated queries.
func (s *statement) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	return noRow{s.hear(sql, args)}
}

// answer gives a call the answer to its one statement.
type answer struct {
	statement
	results pgx.BatchResults
}

// more tells whether a statement is not the one that was sent.
func (a *answer) more(sql string) bool {
	_ = a.hear(sql, nil)
	return a.n > 1
}

// Exec is for the generated queries.
func (a *answer) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	if a.more(sql) {
		return pgconn.CommandTag{}, a.second()
	}
	return a.results.Exec()
}

// Query is for the generated queries.
func (a *answer) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	if a.more(sql) {
		return nil, a.second()
	}
	return a.results.Query()
}

// QueryRow is for the generated queries.
func (a *answer) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	if a.more(sql) {
		return noRow{a.second()}
	}
	return a.results.QueryRow()
}

// noRow is the row of a statement that was not sent.
type noRow struct{ err error }

// Scan tells why there is none.
func (r noRow) Scan(...any) error { return r.err }
