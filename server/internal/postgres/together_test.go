package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// trips counts how a store's statements are sent.
type trips struct{ alone, together, sent int }

// TraceQueryStart counts a statement that is sent alone.
func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "-- name:") {
		c.alone++
	}
	return ctx
}

// TraceQueryEnd has nothing to do.
func (c *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart counts a batch.
func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	c.together++
	for _, q := range data.Batch.QueuedQueries {
		if strings.HasPrefix(q.SQL, "-- name:") {
			c.sent++
		}
	}
	return ctx
}

// TraceBatchQuery has nothing to do.
func (c *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd has nothing to do.
func (c *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// TestTogether_IsOneRoundTrip for queries of all kinds; each has its own answer, and a later one
// sees what an earlier one has done. One without a statement is left out.
func TestTogether_IsOneRoundTrip(t *testing.T) {
	t.Parallel()
	s, c := newStand(t), &trips{}
	if err := s.store.Trace(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	step := uuid.New()
	var known bool
	var payloads []dbsqlc.Payload
	err := s.store.Together(t.Context(),
		func(q *dbsqlc.Queries) error {
			return q.PutPayloads(t.Context(), dbsqlc.PutPayloadsParams{
				StepIds: []uuid.UUID{step}, Roles: []string{"INPUT"}, IsJson: []bool{true}, ContentTypes: []string{""}, Bodies: [][]byte{[]byte("1")},
			})
		},
		func(*dbsqlc.Queries) error { return nil },
		func(q *dbsqlc.Queries) (err error) {
			payloads, err = q.Payloads(t.Context(), dbsqlc.PayloadsParams{StepIds: []uuid.UUID{step}, Roles: []string{"INPUT"}})
			return err
		},
		func(q *dbsqlc.Queries) error {
			now, err := q.Now(t.Context())
			known = now.Valid
			return err
		})
	if err != nil || len(payloads) != 1 || payloads[0].StepID != step || !known {
		t.Errorf("%v, payloads %v, now %t", err, payloads, known)
	}
	if *c != (trips{together: 1, sent: 3}) {
		t.Errorf("%+v, want three statements in one batch", *c)
	}
}

// putting puts a payload in a role.
func putting(t *testing.T, role string) func(q *dbsqlc.Queries) error {
	t.Helper()
	return func(q *dbsqlc.Queries) error {
		return q.PutPayloads(t.Context(), dbsqlc.PutPayloadsParams{
			StepIds: []uuid.UUID{uuid.New()}, Roles: []string{role}, IsJson: []bool{true}, ContentTypes: []string{""}, Bodies: [][]byte{[]byte("1")},
		})
	}
}

// TestTogether_FailsAsAWhole with the error of the statement that failed, and not of those behind
// it, which were not run; the session goes on. Broken once: a second statement of a call that goes
// unnoticed.
func TestTogether_FailsAsAWhole(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	put := putting(t, "INPUT")
	wrongRole := putting(t, "NONE")
	err := s.store.Together(t.Context(), put, wrongRole, put)
	if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "23514" {
		t.Errorf("%v, want the violated check", err)
	}
	own := errors.New("the caller's own")
	err = s.store.Together(t.Context(), put, func(q *dbsqlc.Queries) error {
		_, err := q.Now(t.Context())
		return errors.Join(err, own)
	}, put)
	if !errors.Is(err, own) {
		t.Errorf("%v, want the caller's own", err)
	}
	twice := func(q *dbsqlc.Queries) error {
		_, first := q.Now(t.Context())
		_, second := q.Now(t.Context())
		return errors.Join(first, second)
	}
	if err := s.store.Together(t.Context(), put, twice, put); err == nil || !strings.Contains(err.Error(), "second statement") {
		t.Errorf("%v, want a refusal of two statements in one call", err)
	}
	if err := s.store.Together(t.Context(), put); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	var n int
	if err := s.sql.QueryRow(t.Context(), "SELECT count(*) FROM payloads").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d payloads, %v; want only the last one's", n, err)
	}
}

// TestLast_ChangesJustWhatItShould: a COMMIT that was sent with a statement which did not change all
// its rows is none, and nothing of the transaction is there. Broken once: each without its count.
func TestLast_ChangesJustWhatItShould(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	l := s.leaseOne(s.register("w", "a", 1), time.Minute)
	nobody, ctx := []uuid.UUID{uuid.New()}, t.Context()
	for name, change := range map[string]func(q *dbsqlc.Queries) error{
		"executions": func(q *dbsqlc.Queries) error {
			return q.UpdateExecutions(ctx, dbsqlc.UpdateExecutionsParams{Ids: []uuid.UUID{l.ExecutionID}, Bases: []int64{1}})
		},
		"steps":    func(q *dbsqlc.Queries) error { return q.UpdateSteps(ctx, dbsqlc.UpdateStepsParams{Ids: nobody}) },
		"attempts": func(q *dbsqlc.Queries) error { return q.EndAttempts(ctx, dbsqlc.EndAttemptsParams{Ids: nobody}) },
		"leases": func(q *dbsqlc.Queries) error {
			return q.EndLeases(ctx, dbsqlc.EndLeasesParams{AttemptIds: []uuid.UUID{l.AttemptID}, LeaseVersions: []int64{l.LeaseVersion - 1}})
		},
	} {
		put := putting(t, "OUTPUT")
		if err := s.store.Last(ctx, put, change, put); !errors.Is(err, postgres.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := query[int](s, "SELECT count(*) FROM payloads WHERE role = 'OUTPUT'"); n != 0 {
		t.Errorf("%d payloads were committed", n)
	}
	s.exec("CREATE FUNCTION untouched() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	s.exec("CREATE TRIGGER untouched BEFORE UPDATE ON attempts FOR EACH ROW EXECUTE FUNCTION untouched()")
	if _, err := s.store.Report(ctx, []scheduler.Report{success(l)}, false); !errors.Is(err, postgres.ErrStale) {
		t.Errorf("the report: %v", err)
	}
	if n := query[int](s, "SELECT count(*) FROM leases l JOIN executions e ON e.id = l.execution_id WHERE e.ended_at IS NULL"); n != 1 {
		t.Errorf("%d leases of live executions, want the one", n)
	}
}

// TestTransactions_RoundTrips counts how often PostgreSQL is waited for, COMMIT included, on the way
// of an execution with one step: enqueue, claim, dispatch, report. Caught: any statement that is sent
// by itself.
func TestTransactions_RoundTrips(t *testing.T) {
	t.Parallel()
	s, c := newStand(t), &waits{}
	if err := s.store.Trace(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	w := s.register("w", "a", 10)
	count := func(what string, want int, f func()) {
		t.Helper()
		for range 2 { // the first time statements are prepared too
			before := c.n
			f()
			if got := c.n - before; got != want {
				t.Errorf("%s: %d round trips, want %d", what, got, want)
			}
		}
	}
	s.enqueue(spec("a", 1)) // its capability is known
	key := 0
	count("enqueue", 2, func() { s.enqueue(spec("a", 1)) })
	count("enqueue with a key", 2, func() {
		key++
		n := newExecution(spec("a", 1, func(e *task.ExecutionSpec) { e.IdempotencyKey = fmt.Sprint(key) }))
		results, err := s.store.Enqueue(t.Context(), []scheduler.NewExecution{n}, false, false)
		if err != nil || results[0].Err != nil {
			t.Fatalf("enqueue: %v %v", err, results)
		}
	})
	var claim uuid.UUID
	var claimed []scheduler.Claimed
	count("claim", 2, func() {
		id, got := s.claim(w, 1)
		claim, claimed = id, append(claimed, got)
	})
	for i, got := range claimed {
		if len(got.Requests) != 1 {
			t.Fatalf("claim %d: %+v", i, got)
		}
	}
	count("free claims", 1, func() { _ = s.store.Free(t.Context(), claim, []uuid.UUID{claimed[1].Requests[0].StepID}) })
	var leases []scheduler.LeaseView
	count("claim, dispatch, and a look", 2+2+1+1, func() { leases = append(leases, s.lease(w, 1, time.Minute)...) })
	count("report", 3, func() {
		results, err := s.store.Report(t.Context(), []scheduler.Report{success(leases[0])}, false)
		if err != nil || results[0].Err != nil {
			t.Fatalf("report: %v %v", err, results)
		}
		leases = leases[1:]
	})
}

// waits counts round trips, but for those that prepare statements.
type waits struct{ n int }

// TraceQueryStart counts a statement that is sent alone.
func (c *waits) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n++
	return ctx
}

// TraceQueryEnd has nothing to do.
func (c *waits) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart counts a batch.
func (c *waits) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n++
	return ctx
}

// TraceBatchQuery has nothing to do.
func (c *waits) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd has nothing to do.
func (c *waits) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// untouched checks that a session which was in the middle of a batch is not used again, or is as new:
// nothing of its transaction is there, and none is still out of the pool.
func (s *stand) untouched(t *testing.T) {
	t.Helper()
	s.eventually("the session is given back", func() bool { return s.store.Pool().Stat().AcquiredConns() == 0 })
	for range s.store.Pool().Config().MaxConns + 1 {
		err := s.store.Together(t.Context(), func(q *dbsqlc.Queries) error { _, err := q.Now(t.Context()); return err })
		if err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}
	if n := query[int](s, "SELECT count(*) FROM payloads"); n != 0 {
		t.Errorf("%d payloads of a transaction that failed", n)
	}
}

// TestTogether_BrokenOffInTheMiddle: while a statement of a batch waits for a lock its caller leaves, or
// it waits too long, or a call breaks down. Each time the transaction is undone, and no session is lost.
func TestTogether_BrokenOffInTheMiddle(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	put := putting(t, "INPUT")
	s.enqueue(spec("build", 1))
	l := s.leaseOne(s.register("w", "build", 1), time.Minute)
	s.exec("DELETE FROM payloads")
	lock := func(q *dbsqlc.Queries) error {
		_, err := q.LockLeasesWaiting(t.Context(), []uuid.UUID{l.AttemptID})
		return err
	}
	h := s.hold("SELECT FROM leases FOR UPDATE")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := async(func() error { return s.store.Together(ctx, put, lock, put) })
	s.waiting(1)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller left: %v", err)
	}
	s.untouched(t)
	var unavailable *scheduler.UnavailableError
	if err := s.store.Together(t.Context(), put, lock, put); !errors.As(err, &unavailable) || !unavailable.Locked {
		t.Errorf("a lock that does not come: %v", err)
	}
	s.untouched(t)
	h.release()
	func() {
		defer func() {
			if got := recover(); got != "broken down" {
				t.Errorf("a call broke down with %v", got)
			}
		}()
		_ = s.store.Together(t.Context(), put, func(q *dbsqlc.Queries) error {
			if _, err := q.Now(t.Context()); err != nil {
				return err
			}
			panic("broken down")
		}, put)
	}()
	s.untouched(t)
}

// TestTogether_OutlivesAChangedTable: a statement that was prepared before a migration changed a type of
// its answer is prepared again, and its caller hears nothing of it; alone and in a batch.
func TestTogether_OutlivesAChangedTable(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	look := func(q *dbsqlc.Queries) error {
		_, err := q.Payloads(t.Context(), dbsqlc.PayloadsParams{StepIds: []uuid.UUID{uuid.New()}, Roles: []string{"INPUT"}})
		return err
	}
	for _, change := range []string{"SELECT", "ALTER TABLE payloads ALTER COLUMN content_type TYPE varchar(300)"} {
		s.exec(change)
		if err := s.store.Together(t.Context(), putting(t, "INPUT"), look); err != nil {
			t.Errorf("after %q: %v", change, err)
		}
	}
}
