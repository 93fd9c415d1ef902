package postgres

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

// call runs one generated query: what it wants is sent by its only statement.
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
	parts := make([]*part, 0, len(calls))
	defer func() {
		for _, p := range parts {
			p.stop()
		}
	}()
	batch := &pgx.Batch{}
	if !t.begun {
		batch.Queue(beginSQL)
	}
	sent := 0
	for _, c := range calls {
		p := newPart(c)
		parts = append(parts, p)
		if p.sends() {
			batch.Queue(p.sql, p.args...)
			sent++
		}
	}
	if sent == 0 {
		return firstError(parts)
	}
	if end != "" {
		batch.Queue(end)
		t.ended = true
	}
	return t.answers(t.conn.SendBatch(ctx, batch), parts)
}

// answers reads the answers in the order of the statements.
func (t *txn) answers(results pgx.BatchResults, parts []*part) error {
	if !t.begun {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // it repeats the error
			return err
		}
		t.begun = true
	}
	for _, p := range parts {
		if p.waiting {
			p.read(results)
		}
	}
	if err := firstError(parts); err != nil {
		_ = results.Close() // it repeats the error
		return err
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

func firstError(parts []*part) error {
	for _, p := range parts {
		if p.err != nil {
			return p.err
		}
	}
	return nil
}

// part is a call that is suspended from when it has named its statement until the answer is
// there. It is what the generated queries take for a connection.
type part struct {
	sql     string
	args    []any
	waiting bool
	results pgx.BatchResults
	err     error

	yield func(struct{}) bool
	next  func() (struct{}, bool)
	stop  func()
}

func newPart(c call) *part {
	p := &part{}
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.yield = yield
		p.err = c(dbsqlc.New(p))
	})
	return p
}

// sends runs the call up to its statement, and tells whether it has one.
func (p *part) sends() bool {
	_, p.waiting = p.next()
	return p.waiting
}

// read lets the call go on with the answer.
func (p *part) read(results pgx.BatchResults) {
	p.results, p.waiting = results, false
	if _, again := p.next(); again {
		p.err = fmt.Errorf("a second statement in one call: %s", p.sql)
	}
}

var errNotSent = errors.New("the statement was not sent")

// send names the statement and suspends the call.
func (p *part) send(sql string, args []any) error {
	if p.results != nil {
		p.sql = sql
	} else {
		p.sql, p.args = sql, args
	}
	if !p.yield(struct{}{}) || p.results == nil {
		return errNotSent
	}
	return nil
}

// Exec is for the generated queries.
func (p *part) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := p.send(sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	return p.results.Exec()
}

// Query is for the generated queries.
func (p *part) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := p.send(sql, args); err != nil {
		return nil, err
	}
	return p.results.Query()
}

// QueryRow is for the generated queries.
func (p *part) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	if err := p.send(sql, args); err != nil {
		return noRow{err}
	}
	return p.results.QueryRow()
}

// noRow is the row of a statement that was not sent.
type noRow struct{ err error }

// Scan tells why there is none.
func (r noRow) Scan(...any) error { return r.err }
