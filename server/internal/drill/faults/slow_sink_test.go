package faults

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/testsink"
)

// TestRelay_SlowSinkHoldsNothing: the sink takes 5 s for each event. While events of an
// execution are in flight, no transaction of the service is open for long and none holds locks
// for long, as pg_stat_activity and pg_locks tell; the rows of that execution and of its
// events can be locked at once; and its reports stay fast. Broken once: an event
// posted inside the claim's transaction.
func TestRelay_SlowSinkHoldsNothing(t *testing.T) {
	alongside(t)
	const executions, steps, takes = 4, 4, 5 * time.Second
	r := testsink.StartReceiver(t, func(_ http.ResponseWriter, req *http.Request, _ *testsink.Delivery) {
		select {
		case <-time.After(takes):
		case <-req.Context().Done():
		}
	})
	c := newRelayed(t, clusterConfig{replicas: 2}, r.URL)
	p := dial(t, c.replicas[0].addr)
	ids := enqueueChains(t, p, executions, steps)
	eventually(t, 20*time.Second, "an event of each execution in flight", func() bool { return len(r.Deliveries()) >= executions })
	w := watchActivity(t, c)
	h := newHand(t, p, executions, "slow")
	var slowest time.Duration
	for range steps {
		for _, lease := range h.take(p, executions, time.Minute) {
			began := time.Now()
			if err := h.succeed(t.Context(), p, lease); err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(began))
			lockAtOnce(t, c, lease.GetExecutionId())
		}
	}
	eventually(t, 4*takes, "the next event of each in flight", func() bool { return len(r.Deliveries()) >= 2*executions })
	w.end()
	if n := c.events("PUBLISHING"); n == 0 {
		t.Error("no event is in flight any more: was the sink slow?")
	}
	t.Logf("%d reports while events of their executions were in flight, the slowest took %s; the longest transaction of %d looks was %s",
		executions*steps, slowest, w.looks, w.longest)
	if limit := takes / 2; slowest > limit {
		t.Errorf("a report took %s, want less than %s", slowest, limit)
	}
	if n := c.number(`SELECT count(*) FROM executions WHERE state = 'SUCCEEDED' AND id::text = ANY ($1)`, ids); n != executions {
		t.Errorf("%d executions succeeded, want %d", n, executions)
	}
}

// enqueueChains enqueues executions whose steps come one after the other.
func enqueueChains(t *testing.T, p *peer, executions, steps int) []string {
	t.Helper()
	var ids []string
	for range executions {
		req := &leaseholdv1.EnqueueExecutionRequest{Name: "chain", IdempotencyKey: uuid.NewString()}
		for i := range steps {
			step := &leaseholdv1.StepSpec{Name: fmt.Sprint("s", i), Capability: "slow"}
			if i > 0 {
				step.DependsOn = []string{fmt.Sprint("s", i-1)}
			}
			req.Steps = append(req.Steps, step)
		}
		answer, err := p.executions.EnqueueExecution(t.Context(), req)
		if err != nil {
			t.Fatalf("enqueue: %v", err)
		}
		ids = append(ids, answer.GetExecution().GetId())
	}
	return ids
}

// lockAtOnce locks what the relay works on, without any wait: the execution, its head, and its
// events, those in flight among them.
func lockAtOnce(t *testing.T, c *cluster, execution string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var failed error
	for range 20 { // the service itself holds them for milliseconds, again and again
		failed = pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
			for _, rows := range []string{
				`SELECT id FROM executions WHERE id = $1 FOR UPDATE NOWAIT`,
				`SELECT aggregate_id FROM outbox_heads WHERE aggregate_id = $1 FOR UPDATE NOWAIT`,
				`SELECT id FROM outbox_events WHERE aggregate_id = $1 FOR UPDATE NOWAIT`,
			} {
				if _, err := tx.Exec(ctx, rows, execution); err != nil {
					return fmt.Errorf("%s: %w", rows, err)
				}
			}
			return nil
		})
		if failed == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("rows of execution %s stay locked while its event is in flight: %v", execution, failed)
}

// activity is what PostgreSQL tells of the service's sessions, looked at again and again.
type activity struct {
	t       *testing.T
	stop    context.CancelFunc
	done    sync.WaitGroup
	looks   int
	longest time.Duration
}

// longHeld are the service's transactions that are open for more than a second, with what
// they hold. The sessions that listen have none.
const longHeld = `SELECT format('%s, %s, open for %s, holds %s: %s', a.usename, a.state, now() - a.xact_start,
		(SELECT string_agg(DISTINCT k.mode || ' on ' || k.relation::regclass::text, ', ') FROM pg_locks k
		 WHERE k.pid = a.pid AND k.granted AND k.relation IS NOT NULL AND k.mode <> 'AccessShareLock'), a.query)
	FROM pg_stat_activity a WHERE a.datname = current_database() AND a.usename = ANY ($1) AND a.xact_start < now() - $2::interval`

// watchActivity looks until it is ended.
func watchActivity(t *testing.T, c *cluster) *activity {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &activity{t: t, stop: stop}
	roles := c.roles()
	w.done.Go(func() {
		for ctx.Err() == nil {
			w.look(ctx, c, roles)
			pause(ctx, 20*time.Millisecond)
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *activity) look(ctx context.Context, c *cluster, roles []string) {
	var longest float64
	const oldest = `SELECT COALESCE(max(extract(epoch FROM now() - xact_start)), 0)::float8 FROM pg_stat_activity
		WHERE datname = current_database() AND usename = ANY ($1)`
	if err := c.db.QueryRow(ctx, oldest, roles).Scan(&longest); err != nil {
		if ctx.Err() == nil {
			w.t.Error(err)
		}
		return
	}
	w.looks++
	w.longest = max(w.longest, time.Duration(longest*float64(time.Second)))
	rows, err := c.db.Query(ctx, longHeld, roles, (time.Second + slack()/2).String())
	if err != nil {
		return // the look is over
	}
	list, _ := pgx.CollectRows(rows, pgx.RowTo[string]) // as above
	for _, held := range list {
		w.t.Errorf("while events were in flight: %s", held)
		w.stop() // once is enough
	}
}

// end ends the looks.
func (w *activity) end() {
	w.stop()
	w.done.Wait()
}
