package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/postgres"
)

// TestMetrics_EachDoesWhatItSays makes every metric of the table in METRICS.md move, on a server
// with a sink, by what it is about; then it compares the table with what the server shows, and
// lints that.
func TestMetrics_EachDoesWhatItSays(t *testing.T) {
	t.Parallel()
	s := newScenario(t)
	s.calls()
	s.queues()
	s.attempts()
	s.lateness()
	s.outbox()
	s.transactions()
	s.loops()
	s.retention()
	text := s.lintAndRead()
	s.withoutDatabase()
	compareWithTable(t, parseMetrics(t, text), s.seen)
}

// scenario is a server, its database and its sink, and a worker.
type scenario struct {
	meter
	t          *testing.T
	ctx        context.Context
	sql        *pgx.Conn
	stop       func() // the database
	sink       *gate
	executions leaseholdv1.ExecutionServiceClient
	workers    leaseholdv1.WorkerServiceClient
	worker     *leaseholdv1.RegisterWorkerResponse
}

// gate is a sink that holds requests while it is shut, and answers with a status.
type gate struct {
	status atomic.Int32
	came   atomic.Int32
	closed atomic.Pointer[chan struct{}]
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.came.Add(1)
	if closed := g.closed.Load(); closed != nil {
		select {
		case <-*closed:
		case <-r.Context().Done():
		}
	}
	w.WriteHeader(int(g.status.Load()))
}

// shut holds requests until it is opened.
func (g *gate) shut(t *testing.T) (open func()) {
	closed := make(chan struct{})
	g.closed.Store(&closed)
	open = sync.OnceFunc(func() { g.closed.Store(nil); close(closed) })
	t.Cleanup(open)
	return open
}

func newScenario(t *testing.T) *scenario {
	t.Helper()
	s := &scenario{t: t, ctx: t.Context(), sink: &gate{}}
	server := startPostgres(t)
	s.stop = server.Kill
	if err := postgres.Migrate(s.ctx, server.URL(), slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	// The service was away for an hour.
	if err := execSQL(server.URL(), "UPDATE sweeps SET swept_at = now() - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.sql, err = pgx.Connect(s.ctx, server.URL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.sql.Close(context.Background()) })
	s.sink.status.Store(http.StatusNoContent)
	receiver := httptest.NewServer(s.sink)
	t.Cleanup(receiver.Close)
	p := startServe(t, server.URL(), "--sweep-interval", "100ms", "--database-max-conns", "7", "--sink", receiver.URL,
		"--execution-retention", "150s") // beyond this test; what is old is looked for every 15 s
	s.meter = meter{p, map[string]bool{}}
	conn := p.dial()
	s.executions, s.workers = leaseholdv1.NewExecutionServiceClient(conn), leaseholdv1.NewWorkerServiceClient(conn)
	s.worker, err = s.workers.RegisterWorker(s.ctx, &leaseholdv1.RegisterWorkerRequest{Name: "w", Capabilities: []string{"work"}, Slots: 5})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// exec returns how many rows a statement changed.
func (s *scenario) exec(statement string, args ...any) int64 {
	s.t.Helper()
	done, err := s.sql.Exec(s.ctx, statement, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
	return done.RowsAffected()
}

// enqueue asks for an execution of one step.
func (s *scenario) enqueue(change ...func(*leaseholdv1.EnqueueExecutionRequest)) (id string, err error) {
	r := &leaseholdv1.EnqueueExecutionRequest{Name: "case", Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "work"}}}
	for _, f := range change {
		f(r)
	}
	answer, err := s.executions.EnqueueExecution(s.ctx, r)
	return answer.GetExecution().GetId(), err
}

func (s *scenario) mustEnqueue(change ...func(*leaseholdv1.EnqueueExecutionRequest)) string {
	s.t.Helper()
	id, err := s.enqueue(change...)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// lease waits for one lease.
func (s *scenario) lease(d time.Duration) *leaseholdv1.Lease {
	s.t.Helper()
	answer, err := s.workers.LeaseAttempt(s.ctx, &leaseholdv1.LeaseAttemptRequest{
		WorkerId: s.worker.GetWorkerId(), SessionId: s.worker.GetSessionId(), WaitTimeout: durationpb.New(50 * time.Second),
		LeaseDuration: durationpb.New(d),
	})
	if err != nil || len(answer.GetLeases()) != 1 {
		s.t.Fatalf("LeaseAttempt: %v, %v", answer, err)
	}
	return answer.GetLeases()[0]
}

func (s *scenario) report(l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) error {
	r.AttemptId, r.LeaseVersion = l.GetAttemptId(), l.GetLeaseVersion()
	_, err := s.workers.ReportAttempt(s.ctx, r)
	return err
}

func (s *scenario) mustReport(l *leaseholdv1.Lease, r *leaseholdv1.ReportAttemptRequest) {
	s.t.Helper()
	if err := s.report(l, r); err != nil {
		s.t.Fatal(err)
	}
}

func success() *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{}}}
}

// calls: gRPC, and how producers are answered.
func (s *scenario) calls() {
	method := labels{"grpc_service": "leasehold.v1.ExecutionService", "grpc_method": "EnqueueExecution"}
	keyed := func(name string) func() {
		return func() {
			_, err := s.enqueue(func(r *leaseholdv1.EnqueueExecutionRequest) {
				r.IdempotencyKey, r.Name, r.Steps[0].Capability = "key", name, "nobody"
			})
			if c := status.Code(err); c != codes.OK && c != codes.AlreadyExists {
				s.t.Error(err)
			}
		}
	}
	s.rises("leasehold_enqueues_total", labels{"answer": "created"}, 1, keyed("a"))
	s.rises("leasehold_enqueues_total", labels{"answer": "existing"}, 1, keyed("a"))
	s.rises("leasehold_enqueues_total", labels{"answer": "conflict"}, 1, keyed("b"))
	s.rises("grpc_server_handled_total", labels{"grpc_method": "EnqueueExecution", "grpc_code": "AlreadyExists"}, 1, keyed("b"))
	for _, name := range []string{"started_total", "handling_seconds", "msg_received_total"} {
		s.rises("grpc_server_"+name, method, 1, keyed("a"))
	}
	s.rises("grpc_server_msg_sent_total", method, 1, keyed("a"))
	s.rises("leasehold_group_commit_calls", labels{"kind": "enqueues"}, 1, keyed("a"))
	s.becomes("leasehold_build_info", labels{"version": version}, "1", equals(1))
	s.becomes("leasehold_outage_credits_total", nil, "1", equals(1))
	s.becomes("leasehold_database_connections_max", nil, "7", equals(7))
	s.becomes("leasehold_database_connections", nil, "some", above(0))
	s.becomes("leasehold_database_connection_waits_total", nil, "some", above(0))
	s.becomes("leasehold_database_connection_wait_seconds_total", nil, "some", above(0))
}

// queues: what waits and runs; the numbers are those of the tables.
func (s *scenario) queues() {
	s.mustEnqueue(func(r *leaseholdv1.EnqueueExecutionRequest) {
		r.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(time.Hour)}
	})
	s.mustEnqueue()
	running := s.lease(time.Hour)
	of := func(capability, state string) labels {
		return labels{"namespace": "default", "capability": capability, "state": state}
	}
	s.becomes("leasehold_queue_attempts", of("work", "running"), "1", equals(1))
	s.becomes("leasehold_queue_attempts", of("work", "delayed"), "1", equals(1))
	s.becomes("leasehold_queue_attempts", of("work", "ready"), "0", equals(0))
	s.becomes("leasehold_queue_attempts", of("nobody", "ready"), "1", equals(1))
	s.becomes("leasehold_queue_oldest_ready_age_seconds", labels{"capability": "work"}, "0", equals(0))
	s.becomes("leasehold_queue_oldest_ready_age_seconds", labels{"capability": "nobody"}, "some", above(0))
	s.mustReport(running, success())
	s.becomes("leasehold_queue_attempts", of("work", "running"), "0", equals(0))
}

// attempts: the way of attempts through a dispatch to their ends.
func (s *scenario) attempts() {
	var leased *leaseholdv1.Lease
	granted := func() { s.mustEnqueue(); leased = s.lease(time.Minute) }
	for name, want := range map[string]labels{
		"leasehold_dispatch_rounds_total":            {"result": "granted"},
		"leasehold_dispatch_batch_requests":          {"stage": "granted"},
		"leasehold_dispatch_ready_to_leased_seconds": nil,
	} {
		s.grows(name, want, granted)
		s.mustReport(leased, success())
	}
	s.becomes("leasehold_dispatch_round_duration_seconds", nil, "some", above(0))

	granted()
	s.rises("leasehold_attempts_ended_total", labels{"outcome": "SUCCEEDED"}, 1, func() { s.mustReport(leased, success()) })
	granted()
	failed := &leaseholdv1.ReportAttemptRequest{Outcome: &leaseholdv1.ReportAttemptRequest_Failed_{
		Failed: &leaseholdv1.ReportAttemptRequest_Failed{Failure: &leaseholdv1.Failure{Type: "test", Message: "test"}},
	}}
	s.rises("leasehold_attempt_retries_total", labels{"outcome": "FAILED"}, 1, func() { s.mustReport(leased, failed) })
	again := s.lease(time.Minute)
	s.rises("leasehold_executions_ended_total", labels{"state": "SUCCEEDED"}, 1, func() { s.mustReport(again, success()) })
	s.rises("leasehold_timers_fired_total", nil, 1, func() {
		s.mustEnqueue(func(r *leaseholdv1.EnqueueExecutionRequest) {
			r.Timeout, r.Steps[0].Capability = durationpb.New(50*time.Millisecond), "nobody"
		})
	})
}

// lateness: leases that run out, and what comes after; then a poll and a watch that wait.
func (s *scenario) lateness() {
	s.mustEnqueue()
	var lost *leaseholdv1.Lease
	s.rises("leasehold_leases_expired_total", nil, 1, func() { lost = s.lease(time.Second) })
	next := s.lease(time.Minute)
	s.rises("leasehold_late_calls_refused_total", labels{"call": "report", "reason": "LEASE_SUPERSEDED"}, 1, func() {
		if code := status.Code(s.report(lost, success())); code != codes.FailedPrecondition {
			s.t.Errorf("a late report: %s", code)
		}
	})
	s.mustReport(next, success())
	polled := make(chan *leaseholdv1.Lease, 1)
	go func() {
		answer, _ := s.workers.LeaseAttempt(s.ctx, &leaseholdv1.LeaseAttemptRequest{
			WorkerId: s.worker.GetWorkerId(), SessionId: s.worker.GetSessionId(), WaitTimeout: durationpb.New(50 * time.Second),
		})
		polled <- answer.GetLeases()[0]
	}()
	s.becomes("leasehold_parked_polls", nil, "1", equals(1))
	s.mustEnqueue()
	s.mustReport(<-polled, success())
	s.becomes("leasehold_parked_polls", nil, "0", equals(0))

	watching, leave := context.WithCancel(s.ctx)
	defer leave()
	id := s.mustEnqueue(func(r *leaseholdv1.EnqueueExecutionRequest) { r.Steps[0].Capability = "nobody" })
	if _, err := s.executions.WatchExecution(watching, &leaseholdv1.WatchExecutionRequest{ExecutionId: id}); err != nil {
		s.t.Fatal(err)
	}
	s.becomes("leasehold_watches", nil, "1", equals(1))
	leave()
	s.becomes("leasehold_watches", nil, "0", equals(0))
}

// outbox: events that wait for a sink which is slow, fails, and refuses; and a claim that another
// takes over.
func (s *scenario) outbox() {
	const publishing, tries = "leasehold_outbox_events", "leasehold_outbox_publish_tries_total"
	s.published()
	work := func() { s.mustEnqueue(); s.mustReport(s.lease(time.Minute), success()) } // two events
	s.rises(tries, labels{"result": "acknowledged"}, 2, work)
	s.rises("leasehold_outbox_publish_duration_seconds", nil, 2, work)
	s.published()

	open := s.sink.shut(s.t)
	came := s.sink.came.Load()
	work()
	eventually(s.t, "a request at the sink", func() bool { return s.sink.came.Load() > came })
	s.becomes(publishing, labels{"status": "PUBLISHING"}, "some", above(0))
	s.becomes("leasehold_outbox_oldest_unsent_age_seconds", nil, "some", above(0))
	s.rises("leasehold_outbox_lost_claims_total", nil, 1, func() {
		eventually(s.t, "a claim to take over", func() bool {
			return s.exec("UPDATE outbox_heads SET claim_id = gen_random_uuid() WHERE claim_expires_at > now()") == 1
		})
		open()
	})
	// The other's claim is over: this relay takes it up again.
	s.exec("UPDATE outbox_heads SET claim_expires_at = now() - interval '1 second'")
	s.published()
	s.becomes(publishing, labels{"status": "PUBLISHING"}, "0", equals(0))
	s.becomes("leasehold_outbox_oldest_unsent_age_seconds", nil, "0", equals(0))

	s.sink.status.Store(http.StatusGone)
	s.rises(tries, labels{"result": "refused"}, 1, work)
	s.becomes(publishing, labels{"status": "DEAD"}, "1", equals(1))
	s.becomes(publishing, labels{"status": "PENDING"}, "1, behind the dead one", equals(1))
	s.sink.status.Store(http.StatusInternalServerError)
	work()
	s.becomes(tries, labels{"result": "failed"}, "some", above(0))
}

// published waits until nothing waits for the sink.
func (s *scenario) published() {
	s.t.Helper()
	s.await("all events are published", func() bool {
		var left int
		err := s.sql.QueryRow(s.ctx, "SELECT count(*) FROM outbox_heads").Scan(&left)
		return err == nil && left == 0
	})
}

// transactions: one that is left open holds a row for which others wait in vain.
func (s *scenario) transactions() {
	id := s.mustEnqueue(func(r *leaseholdv1.EnqueueExecutionRequest) { r.Steps[0].Capability = "nobody" })
	s.exec("BEGIN")
	s.exec("SELECT id FROM executions WHERE id = $1 FOR UPDATE", id)
	began := time.Now()
	const why = "leasehold_transaction_failures_total"
	s.rises(why, labels{"use_case": "cancel", "reason": "timeout"}, 1, func() {
		_, err := s.executions.CancelExecution(s.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
		if status.Code(err) != codes.Unavailable {
			s.t.Errorf("cancel of a held execution: %v", err)
		}
	})
	s.becomes("leasehold_transaction_lock_wait_seconds", labels{"use_case": "cancel"}, "some", above(0))
	s.becomes("leasehold_database_oldest_transaction_seconds", nil, "the age of ours", above(time.Since(began).Seconds()))
	s.exec("ROLLBACK")
	s.becomes("leasehold_database_oldest_transaction_seconds", nil, "young", func(v float64) bool { return v < 1 })
	s.rises("leasehold_transaction_duration_seconds", labels{"use_case": "register_worker"}, 1, func() {
		if _, err := s.workers.RegisterWorker(s.ctx, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"more"}}); err != nil {
			s.t.Error(err)
		}
	})
}

// loops: one that cannot do its work is told by its age, and the others live.
func (s *scenario) loops() {
	const age = "leasehold_loop_last_success_age_seconds"
	sweeper := labels{"loop": "sweeper"}
	s.exec("BEGIN")
	s.exec("LOCK TABLE sweeps IN ACCESS EXCLUSIVE MODE")
	s.becomes(age, sweeper, "more than 2 s", above(2))
	s.exec("ROLLBACK")
	s.becomes(age, sweeper, "young", func(v float64) bool { return v < 1 })
	loops := s.families()[age].GetMetric()
	if len(loops) != 10 {
		s.t.Errorf("%d loops are shown, want 10", len(loops))
	}
	// The server has run for longer than any of them may take.
	for _, name := range []string{"dispatcher", "presence", "relay", "enqueues", "renewals", "reports", "cancels", "watches"} {
		s.becomes(age, labels{"loop": name}, name+" young", func(v float64) bool { return v < 10 })
	}
}

// retention: an execution that ended yesterday goes.
func (s *scenario) retention() {
	s.grows("leasehold_retention_removed_total", labels{"kind": "executions"}, func() {
		s.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at, ended_at,
				cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
			SELECT gen_random_uuid(), 'default', 'old', '', 'SUCCEEDED', 1, 0, false, at, at, at, '30 s', 1, 0, 0, 0, 0, 0
			FROM (SELECT now() - interval '1 day' AS at) x`)
	})
}

// withoutDatabase: what comes from it is left out, and all else is still told.
func (s *scenario) withoutDatabase() {
	s.becomes("leasehold_database_up", nil, "1", equals(1))
	s.stop()
	s.becomes("leasehold_database_up", nil, "0", equals(0))
	left := s.families()
	for _, name := range []string{"leasehold_queue_attempts", "leasehold_outbox_events", "leasehold_database_oldest_transaction_seconds"} {
		if left[name] != nil {
			s.t.Errorf("%s is shown without a database", name)
		}
	}
	if left["leasehold_enqueues_total"] == nil || left["grpc_server_handled_total"] == nil {
		s.t.Error("without a database nothing is shown")
	}
}

// lintAndRead returns what /metrics says, after the linter of the client library has read it.
func (s *scenario) lintAndRead() string {
	s.t.Helper()
	_, text := s.p.get("/metrics")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range problems {
		s.t.Errorf("lint: %s: %s", p.Metric, p.Text)
	}
	return text
}

// row is a row of the table of metrics.
type row struct{ kind, labels string }

// readTable reads the table in METRICS.md.
func readTable(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile("internal/telemetry/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]row{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram) \\| ([^|]*)\\| [^|]+ \\|$").FindAllStringSubmatch(string(text), -1) {
		names := strings.Split(strings.NewReplacer("`", "", " ", "").Replace(m[3]), ",")
		slices.Sort(names)
		table[m[1]] = row{m[2], strings.Join(names, ",")}
	}
	return table
}

// compareWithTable fails the test unless the table says just what the server shows, and each
// metric of it was seen to do what it says.
func compareWithTable(t *testing.T, families map[string]*dto.MetricFamily, seen map[string]bool) {
	t.Helper()
	table := readTable(t)
	for name, family := range families {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		got := row{strings.ToLower(family.GetType().String()), strings.Join(labelNames(family), ",")}
		if want, there := table[name]; !there {
			t.Errorf("%s is not in the table: %+v", name, got)
		} else if got != want {
			t.Errorf("%s is %+v, and in the table %+v", name, got, want)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if families[name] == nil {
			t.Errorf("%s is in the table, and not shown", name)
		}
		if !seen[name] {
			t.Errorf("%s was not caused to move", name)
		}
	}
	if len(table) < 30 {
		t.Error(fmt.Errorf("the table has %d rows only: it was not read", len(table)))
	}
}
