package postgres_test

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// What bounds the rows, and the pages, that a statement of an operator's call reads, however
// much there is.
const (
	few  = 50_000
	many = 150_000 // where there are as many workers and leases as are looked at
)

// TestB123_TotalsAreBoundedAndMarked: whatever waits, runs and has ended, each call of an
// operator reads a bounded part of it by its indexes, within a second, and says where there is
// more. What is delayed does not hide what is due. Caught: counts without a bound; a count of
// what is due that takes in what is delayed.
func TestB123_TotalsAreBoundedAndMarked(t *testing.T) {
	t.Parallel()
	m := &million{stand: newStand(t), plans: &explainer{t: t}, n: rounds(100_000, 3_000_000)}
	w := m.register("w", "busy", 10_000)
	ids := m.enqueue(spec("busy", 1, func(e *task.ExecutionSpec) { e.Priority = -100 }))
	m.exec("UPDATE scheduling_requests SET priority = -100")
	m.exec("INSERT INTO capabilities (namespace, name) SELECT 'default', 'later' UNION ALL SELECT 'default', 'x' || g FROM generate_series(1, 300) g")
	m.exec(`INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
		SELECT lpad(to_hex(g), 32, '0')::uuid, 1, gen_random_uuid(), c.id, CASE g % 3 WHEN 0 THEN '' ELSE 'n' || g % 3 END, g % 5,
			now() - g * interval '1 millisecond', 100
		FROM generate_series(1, $1::integer) g, capabilities c WHERE c.name = 'busy'`, m.n)
	m.exec(`INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
		SELECT lpad(to_hex(g), 32, '0')::uuid, 2, gen_random_uuid(), c.id, '', CASE WHEN g <= 7 THEN 0 ELSE 1 END,
			CASE WHEN g <= 7 THEN now() - interval '1 day' ELSE now() + interval '7 days' END, 100
		FROM generate_series(1, $1::integer) g, capabilities c WHERE c.name = 'later'`, m.n)
	m.exec(`INSERT INTO attempt_tallies (capability_id, at, state, n)
		SELECT c.id, now() - g % 7200 * interval '1 second', 'SUCCEEDED', 1 FROM generate_series(1, 30000) g, capabilities c WHERE c.name = 'busy'`)
	m.exec("UPDATE workers SET last_seen_at = now()") // filling takes its time
	m.exec("ANALYZE scheduling_requests, attempt_tallies, capabilities, workers")
	m.reopen("force_generic_plan")

	var views []scheduler.CapabilityView
	m.bounded("ListCapabilities", few, func() (err error) {
		views, err = m.store.ListCapabilities(t.Context(), scheduler.CapabilityQuery{Namespace: "default", Limit: 1000})
		return err
	})
	busy, later := views[0], views[1]
	if bounded := (scheduler.Count{N: 1000, More: true}); len(views) != 302 || busy.Ready != bounded || later.Delayed != bounded {
		t.Errorf("%d capabilities; busy: %+v ready; later: %+v delayed", len(views), busy.Ready, later.Delayed)
	}
	if later.Ready != (scheduler.Count{N: 7}) || busy.Delayed.N != 0 {
		t.Errorf("later: %+v ready; busy: %+v delayed", later.Ready, busy.Delayed)
	}
	if later.OldestReady == nil || *later.OldestReady < 23*time.Hour || *later.OldestReady > 25*time.Hour {
		t.Errorf("the oldest is due for %v", later.OldestReady)
	}
	hour, minute := busy.LastHour[task.AttemptSucceeded], busy.LastMinute[task.AttemptSucceeded]
	if hour < 14_000 || hour > 16_000 || minute < 100 || minute > 400 {
		t.Errorf("%d attempts in the last hour, %d in the last minute, of 30000 in two hours", hour, minute)
	}
	alone, err := m.store.ListCapabilities(t.Context(), scheduler.CapabilityQuery{Namespace: "default", Name: "busy", Limit: 1})
	if want := min(m.n+1, 100_000); err != nil || alone[0].Ready != (scheduler.Count{N: want, More: true}) {
		t.Errorf("alone it is counted further: %+v, %v", alone, err)
	}

	var x scheduler.StepExplained
	m.bounded("ExplainStep", few, func() (err error) {
		x, err = m.store.ExplainStep(t.Context(), scheduler.StepQuery{StepID: ids.Steps[0]})
		return err
	})
	if f := x.Explanation.Findings; len(f) != 1 || f[0].Cause != task.CauseBehindOthers || f[0].Ahead != 1000 || !f[0].AheadCapped {
		t.Errorf("the last of %d: %+v", m.n, f)
	}
	m.bounded("ListWorkers", few, func() error {
		_, err := m.store.ListWorkers(t.Context(), scheduler.WorkerQuery{Namespace: "default", Limit: 1000})
		return err
	})
	m.bounded("GetWorker", few, func() error {
		_, err := m.store.GetWorker(t.Context(), w.WorkerID)
		return err
	})
}

// bounded calls once with plans and once by the watch. The time is what an operator waits for; on
// a machine that is busy with other things it is given some more.
func (m *million) bounded(what string, most int, call func() error) {
	m.t.Helper()
	plans := m.plans.during(func() {
		if err := call(); err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
	})
	for _, p := range plans {
		p.check(m.t, what, false)
		rows := 0.0
		p.root.walk(func(n *plan) {
			if n.Relation != "" {
				rows += (n.Rows + n.Removed) * n.Loops
			}
		})
		if p.buffers() > most || rows > float64(most) {
			m.t.Errorf("%s: %s reads %.0f rows on %d pages: %s", what, p.name, rows, p.buffers(), p.indexes())
		}
	}
	fastest := time.Hour
	for range 5 {
		began := time.Now()
		if err := call(); err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		fastest = min(fastest, time.Since(began))
	}
	m.t.Logf("%s: %s, %d statements", what, fastest, len(plans))
	if fastest > 2*time.Second {
		m.t.Errorf("%s takes %s, want less than a second", what, fastest)
	}
}

// What many workers and many live leases cost: counted up to a bound, and marked.
func TestB123_ManyWorkersAndLeases(t *testing.T) {
	t.Parallel()
	m := &million{stand: newStand(t), plans: &explainer{t: t}}
	m.register("w", "busy", 10)
	id := m.enqueue(spec("busy", 1)).Steps[0]
	m.exec(`INSERT INTO workers (id, namespace, name, node, slots, capabilities, session_id, registered_at, last_seen_at)
		SELECT gen_random_uuid(), 'default', 'x' || g, 'n' || g % 100, 10, ARRAY['busy', 'more'], gen_random_uuid(), now(), now() FROM generate_series(1, 10100) g`)
	m.exec(`INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents)
		SELECT lpad(to_hex(g), 32, '0')::uuid, lpad(to_hex(g), 32, '0')::uuid, 0, 's', c.id, 0, 'READY', interval '1 hour', false, 0
		FROM generate_series(1, 25100) g, capabilities c WHERE c.name = 'busy'`)
	m.exec(`INSERT INTO leases (attempt_id, step_id, execution_id, worker_id, session_id, claim_id, request_id, lease_version, expires_at, cap_at, duration)
		SELECT s.id, s.id, s.id, w.id, w.id, w.id, '', 1, now() + interval '1 hour', now() + interval '1 hour', interval '1 hour'
		FROM (SELECT id, row_number() OVER () AS n FROM steps WHERE name = 's') s
		JOIN (SELECT id, row_number() OVER () AS n FROM workers) w ON w.n = s.n % 5000 + 1`)
	m.exec("UPDATE workers SET last_seen_at = now()")
	m.exec("ANALYZE")
	m.reopen("force_generic_plan")
	var views []scheduler.CapabilityView
	m.bounded("ListCapabilities", many, func() (err error) {
		views, err = m.store.ListCapabilities(t.Context(), scheduler.CapabilityQuery{Namespace: "default", Limit: 1000})
		return err
	})
	if v := views[0]; v.Running != (scheduler.Count{N: 25_000, More: true}) || v.LiveWorkers != 10_000 || !v.MoreWorkers {
		t.Errorf("%+v running, %d workers, more %v", v.Running, v.LiveWorkers, v.MoreWorkers)
	}
	var x scheduler.StepExplained
	m.bounded("ExplainStep", many, func() (err error) {
		x, err = m.store.ExplainStep(t.Context(), scheduler.StepQuery{StepID: id})
		return err
	})
	if len(x.Explanation.Findings) != 0 {
		t.Errorf("a step with thousands of free slots: %v", x.Explanation.Summary)
	}
	var drained scheduler.Drained
	m.bounded("SetWorkerDrain", many, func() (err error) {
		drained, err = m.store.SetDrain(t.Context(), scheduler.Drain{Namespace: "default", Kind: scheduler.DrainNode, Value: "n7", Draining: true, Reason: "test"})
		return err
	})
	if drained.Workers != 101 || drained.More {
		t.Errorf("drained %+v", drained)
	}
}
