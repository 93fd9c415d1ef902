package history_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
)

// crowd is producers, workers and an operator at work on replicas that are killed now and then.
type crowd struct {
	*world
	ctx context.Context

	mu        sync.Mutex
	clients   []*drill.Client // of the replicas that live
	ids       []string        // of executions that were accepted
	refusals  int             // of late reports
	newest    int
	producing sync.WaitGroup
	working   sync.WaitGroup
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	c := &crowd{world: newWorld(t, 3), ctx: t.Context(), newest: 2}
	for i := range 3 {
		c.clients = append(c.clients, c.client(fmt.Sprint("client ", i), i))
	}
	return c
}

// any is a client of some replica.
func (c *crowd) any() *drill.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clients[rand.IntN(len(c.clients))]
}

// some is an execution that was accepted, or nothing.
func (c *crowd) some() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ids) == 0 {
		return ""
	}
	return c.ids[rand.IntN(len(c.ids))]
}

// produce enqueues executions, each until it is accepted.
func (c *crowd) produce(producer, n int) {
	for i := range n {
		request := graph(fmt.Sprint("p", producer, "-", i), step("a"), step("b", "a"), once("c", "a"), step("d", "b", "c"))
		for c.ctx.Err() == nil {
			answer, err := c.any().Executions.EnqueueExecution(c.ctx, request)
			if err == nil {
				c.mu.Lock()
				c.ids = append(c.ids, answer.GetExecution().GetId())
				c.mu.Unlock()
				break
			}
			c.pause(50 * time.Millisecond)
		}
	}
}

// pause lets time pass where there is nothing to wait for.
func (c *crowd) pause(d time.Duration) {
	select {
	case <-c.ctx.Done():
	case <-time.After(d):
	}
}

// work polls until it is told to stop: each poll until it is answered.
func (c *crowd) work(name string, stop <-chan struct{}) {
	var w *drill.Worker
	for w == nil {
		w, _ = c.any().Register(c.ctx, &leaseholdv1.RegisterWorkerRequest{Name: name, Capabilities: []string{work}, Slots: 8})
	}
	for request := uuid.NewString(); ; {
		select {
		case <-stop:
			return
		default:
		}
		answer, err := w.Via(c.any()).Lease(c.ctx, drill.Poll{Max: 4, Wait: time.Second, TTL: time.Second, Request: request})
		if err != nil {
			c.pause(20 * time.Millisecond)
			continue
		}
		request = uuid.NewString()
		var group sync.WaitGroup
		for _, l := range answer.GetLeases() {
			group.Go(func() { c.workOn(name, w, l) })
		}
		group.Wait()
	}
}

// workOn does a step: mostly well, sometimes until the lease has run out.
func (c *crowd) workOn(name string, w *drill.Worker, l *leaseholdv1.Lease) {
	stopped := c.recorder.Working(name, l)
	c.renew(w, l)
	report := done()
	switch p := rand.Float64(); {
	case p < 0.08:
		report = broken()
	case p < 0.16:
		report = drill.Released("not now", 0)
	case p < 0.20:
		c.pause(1500 * time.Millisecond) // longer than the lease
		c.renew(w, l)
	}
	stopped()
	for range 3 { // again and again, also where nobody knows whether it was done
		_, err := w.Via(c.any()).Report(c.ctx, l, report)
		if reason := drill.Reason(err); err != nil && reason != "" && reason != "STORAGE_UNAVAILABLE" {
			c.mu.Lock()
			c.refusals++
			c.mu.Unlock()
			return
		}
		if err == nil && rand.Float64() < 0.9 {
			return
		}
	}
}

// renew renews a lease, with progress and a checkpoint that no other renewal has. It may be too
// late.
func (c *crowd) renew(w *drill.Worker, l *leaseholdv1.Lease) {
	progress := rand.Float64()
	_, _ = c.any().Workers.RenewLease(c.ctx, &leaseholdv1.RenewLeaseRequest{ // what is answered is recorded
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: w.Session, LeaseDuration: l.GetLeaseDuration(),
		Progress: &progress, ProgressMessage: fmt.Sprint(progress), Checkpoint: drill.JSON(fmt.Sprint(progress)),
	})
}

// operate cancels, terminates, retries and looks at executions.
func (c *crowd) operate(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		id, replica := c.some(), c.any()
		if id == "" {
			continue
		}
		switch rand.IntN(12) { // whatever is answered is recorded
		case 0:
			_, _ = replica.Executions.CancelExecution(c.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
		case 1:
			_, _ = replica.Operators.TerminateExecution(c.ctx, &leaseholdv1.TerminateExecutionRequest{ExecutionId: id})
		case 2, 3:
			_, _ = replica.Executions.RetryExecution(c.ctx, &leaseholdv1.RetryExecutionRequest{ExecutionId: id, RequestId: uuid.NewString()})
		default:
			_, _ = replica.Get(c.ctx, id)
		}
	}
}

// replace kills the replica that a client was told of first, and starts another one.
func (c *crowd) replace(i int) {
	c.t.Helper()
	c.Replica(i).Kill()
	if _, err := c.Add(c.ctx); err != nil {
		c.t.Fatal(err)
	}
	c.newest++
	fresh := c.client(fmt.Sprint("client ", c.newest), c.newest)
	c.mu.Lock()
	c.clients = append(slices.Clone(c.clients[1:]), fresh)
	c.mu.Unlock()
}

// run does n executions of each of 4 producers while replicas are killed, and checks now and then
// what is there so far.
func (c *crowd) run(n int, conn *pgx.Conn) {
	c.t.Helper()
	stop := make(chan struct{})
	for i := range 4 {
		c.producing.Go(func() { c.produce(i, n) })
		c.working.Go(func() { c.work(fmt.Sprint("worker ", i), stop) })
	}
	c.producing.Go(func() { c.operate(stop) })
	for i := range 4 {
		c.pause(time.Second)
		c.replace(i)
		at := history.Now()
		committed := c.load(conn, "")
		none(c.t, "meanwhile", history.Check(c.recorder.History().Until(at), committed))
	}
	close(stop)
	c.producing.Wait()
	c.working.Wait()
	stop = make(chan struct{})
	for i := range 4 {
		c.working.Go(func() { c.work(fmt.Sprint("worker ", i), stop) })
	}
	c.settled(conn)
	close(stop)
	c.working.Wait()
}

// TestCheck_RealClients: producers, workers and an operator at work while replicas are killed,
// with late reports. All promises are kept; and then the tables are tampered with, bit by bit.
func TestCheck_RealClients(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	conn := c.connect()
	c.run(75, conn)
	h := c.recorder.History()
	committed := c.load(conn, "")
	none(t, "at the end", history.CheckFinished(h, committed))
	none(t, "of the namespace", history.CheckFinished(h, c.load(conn, "default")))
	t.Logf("%d ops, %d deliveries; %d executions, %d attempts, %d events; %d late reports",
		len(h.Ops), len(h.Deliveries), len(committed.Executions), len(committed.Attempts), len(committed.Events), c.refusals)
	if c.refusals == 0 || len(committed.Executions) < 300 {
		t.Errorf("%d executions, %d late reports: too little happened", len(committed.Executions), c.refusals)
	}
	c.Stop() // nobody shall act on what is done now
	for _, tampering := range tamperings() {
		c.tamper(conn, h, tampering.rule, tampering.statement)
	}
	none(t, "after all was taken back", history.CheckFinished(h, c.load(conn, "")))
}

// tamperings are changes that no call made, and the rule that has to tell.
func tamperings() []struct{ rule, statement string } {
	return []struct{ rule, statement string }{
		{"durable", `UPDATE attempts SET state = 'FAILED' WHERE id = (SELECT id FROM attempts WHERE state = 'SUCCEEDED' LIMIT 1)`},
		{"one-lease", `UPDATE attempts SET ended_at = ended_at + interval '1 h' WHERE id = (SELECT id FROM attempts WHERE next_due IS NOT NULL LIMIT 1)`},
		{"events", `DELETE FROM outbox_events WHERE id = (SELECT id FROM outbox_events ORDER BY id LIMIT 1)`},
		{"delivery", `DELETE FROM outbox_events WHERE id = (SELECT id FROM outbox_events ORDER BY id LIMIT 1)`},
		{"retries", `UPDATE steps SET counted = counted + 1 WHERE id = (SELECT id FROM steps WHERE counted > 0 LIMIT 1)`},
		{"parents", `UPDATE steps SET state = 'FAILED' WHERE name = 'a' AND id = (SELECT d.parent_id FROM step_edges d JOIN steps s ON s.id = d.child_id WHERE s.state = 'SUCCEEDED' AND s.name = 'b' LIMIT 1)`},
		{"durable", `DELETE FROM payloads WHERE role = 'OUTPUT' AND step_id = (SELECT step_id FROM payloads WHERE role = 'OUTPUT' LIMIT 1)`},
		{"durable", `UPDATE attempts SET progress = 2 WHERE id = (SELECT id FROM attempts WHERE progress IS NOT NULL LIMIT 1)`},
		{"refused", `DELETE FROM timeline_entries WHERE milestone LIKE 'late/%'`},
		{"cancel", `UPDATE executions SET state = 'FAILED' WHERE id = (SELECT id FROM executions WHERE state = 'CANCELED' LIMIT 1)`},
		{"final", `UPDATE executions SET end_entry = end_entry - 1 WHERE id = (SELECT id FROM executions WHERE state = 'SUCCEEDED' LIMIT 1)`},
		{"whole", `DELETE FROM attempts WHERE id = (SELECT id FROM attempts WHERE state = 'SUCCEEDED' LIMIT 1)`},
		{"versions", `UPDATE attempts SET lease_version = 1 WHERE id = (SELECT id FROM attempts WHERE number = 2 LIMIT 1)`},
		{"keys", `UPDATE executions SET idempotency_key = idempotency_key || 'x' WHERE idempotency_key = 'p0-0'; UPDATE executions SET idempotency_key = 'p0-0' WHERE idempotency_key = 'p0-1'`},
		{"ends", `UPDATE executions SET state = 'RUNNING', ended_at = NULL WHERE id = (SELECT id FROM executions WHERE state = 'SUCCEEDED' LIMIT 1)`},
	}
}

// tamper changes the tables, fails the test unless that is found, and takes it back.
func (c *crowd) tamper(conn *pgx.Conn, h history.History, rule, statement string) {
	c.t.Helper()
	undo := c.keepTables(conn)
	if _, err := conn.Exec(c.ctx, statement); err != nil {
		c.t.Fatalf("%s: %v", statement, err)
	}
	found := history.CheckFinished(h, c.load(conn, ""))
	if !slices.ContainsFunc(found, func(v history.Violation) bool { return v.Rule == rule }) {
		c.t.Errorf("%s: found %v, want one of rule %s", statement, found, rule)
	}
	undo()
}

// keepTables remembers the tables that are tampered with, but for columns that are computed.
func (c *crowd) keepTables(conn *pgx.Conn) (undo func()) {
	c.t.Helper()
	var back strings.Builder
	for _, table := range []string{"executions", "steps", "attempts", "payloads", "timeline_entries", "outbox_events"} {
		var columns string
		err := conn.QueryRow(c.ctx, `SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute
			WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''`, table).Scan(&columns)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := conn.Exec(c.ctx, fmt.Sprintf("CREATE TEMP TABLE kept_%s AS SELECT %s FROM %s", table, columns, table)); err != nil {
			c.t.Fatal(err)
		}
		fmt.Fprintf(&back, "TRUNCATE %[1]s; INSERT INTO %[1]s (%[2]s) SELECT %[2]s FROM kept_%[1]s; DROP TABLE kept_%[1]s;", table, columns)
	}
	return func() {
		c.t.Helper()
		if _, err := conn.Exec(c.ctx, back.String()); err != nil {
			c.t.Fatal(err)
		}
	}
}
