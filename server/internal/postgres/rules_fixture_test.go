package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// stand is a store on a database of its own, and plain SQL beside it.
type stand struct {
	t     *testing.T
	url   string
	store *postgres.Store
	sql   *pgxpool.Pool
	ear   ear // hears its stores
}

func newStand(t *testing.T) *stand {
	t.Helper()
	return standOn(t, databases.New(t), postgres.Config{Events: task.AllEventTypes()})
}

// standOn opens a store with a configuration; its URL is the given one unless set.
func standOn(t *testing.T, url string, c postgres.Config) *stand {
	t.Helper()
	s := &stand{t: t, url: url}
	s.store = s.open(c)
	s.sql = s.pool(nil)
	return s
}

// pool opens a pool for the test's own statements, with settings if given.
func (s *stand) pool(settings map[string]string) *pgxpool.Pool {
	s.t.Helper()
	cfg, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	maps.Copy(cfg.ConnConfig.RuntimeParams, settings)
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// open opens a further store: another replica.
func (s *stand) open(c postgres.Config) *postgres.Store {
	s.t.Helper()
	if c.URL == "" {
		c.URL = s.url
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(testWriter{s.t}, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	c.Observer = &s.ear
	store, err := postgres.Open(context.Background(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(store.Close)
	return store
}

// spec is an execution of independent steps with one capability.
func spec(capability string, steps int, change ...func(*task.ExecutionSpec)) *task.ExecutionSpec {
	e := &task.ExecutionSpec{Namespace: "default", Name: "test", CancelGrace: time.Minute}
	for i := range steps {
		e.Steps = append(e.Steps, task.StepSpec{
			Name: "s" + string(rune('a'+i%26)) + uuid.NewString()[:8], Capability: capability,
			Retry:        task.RetryPolicy{InitialInterval: time.Millisecond, BackoffCoefficient: 1, MaximumInterval: time.Second, MaximumAttempts: 3},
			StartToClose: time.Hour,
		})
	}
	for _, f := range change {
		f(e)
	}
	return e
}

func newExecution(e *task.ExecutionSpec) scheduler.NewExecution {
	n := scheduler.NewExecution{Spec: e, Hash: e.Fingerprint()}
	n.IDs.Execution = uuid.New()
	for range e.Steps {
		n.IDs.Steps = append(n.IDs.Steps, uuid.New())
	}
	return n
}

// enqueue accepts one execution and returns its ids.
func (s *stand) enqueue(e *task.ExecutionSpec) task.IDs {
	s.t.Helper()
	n := newExecution(e)
	results, err := s.store.Enqueue(s.t.Context(), []scheduler.NewExecution{n}, false, true)
	if err != nil || results[0].Err != nil || !results[0].Value.Created {
		s.t.Fatalf("enqueue: %v, %+v", err, results)
	}
	return n.IDs
}

// worker is a registered worker.
type worker struct {
	scheduler.Session
	reg scheduler.Registration
}

func (s *stand) register(name, capability string, slots int) worker {
	s.t.Helper()
	r := scheduler.Registration{Namespace: "default", Name: name, Capabilities: []string{capability}, Slots: slots}
	session, err := s.store.Register(s.t.Context(), r, uuid.New(), uuid.New())
	if err != nil {
		s.t.Fatalf("register: %v", err)
	}
	return worker{session, r}
}

func (w worker) offer(room int) task.Offer {
	set := map[string]bool{}
	for _, c := range w.reg.Capabilities {
		set[c] = true
	}
	return task.Offer{WorkerID: w.WorkerID, Namespace: w.reg.Namespace, Node: w.reg.Node, Capabilities: set, Room: room, Bytes: 1 << 20}
}

// claim claims up to room requests for a worker.
func (s *stand) claim(w worker, room int) (uuid.UUID, scheduler.Claimed) {
	s.t.Helper()
	id := uuid.New()
	c, err := s.store.Claim(s.t.Context(), scheduler.ClaimCommand{ClaimID: id, Offers: []task.Offer{w.offer(room)}, Limit: room, Expires: time.Minute})
	if err != nil {
		s.t.Fatalf("claim: %v", err)
	}
	return id, c
}

// assign makes the dispatch of claimed requests to a worker.
func assign(w worker, claim uuid.UUID, requests []task.Waiting, d time.Duration) scheduler.DispatchCommand {
	c := scheduler.DispatchCommand{ClaimID: claim}
	for _, r := range requests {
		c.Items = append(c.Items, scheduler.DispatchItem{
			Waiting: r, AttemptID: uuid.New(), WorkerID: w.WorkerID, SessionID: w.SessionID, Duration: d,
		})
	}
	return c
}

// lease claims and dispatches up to n requests, and returns what was granted.
func (s *stand) lease(w worker, n int, d time.Duration) []scheduler.LeaseView {
	s.t.Helper()
	id, claimed := s.claim(w, n)
	c := assign(w, id, claimed.Requests, d)
	if len(c.Items) == 0 {
		return nil
	}
	done, err := s.store.Dispatch(s.t.Context(), c)
	if err != nil {
		s.t.Fatalf("dispatch: %v", err)
	}
	var ids []uuid.UUID
	for id := range done.Granted {
		ids = append(ids, id)
	}
	views, err := s.store.Contents(s.t.Context(), ids)
	if err != nil {
		s.t.Fatalf("contents: %v", err)
	}
	return views
}

// leaseOne leases exactly one.
func (s *stand) leaseOne(w worker, d time.Duration) scheduler.LeaseView {
	s.t.Helper()
	views := s.lease(w, 1, d)
	if len(views) != 1 {
		s.t.Fatalf("got %d leases, want 1", len(views))
	}
	return views[0]
}

func success(l scheduler.LeaseView) scheduler.Report {
	return scheduler.Report{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{State: task.AttemptSucceeded}}
}

func failure(l scheduler.LeaseView) scheduler.Report {
	return scheduler.Report{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{
		State: task.AttemptFailed, Failure: &task.Failure{Type: "TEST", Message: "on purpose"},
	}}
}

func renewal(l scheduler.LeaseView, w worker, d time.Duration) scheduler.Renewal {
	return scheduler.Renewal{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: w.SessionID, Duration: d}
}

// report hands one report in, without waiting for locks.
func (s *stand) report(r scheduler.Report) (scheduler.Reported, error) {
	s.t.Helper()
	results, err := s.store.Report(s.t.Context(), []scheduler.Report{r}, false)
	if err != nil {
		s.t.Fatalf("report: %v", err)
	}
	return results[0].Value, results[0].Err
}

func (s *stand) renew(r scheduler.Renewal) (scheduler.Renewed, error) {
	s.t.Helper()
	results, err := s.store.Renew(s.t.Context(), []scheduler.Renewal{r}, false)
	if err != nil {
		s.t.Fatalf("renew: %v", err)
	}
	return results[0].Value, results[0].Err
}

// exec runs a statement of the test's own.
func (s *stand) exec(statement string, args ...any) {
	s.t.Helper()
	if _, err := s.sql.Exec(s.t.Context(), statement, args...); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

// query reads one value.
func query[T any](s *stand, statement string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.sql.QueryRow(s.t.Context(), statement, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// holder is a transaction of the test's own, which keeps its locks until it is released.
type holder struct {
	t  *testing.T
	tx pgx.Tx
}

// hold begins a transaction and runs statements in it. It ends with the test at the latest.
func (s *stand) hold(statement string, args ...any) *holder {
	s.t.Helper()
	tx, err := s.sql.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	h := &holder{s.t, tx}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	h.exec(statement, args...)
	return h
}

func (h *holder) exec(statement string, args ...any) {
	h.t.Helper()
	if _, err := h.tx.Exec(h.t.Context(), statement, args...); err != nil {
		h.t.Fatalf("%s: %v", statement, err)
	}
}

func (h *holder) release() {
	h.t.Helper()
	if err := h.tx.Commit(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// async runs a function and hands its error over.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// waiting waits until n sessions of the service wait for a lock.
func (s *stand) waiting(n int) {
	s.t.Helper()
	s.eventually("sessions that wait for a lock", func() bool {
		return query[int](s, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasehold' AND wait_event_type = 'Lock'`) >= n
	})
}

func (s *stand) eventually(what string, f func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

// refusedFor fails unless an error is a refusal for a reason.
func (s *stand) refusedFor(err error, reasons ...task.Reason) {
	s.t.Helper()
	var refused *scheduler.RefusedError
	if !errors.As(err, &refused) || !slices.Contains(reasons, refused.Reason) {
		s.t.Fatalf("got %v, want a refusal for %v", err, reasons)
	}
}

// sane checks what must hold after every scenario, from the tables, but for some things.
func (s *stand) sane(but ...string) {
	s.t.Helper()
	checks := map[string]string{
		"lease without live attempt": `SELECT count(*) FROM leases l WHERE NOT EXISTS
			(SELECT FROM attempts a WHERE a.id = l.attempt_id AND a.state = 'LEASED' AND a.lease_version = l.lease_version)`,
		"live attempt without lease": `SELECT count(*) FROM attempts a WHERE a.state = 'LEASED' AND NOT EXISTS
			(SELECT FROM leases l WHERE l.attempt_id = a.id)`,
		"numbers with gaps": `SELECT count(*) FROM (SELECT 1 FROM attempts GROUP BY step_id HAVING max(number) <> count(*)) x`,
		"versions that do not grow": `SELECT count(*) FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number > a.number
			WHERE b.lease_version <= a.lease_version`,
		"versions given twice": `SELECT count(*) FROM (SELECT 1 FROM attempts GROUP BY lease_version HAVING count(*) > 1) x`,
		"live attempts counted wrongly": `SELECT count(*) FROM executions e WHERE live_attempts <>
			(SELECT count(*) FROM leases l WHERE l.execution_id = e.id)`,
		"sequence with gaps": `SELECT count(*) FROM executions e WHERE e.sequence > 0 AND EXISTS (SELECT FROM outbox_events) AND e.sequence <>
			(SELECT count(*) FROM outbox_events o WHERE o.aggregate_id = e.id AND o.sequence BETWEEN 1 AND e.sequence)`,
		"timeline with gaps": `SELECT count(*) FROM executions e WHERE e.revision <>
			(SELECT count(DISTINCT sequence) FROM timeline t WHERE t.execution_id = e.id)`,
		"closed execution with open step": `SELECT count(*) FROM executions e JOIN steps s ON s.execution_id = e.id
			WHERE e.state IN ('SUCCEEDED', 'FAILED', 'CANCELED') AND s.state IN ('BLOCKED', 'READY')`,
		"open execution without open step": `SELECT count(*) FROM executions e WHERE e.state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')
			AND NOT EXISTS (SELECT FROM steps s WHERE s.execution_id = e.id AND s.state IN ('BLOCKED', 'READY'))`,
		"ready step that nobody will lease": `SELECT count(*) FROM steps s JOIN executions e ON e.id = s.execution_id
			WHERE s.state = 'READY' AND e.state IN ('CREATED', 'QUEUED', 'RUNNING') AND NOT e.stopping
			AND NOT EXISTS (SELECT FROM scheduling_requests r WHERE r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1)
			AND NOT EXISTS (SELECT FROM leases l WHERE l.step_id = s.id)`,
	}
	for what, statement := range checks {
		if slices.Contains(but, what) {
			continue
		}
		if n := query[int](s, statement); n != 0 {
			s.t.Errorf("%s: %d", what, n)
		}
	}
}

// rounds is how often something is tried: few in short form, many at full counts.
func rounds(short, full int) int {
	if os.Getenv("LEASEHOLD_FULL") != "" {
		return full
	}
	return short
}
