package history_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/history"
)

// manyFinished fills the tables with n executions that succeeded at once, with all events. Ids are
// in order, so that the indexes are built fast.
const manyFinished = `
CREATE FUNCTION pg_temp.id(n integer) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid $$;
CREATE TEMP TABLE made AS
SELECT i, pg_temp.id(i * 16) AS e, pg_temp.id(i * 16 + 1) AS s, pg_temp.id(i * 16 + 2) AS a FROM generate_series(1, $1::integer) i;
INSERT INTO executions (id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, created_at, due_at, started_at,
    ended_at, cancel_grace, revision, sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts)
SELECT e, 'default', 'many', 'key ' || i, '', 'SUCCEEDED', 1, 0, false, now(), now(), now(), now(), '30 s', 4, 6, 4, 1, 0, 0, 0 FROM made;
INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents, opened_at, attempts_ended, counted)
SELECT s, e, 0, 'a', 1, 0, 'SUCCEEDED', '1 h', false, 0, now(), 1, 1 FROM made;
INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, lease_version, leased_at, start_to_close_at, ended_at, outcome,
    lease_entry, end_entry, progress, progress_message)
SELECT a, s, 1, 1, 'SUCCEEDED', e, e, 'w', i, now(), now(), now(), 'x', 2, 3, 0.5, 'half of ' || i FROM made;
INSERT INTO payloads (step_id, role, is_json, body) SELECT s, 'OUTPUT', true, convert_to(i::text, 'UTF8') FROM made;
INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, status, available_at, created_at)
SELECT pg_temp.id(i * 16 + 2 + t.n), 'default', e, 'leasehold.' || t.type, t.n,
    jsonb_strip_nulls(jsonb_build_object('round', 1, 'step_id', CASE WHEN t.n IN (3, 4, 5) THEN s END, 'attempt_id', CASE WHEN t.n IN (3, 4) THEN a END)),
    'PUBLISHED', now(), now()
FROM made, (VALUES (1, 'execution.v1.enqueued'), (2, 'execution.v1.started'), (3, 'attempt.v1.leased'), (4, 'attempt.v1.succeeded'),
    (5, 'step.v1.succeeded'), (6, 'execution.v1.succeeded')) t (n, type);
DROP TABLE made;
ANALYZE`

// TestCheck_ManyAttempts: a run of many attempts with five ops each and all deliveries is loaded
// and checked within bounds; with LEASEHOLD_FULL=1 thirty times as many. (A million is what `make soak`
// checks; here, under the race detector, they took 22 GB.) Seen with 150,000 attempts,
// 900,000 events, 750,000 ops and 900,000 deliveries, on two cores that twenty processes shared:
// loaded in 8 s, checked in 15 s; the tables took 157 MiB, the history 323 MiB, and all with
// indexes and garbage 1.2 GiB of the system.
func TestCheck_ManyAttempts(t *testing.T) {
	n := 5_000
	if os.Getenv("LEASEHOLD_FULL") == "1" {
		n = 150_000
	}
	conn := must[*pgx.Conn](t)(pgx.Connect(t.Context(), databases.New(t)))
	defer conn.Close(t.Context())
	config := "SET statement_timeout = 0; SET synchronous_commit = off"
	if _, err := conn.Exec(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), manyFinished, pgx.QueryExecModeSimpleProtocol, n); err != nil {
		t.Fatal(err)
	}
	before := heap()
	began := time.Now()
	c := must[history.Committed](t)(history.Load(t.Context(), conn, ""))
	loaded, tables := time.Since(began), heap()-before
	h := manyCalls(&c)
	calls := heap() - before - tables
	began = time.Now()
	none(t, "many", history.CheckFinished(h, c))
	t.Logf("%d attempts, %d events, %d ops, %d deliveries: loaded in %s, checked in %s; tables %d MiB, history %d MiB, taken from the system in all %d MiB",
		len(c.Attempts), len(c.Events), len(h.Ops), len(h.Deliveries), loaded, time.Since(began), tables>>20, calls>>20, system()>>20)
	if len(c.Attempts) != n || tables/int64(n) > 1500 {
		t.Errorf("%d attempts take %d bytes each", len(c.Attempts), tables/int64(n))
	}
	c.Attempts[n/2].Version = c.Attempts[n/3].Version
	if found := history.Check(h, c); len(found) == 0 {
		t.Error("one version of two attempts was not found")
	}
}

// manyCalls are the calls that made the tables, one after another.
func manyCalls(c *history.Committed) history.History {
	h := history.History{Sink: true}
	steps := map[uuid.UUID]*history.Step{}
	for i := range c.Steps {
		steps[c.Steps[i].ID] = &c.Steps[i]
	}
	keys := map[uuid.UUID]string{}
	for i := range c.Executions {
		keys[c.Executions[i].ID] = c.Executions[i].Key
	}
	progress := 0.5
	for i := range c.Attempts {
		a := &c.Attempts[i]
		s, at := steps[a.Step], a.Version*100
		common := history.Op{Client: "one", Outcome: history.OK, Attempt: a.ID, Version: a.Version, Session: a.Session}
		enqueue := history.Op{Kind: history.Enqueue, Outcome: history.OK, Namespace: "default", Key: keys[s.Execution], Execution: s.Execution, Number: 1, Begin: at, End: at + 1}
		grant, work, renew, report := common, common, common, common
		grant.Kind, grant.Execution, grant.Step, grant.Number, grant.Begin, grant.End = history.Grant, s.Execution, s.ID, 1, at+10, at+12
		work.Kind, work.Begin, work.End = history.Work, at+13, at+19
		renew.Kind, renew.Progress, renew.Message, renew.Begin, renew.End = history.Renew, &progress, a.Message, at+14, at+16
		report.Kind, report.Result, report.Output, report.Begin, report.End = history.Report, "SUCCEEDED", s.Output, at+20, at+22
		h.Ops = append(h.Ops, enqueue, grant, work, renew, report)
	}
	for i := range c.Events {
		e := &c.Events[i]
		h.Deliveries = append(h.Deliveries, history.Delivery{ID: e.ID, Type: e.Type, Execution: e.Execution, Sequence: e.Sequence, At: e.Sequence})
	}
	return h
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func system() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
