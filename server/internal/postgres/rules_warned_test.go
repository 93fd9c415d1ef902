package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// replicated is a stand whose PostgreSQL can be told to wait for a standby that is not there.
type replicated struct{ *stand }

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	pg := ownServer(t, map[string]string{"fsync": "off"})
	r := &replicated{standOn(t, pg.URL(), postgres.Config{Events: task.AllEventTypes()})}
	r.sql = r.pool(map[string]string{"synchronous_commit": "local"}) // the test's own statements wait for nobody
	return r
}

// missing makes commits wait for a standby that never comes, or no more.
func (r *replicated) missing(missing bool) {
	r.t.Helper()
	names := ""
	if missing {
		names = "nobody"
	}
	r.exec("ALTER SYSTEM SET synchronous_standby_names = '" + names + "'")
	r.exec("SELECT pg_reload_conf()")
	r.eventually("the setting", func() bool {
		conn, err := pgx.Connect(r.t.Context(), r.url)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close(context.Background()) }()
		var got string
		return conn.QueryRow(r.t.Context(), "SHOW synchronous_standby_names").Scan(&got) == nil && got == names
	})
	if missing { // the checkpointer must have seen it too: commits wait only from then on
		r.eventually("a commit that waits", r.probe)
	}
}

// probe tells whether a commit waits for the standby, by one that would.
func (r *replicated) probe() bool {
	ctx, cancel := context.WithTimeout(r.t.Context(), 200*time.Millisecond)
	defer cancel()
	conn, err := pgx.Connect(r.t.Context(), r.url)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'probe', '')")
	return err != nil
}

// cancelWait waits for a commit that waits for the standby, and cancels that wait: PostgreSQL
// answers the COMMIT with a warning.
func (r *replicated) cancelWait() {
	r.t.Helper()
	r.eventually("a commit that waits for the standby", func() bool {
		return query[int](r.stand, `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep' AND application_name = 'leasehold'`) > 0
	})
}

// warned runs a call whose commits are answered with warnings, and checks that it is answered
// only after one came without.
func (r *replicated) warned(what string, call func(ctx context.Context) error) {
	r.t.Helper()
	r.missing(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := async(func() error { return call(ctx) })
	for range 2 {
		r.cancelWait()
		select {
		case err := <-done:
			r.t.Fatalf("%s was answered (%v) on a commit with a warning", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.missing(false)
	select {
	case err := <-done:
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(30 * time.Second):
		r.t.Fatalf("%s is not answered although no standby is awaited any more", what)
	}
}

// Rule 10. A COMMIT that is answered with a warning was not replicated: it is no answer, and
// neither is what a repeat finds. Caught: a commit whose notices nobody looks at; a try that
// finds its own and commits without writing WAL; repeats (of an enqueue, a report, a cancel, a
// registration) without vouch.
func TestRepeats_AWarnedCommitIsNoAnswer(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	r.enqueue(spec("a", 1))
	w := r.register("w", "a", 5)
	l := r.leaseOne(w, 10*time.Minute)
	n := newExecution(spec("a", 1, func(e *task.ExecutionSpec) { e.IdempotencyKey = "k" }))
	enqueue := func(n scheduler.NewExecution, created bool) func(context.Context) error {
		return func(ctx context.Context) error {
			results, err := r.store.Enqueue(ctx, []scheduler.NewExecution{n}, false, true)
			if err == nil && results[0].Err == nil && results[0].Value.Created != created {
				err = errors.New("created is wrong")
			}
			return errors.Join(err, firstErr(results))
		}
	}
	reported := func(replayed bool) func(context.Context) error {
		return func(ctx context.Context) error {
			results, err := r.store.Report(ctx, []scheduler.Report{success(l)}, false)
			if err == nil && results[0].Value.Replayed != replayed {
				err = errors.New("replayed is wrong")
			}
			return errors.Join(err, firstErr(results))
		}
	}
	canceled := func(ctx context.Context) error { _, err := cancelOne(r.store, ctx, n.IDs.Execution, ""); return err }
	reg := scheduler.Registration{Namespace: "default", Name: "x", Capabilities: []string{"a"}, Slots: 1, RequestID: "r"}
	registered := func(ctx context.Context) error {
		_, err := r.store.Register(ctx, reg, uuid.New(), uuid.New())
		return err
	}
	r.warned("an enqueue", enqueue(n, true))
	r.warned("the same key again", enqueue(newExecution(n.Spec), false))
	r.warned("a report", reported(false))
	r.warned("the same report again", reported(true))
	r.warned("a cancel", canceled)
	r.warned("a second cancel", canceled)
	r.warned("a registration", registered)
	r.warned("the same registration again", registered)
	if got := query[int](r.stand, "SELECT count(*) FROM executions"); got != 2 {
		t.Errorf("%d executions, want 2", got)
	}
	if got := query[int](r.stand, "SELECT count(*) FROM sessions"); got != 2 {
		t.Errorf("%d sessions, want 2", got)
	}
	r.sane()
}

// Of what nobody is told, no commit waits for a standby (nor for the disk): claims, and what is given
// back of them. A dispatch waits. Caught: either without CommitLater.
func TestClaims_WaitForNoStandby(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	r.enqueue(spec("a", 1))
	w := r.register("w", "a", 5)
	r.missing(true)

	within, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	c := scheduler.ClaimCommand{ClaimID: uuid.New(), Offers: []task.Offer{w.offer(1)}, Limit: 1, Expires: time.Minute}
	claimed, err := r.store.Claim(within, c)
	if err != nil || len(claimed.Requests) != 1 {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
	if err := r.store.Free(within, c.ClaimID, []uuid.UUID{claimed.Requests[0].StepID}); err != nil {
		t.Fatalf("free: %v", err)
	}
	c.ClaimID = uuid.New()
	if claimed, err = r.store.Claim(within, c); err != nil || len(claimed.Requests) != 1 {
		t.Fatalf("claimed again %+v, %v", claimed, err)
	}
	dispatched := async(func() error {
		_, err := r.store.Dispatch(t.Context(), assign(w, c.ClaimID, claimed.Requests, time.Minute))
		return err
	})
	r.cancelWait()
	r.missing(false)
	if err := <-dispatched; err != nil {
		t.Errorf("dispatch: %v", err)
	}
	r.sane()
}
