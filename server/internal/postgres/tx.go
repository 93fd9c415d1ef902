package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

const (
	warnedKey = "leasehold.warned" // in a connection's custom data
	maxTries  = 8
	slowTx    = time.Second
	txTimeout = 30 * time.Second // for callers that set none: nobody waits for ever
)

// txn is a transaction under way. It begins with its first statement.
type txn struct {
	q     *dbsqlc.Queries
	conn  *pgx.Conn
	s     *Store
	begun bool
	// ended: COMMIT was sent together with the last statements. committed: it was answered.
	ended, committed bool

	// again: an earlier try may have been committed. What is found to be done already is then
	// the answer, and the commit writes WAL, so that it also vouches for what it found.
	again    bool
	writeWAL bool

	lockWait time.Duration // spent in statements that wait for locks
	tally    tally         // what it ended
}

// locking measures a statement that may wait for a lock.
func (t *txn) locking(began time.Time) { t.lockWait += time.Since(began) }

// vouch makes the commit one that waits for the standbys, where replication is synchronous:
// for answers that rest on what an earlier commit wrote.
func (t *txn) vouch() { t.writeWAL = true }

// tx runs a function in a transaction, and is the only place that opens one. What PostgreSQL
// asks to be retried is retried; a commit whose answer was lost, or came with a warning (it
// was not replicated), counts as unknown: the function runs again and finds its own. That may
// still be under way: PostgreSQL goes on with what it has when a connection breaks. So what looks
// for its own looks behind a lock that the try before it would hold, or meets its rows. The
// function may run several times and must keep nothing from a try that failed.
func (s *Store) tx(ctx context.Context, name string, f func(ctx context.Context, t *txn) error) error {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	unknown := false
	var told tally // of the try whose commit is unknown: what it ended, if a later try finds it done
	var err error
	for try := range maxTries {
		if try > 0 && !pause(ctx, try) {
			break
		}
		t := &txn{s: s, again: unknown, writeWAL: unknown}
		t.q = dbsqlc.New(t)
		var committing bool
		committing, err = s.try(ctx, name, t, f)
		if err == nil {
			if !t.tally.empty() {
				told = t.tally
			}
			s.tell(told)
			return nil
		}
		if committing {
			unknown, told = true, t.tally
			s.log.Warn("commit with unknown outcome, looking for it", "transaction", name, "error", err)
			continue
		}
		kind := classify(err)
		if kind == faultFound {
			unknown = true
		}
		if kind == faultRetry || kind == faultFound {
			continue
		}
		if kind != faultTransient || ctx.Err() != nil {
			break
		}
	}
	return outward(ctx, fmt.Errorf("%s: %w", name, err))
}

// try is one transaction. committing tells that it failed when the commit was on its way.
func (s *Store) try(ctx context.Context, name string, t *txn, f func(ctx context.Context, t *txn) error) (committing bool, err error) {
	start := time.Now() // monotonic
	ctx, end := s.tracer.Transaction(ctx, name)
	defer func() {
		failed := failureOf(ctx, committing, err)
		s.measure(name, time.Since(start), t.lockWait, failed)
		end(onlyIf(failed != "", err))
	}()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release() // after the commit's warning was read: it stands with the connection
	t.conn = conn.Conn()
	if err := f(ctx, t); err != nil {
		t.rollback(ctx)
		return t.ended && classify(err) == faultTransient, err
	}
	if !t.committed {
		return t.commit(ctx, name)
	}
	return t.answered(nil)
}

// measure tells of a transaction: how long it took, how much of that it waited for locks, and
// why it failed.
func (s *Store) measure(name string, d, lockWait time.Duration, failed string) {
	s.observer.Transaction(name, d, lockWait, failed)
	if d > slowTx {
		s.log.Warn("slow transaction", "transaction", name, "duration", d, "lock_wait", lockWait)
	}
}

const (
	beginSQL  = "begin isolation level read committed"
	commitSQL = "commit"
)

func (t *txn) commit(ctx context.Context, name string) (committing bool, err error) {
	if t.writeWAL {
		if err := t.q.WriteWAL(ctx); err != nil {
			t.rollback(ctx)
			return false, err
		}
	}
	if !t.begun {
		return false, nil
	}
	delete(t.conn.PgConn().CustomData(), warnedKey)
	t.s.commits(name, false)
	tag, err := t.conn.Exec(ctx, commitSQL)
	t.s.commits(name, true)
	return t.answered(errors.Join(err, rolledBack(tag)))
}

// answered is what the answer to a COMMIT means. committing: nobody knows.
func (t *txn) answered(err error) (committing bool, _ error) {
	if warning, warned := t.conn.PgConn().CustomData()[warnedKey]; warned && err == nil {
		return true, fmt.Errorf("%w: %v", errWarned, warning)
	}
	// PostgreSQL's own error means that it was rolled back; without one nobody knows.
	return err != nil && classify(err) == faultTransient, err
}

// rolledBack is PostgreSQL's other answer to a COMMIT, after an error that went unnoticed.
func rolledBack(tag pgconn.CommandTag) error {
	if tag.String() == "ROLLBACK" {
		return pgx.ErrTxCommitRollback
	}
	return nil
}

// begin begins alone, where the first statement is not sent with others.
func (t *txn) begin(ctx context.Context) error {
	if t.begun {
		return nil
	}
	_, err := t.conn.Exec(ctx, beginSQL)
	t.begun = err == nil
	return err
}

// Exec is for the generated queries.
func (t *txn) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.begin(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.conn.Exec(ctx, sql, args...)
}

// Query is for the generated queries.
func (t *txn) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.conn.Query(ctx, sql, args...)
}

// QueryRow is for the generated queries.
func (t *txn) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.begin(ctx); err != nil {
		return noRow{err}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

// snapshot runs a caller's reads, which must fit together, in one snapshot. There are places
// for some at a time, so that slow ones leave connections for the work itself.
func (s *Store) snapshot(ctx context.Context, what string, f func(q *dbsqlc.Queries) error) error {
	ctx, cancel := withTimeout(ctx)
	defer cancel()
	select {
	case s.queries <- struct{}{}:
	case <-ctx.Done():
		return outward(ctx, fmt.Errorf("%s: wait for a place: %w", what, ctx.Err()))
	}
	defer func() { <-s.queries }()
	return s.readOnly(ctx, what, f)
}

// readOnly runs reads in one snapshot, whoever asks.
func (s *Store) readOnly(ctx context.Context, what string, f func(q *dbsqlc.Queries) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	start := time.Now() // monotonic
	ctx, end := s.tracer.Transaction(ctx, what)
	err := pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error { return f(dbsqlc.New(tx)) })
	failed := failureOf(ctx, false, err)
	s.observer.Transaction(what, time.Since(start), 0, failed)
	end(onlyIf(failed != "", err))
	return outwardOrNil(ctx, what, err)
}

func withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, txTimeout)
}

// rollback has a time of its own: the caller's may be over. A connection on which it fails is closed
// by the pool.
func (t *txn) rollback(ctx context.Context) {
	if t.conn.PgConn().TxStatus() == idleStatus {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_, _ = t.conn.Exec(ctx, "rollback")
}

const idleStatus = 'I' // of the protocol: no transaction is open

// pause waits before a further try, longer each time, and false if the time is over.
func pause(ctx context.Context, try int) bool {
	base := min(5*time.Millisecond<<try, time.Second)
	timer := time.NewTimer(base/2 + rand.N(base))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
