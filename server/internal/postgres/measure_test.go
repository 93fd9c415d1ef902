package postgres_test

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func (s *stand) queueDepths() []scheduler.QueueDepth {
	s.t.Helper()
	queues, err := s.store.QueueDepths(s.t.Context())
	if err != nil {
		s.t.Fatalf("measure: %v", err)
	}
	slices.SortFunc(queues, func(a, b scheduler.QueueDepth) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Capability, b.Capability))
	})
	return queues
}

func (s *stand) oldestTransaction(store *postgres.Store) time.Duration {
	s.t.Helper()
	age, err := store.OldestTransaction(s.t.Context())
	if err != nil {
		s.t.Fatalf("measure: %v", err)
	}
	return age
}

// The numbers are those of the tables, whatever waits in front of what: nodes, priorities,
// namespaces, claims, what is due later. Caught: a walk that leaves out a node, a priority or a
// capability; one that counts across them.
func TestMeasure_CountsWhatTheTablesSay(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for i, capability := range []string{"a", "b", "c", "d", "e"} {
		for _, namespace := range []string{"default", "other"} {
			s.enqueue(spec(capability, 1+i, func(e *task.ExecutionSpec) {
				e.Namespace = namespace
				for j := range e.Steps {
					e.Steps[j].Node = []string{"", "n1", "n2"}[(i+j)%3]
					e.Steps[j].Priority = []int{0, 100, -100, 7}[j%4]
					e.Steps[j].StartDelay = []time.Duration{time.Hour, 0, 0}[(i*j)%3]
				}
			}))
		}
	}
	s.exec("UPDATE scheduling_requests SET available_at = available_at - interval '5 minutes' WHERE attempt_number = 1 AND available_at <= now()")
	w := s.register("w", "c", 10)
	s.register("idle", "idle", 1)
	s.enqueue(spec("c", 4))
	leases := s.lease(w, 2, time.Minute)
	s.claim(w, 1) // what is in a dispatcher's hands is ready still
	if _, err := s.report(success(leases[0])); err != nil {
		t.Fatal(err)
	}

	queues := s.queueDepths()
	if len(queues) != 11 {
		t.Errorf("%d queues, want those of 5 capabilities in 2 namespaces and the idle one", len(queues))
	}
	total := 0
	for _, q := range queues {
		const from = " FROM scheduling_requests r JOIN capabilities c ON c.id = r.capability_id WHERE c.namespace = $1 AND c.name = $2 AND r.available_at "
		ready := query[int](s, "SELECT count(*)"+from+"<= now()", q.Namespace, q.Capability)
		delayed := query[int](s, "SELECT count(*)"+from+"> now()", q.Namespace, q.Capability)
		running := query[int](s, `SELECT count(*) FROM leases l JOIN steps s ON s.id = l.step_id JOIN capabilities c ON c.id = s.capability_id
			WHERE c.namespace = $1 AND c.name = $2`, q.Namespace, q.Capability)
		oldest := query[float64](s, "SELECT COALESCE(extract(epoch FROM now() - min(r.available_at)), 0)::float8"+from+"<= now()", q.Namespace, q.Capability)
		if q.Ready != ready || q.Delayed != delayed || q.Running != running {
			t.Errorf("%+v, and the tables have %d, %d, %d", q, ready, delayed, running)
		}
		if got := q.OldestReady.Seconds(); got > oldest || got < oldest-20 || (ready == 0) != (got == 0) {
			t.Errorf("%+v: the oldest has been due for %g s", q, oldest)
		}
		total += ready + delayed + running
	}
	if all := query[int](s, "SELECT (SELECT count(*) FROM scheduling_requests) + (SELECT count(*) FROM leases)"); total != all || all < 30 {
		t.Errorf("%d in all, want %d", total, all)
	}
}

// Whoever holds a transaction open is seen, prepared or not; by an ordinary role only what is
// its own, and that is no error.
func TestMeasure_OldestTransaction(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	if age := s.oldestTransaction(s.store); age > 2*time.Second {
		t.Errorf("none is open, and the oldest is %s old", age)
	}
	stranger, err := pgx.Connect(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close(context.Background()) }()
	if _, err := stranger.Exec(t.Context(), "BEGIN; SELECT pg_sleep(0.3)"); err != nil {
		t.Fatal(err)
	}
	s.eventually("a transaction that is seen to age", func() bool { return s.oldestTransaction(s.store) > 500*time.Millisecond })

	role := "ordinary_" + strings.ReplaceAll(s.url[strings.LastIndex(s.url, "test_")+5:][:8], "-", "")
	s.exec("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	s.exec("GRANT SELECT ON ALL TABLES IN SCHEMA public TO " + role)
	t.Cleanup(func() {
		if _, err := s.sql.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "secret")
	ordinary := s.open(postgres.Config{URL: u.String()})
	if age := s.oldestTransaction(ordinary); age != 0 {
		t.Errorf("an ordinary role sees %s of another's transaction", age)
	}
	ordinary.Close()
}

// The backlog is told by status; what waits behind a DEAD event has no age. Caught: heads that
// are infinitely far left out, or aged.
func TestMeasure_Backlog(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	backlog := func() outbox.Backlog {
		t.Helper()
		b, err := s.store.Outbox().Backlog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := backlog(); len(b.Events) != 0 || b.OldestUnsent != 0 {
		t.Errorf("of an empty outbox: %+v", b)
	}
	for range 3 {
		s.enqueue(spec("a", 2)) // one event each
	}
	w := s.register("w", "a", 6)
	for _, l := range s.lease(w, 6, time.Minute) {
		if _, err := s.report(success(l)); err != nil {
			t.Fatal(err)
		}
	}
	s.exec("UPDATE outbox_events SET created_at = now() - interval '1 hour'")
	all := query[int](s, "SELECT count(*) FROM outbox_events")
	settled, dead := 0, 0
	for i, failure := range []*outbox.Failure{nil, {Reason: "later", Again: time.Hour}, {Reason: "never", Dead: true}} {
		runs, err := s.store.Outbox().Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 1, Events: 2, Expires: time.Minute})
		if err != nil || len(runs) != 1 || len(runs[0].Events) != 2 {
			t.Fatalf("claim: %v, %+v", err, runs)
		}
		if b := backlog(); b.Events[outbox.Publishing] != 2 || b.OldestUnsent < 59*time.Minute {
			t.Errorf("with one in flight: %+v", b)
		}
		result := outbox.RunResult{Run: runs[0], Published: i % 2, Failure: failure}
		if _, err := s.store.Outbox().Settle(t.Context(), []outbox.RunResult{result}); err != nil {
			t.Fatal(err)
		}
		settled += i % 2
		if failure != nil && failure.Dead {
			dead++
		}
	}
	b := backlog()
	if b.Events[outbox.Dead] != dead || b.Events[outbox.Failed] != 1 || b.Events[outbox.Publishing] != 0 ||
		b.Events[outbox.Pending] != all-settled-dead-1 || b.OldestUnsent < 59*time.Minute {
		t.Errorf("%+v of %d events, %d published, %d dead", b, all, settled, dead)
	}
	s.exec("UPDATE outbox_heads SET available_at = 'infinity'")
	if b := backlog(); b.Events[outbox.Pending] == 0 || b.OldestUnsent != 0 {
		t.Errorf("all of it behind dead events: %+v", b)
	}
}

// measures looks at what a look costs, and that it is bounded.
func (m *million) measures() {
	m.t.Helper()
	var got []scheduler.QueueDepth
	began := time.Now()
	plans := m.plans.during(func() { got = m.queueDepths() })
	explained := time.Since(began)
	began = time.Now()
	m.queueDepths()
	m.t.Logf("measuring took %v (explained: %v)", time.Since(began), explained)
	for _, p := range plans {
		m.t.Logf("%s reads %d buffers", p.name, p.buffers())
		p.root.walk(func(n *plan) {
			if n.Relation == "scheduling_requests" && n.Index != "scheduling_requests_claim" {
				m.t.Errorf("%s: %s", p.name, p.indexes())
			}
			if n.Relation == "scheduling_requests" && n.Rows > 100_000 {
				m.t.Errorf("%s reads %g rows at once: %s", p.name, n.Rows, p.indexes())
			}
		})
	}
	for _, q := range got {
		m.t.Logf("%+v", q)
	}
}
