package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	leasesOfAClaim = 100
	mostBuffers    = 2000 // per 100 leases
)

// million is a database with as many ready steps, the statistics of which are of the state that
// is asked for.
type million struct {
	*stand
	plans  *explainer
	worker worker
	n      int
	mode   string // of the plans
}

// fill writes n ready steps of capability busy, n due next week of capability later, and a few
// of absent ones, by plain SQL: ten steps an execution.
func fill(t *testing.T, n int) *million {
	t.Helper()
	m := &million{stand: newStand(t), plans: &explainer{t: t}, n: n}
	began := time.Now()
	for _, table := range []string{"executions", "steps", "scheduling_requests", "attempts", "leases"} {
		m.exec("ALTER TABLE " + table + " SET (autovacuum_enabled = off)")
		m.exec("ALTER TABLE " + table + " SET UNLOGGED")
	}
	m.exec("ANALYZE") // of empty tables
	m.worker = m.register("w", "busy", 10_000)
	m.exec("INSERT INTO capabilities (namespace, name) VALUES ('default', 'later'), ('default', 'absent')")
	m.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at,
			cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
		SELECT lpad(to_hex(g), 32, '0')::uuid, 'default', 'filler', '', 'QUEUED', 1, 0, false, now() - interval '1 day', now() - interval '1 day',
			interval '30 seconds', 1, 0, 10, 10, 0, 0 FROM generate_series(1, $1::integer / 10) g`, n)
	m.exec(`INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents, opened_at)
		SELECT lpad(to_hex(g), 32, '0')::uuid, lpad(to_hex(1 + (g - 1) / 10), 32, '0')::uuid, (g - 1) % 10, 's' || (g - 1) % 10, c.id, 0, 'READY',
			interval '1 hour', false, 0, now() - interval '1 day'
		FROM generate_series(1, $1::integer) g, capabilities c WHERE c.name = 'busy' ORDER BY g`, n)
	m.requests("busy", "", n, "now() - interval '1 day' + g * interval '10 milliseconds'", "(g / ($1 / 5))::smallint")
	t.Logf("filled %d ready steps in %v", n, time.Since(began))
	return m
}

// requests adds scheduling requests of steps 1 to n, or of steps that nobody will ever look at.
func (m *million) requests(capability, node string, n int, due, priority string) {
	m.t.Helper()
	offset := map[string]string{"busy": "0", "later": "100000000", "absent": "200000000"}[capability]
	m.exec(fmt.Sprintf(`INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
		SELECT lpad(to_hex(g + %s), 32, '0')::uuid, CASE $3 WHEN '' THEN 1 WHEN 'absent-node' THEN 2 ELSE 3 END, lpad(to_hex(1 + (g - 1) / 10), 32, '0')::uuid, c.id, $3, %s, %s, 100
		FROM generate_series(1, $1::integer) g, capabilities c WHERE c.name = $2 ORDER BY g`, offset, priority, due), n, capability, node)
}

// reopen replaces the store by one whose statements are explained, as generic or custom plans.
func (m *million) reopen(mode string) {
	m.t.Helper()
	m.mode = mode
	m.store = m.open(postgres.Config{Events: task.AllEventTypes()})
	if err := m.store.Trace(context.Background(), m.plans, map[string]string{"plan_cache_mode": mode}); err != nil {
		m.t.Fatal(err)
	}
}

// Judge 8. Whatever the statistics say, and whether plans are generic or custom, the statements
// of claim, dispatch, renewal and report read the indexes that they are meant for, and a claim
// costs the same at a million ready steps. Caught: a plan that scans or sorts what waits; an index whose
// columns are not those of the claim; sessions without the planner's settings.
func TestPlans_AtAMillionReadySteps(t *testing.T) {
	m := fill(t, rounds(200_000, 1_000_000))
	m.requests("later", "", m.n, "now() + interval '7 days' + g * interval '1 millisecond'", "0")
	m.requests("absent", "", 1000, "now() - interval '2 days'", "100")
	m.requests("busy", "absent-node", 10, "now() - interval '3 days'", "1000")
	m.requests("busy", "other-node", 20_000, "now() - interval '3 days'", "900")
	states := []struct{ name, statement string }{
		{"taken on empty tables", ""},
		{"fresh", "ANALYZE executions, steps, scheduling_requests, attempts, leases, workers, capabilities"},
	}
	for _, state := range states {
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			if state.statement != "" {
				m.exec("VACUUM scheduling_requests") // what explaining has left
				m.exec(state.statement)
			}
			m.reopen(mode)
			m.walk("statistics " + state.name + ", " + mode)
		}
	}
	m.measures()
	m.stale()
	m.measures()
	m.hidesNothing()
}

// stale makes the statistics those of other data: everything of one priority, long ago.
func (m *million) stale() {
	m.t.Helper()
	m.exec("DELETE FROM scheduling_requests WHERE capability_id = (SELECT id FROM capabilities WHERE name = 'later')")
	m.exec("UPDATE scheduling_requests SET priority = 0, available_at = now() - interval '1 year' WHERE node = '' AND step_id < lpad(to_hex(20000), 32, '0')::uuid")
	m.exec("VACUUM scheduling_requests") // the statistics stay as they were, but for the size
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		m.reopen(mode)
		m.walk("statistics stale, dead rows, " + mode)
	}
}

// walk sends every statement of the work's path, and looks at each.
func (m *million) walk(when string) {
	m.t.Helper()
	var leases []scheduler.LeaseView
	total := 0
	plans := m.plans.during(func() {
		if _, due, err := nextDue(m.t.Context(), m.store, []scheduler.Group{{Namespace: "default", Capability: "busy"}, {Namespace: "default", Capability: "later"}}); err != nil || !due {
			m.t.Fatalf("%s: next due: %v, %v", when, due, err)
		}
		leases = m.lease(m.worker, leasesOfAClaim, time.Hour)
		if len(leases) != leasesOfAClaim {
			m.t.Fatalf("%s: %d leases, want %d", when, len(leases), leasesOfAClaim)
		}
		m.renewAndReport(leases)
		if _, err := m.store.ExpireLeases(m.t.Context(), scheduler.SweepBatch{}); err != nil {
			m.t.Fatal(err)
		}
	})
	for _, p := range plans {
		p.check(m.t, when, m.mode == "force_custom_plan")
		total += p.buffers()
		switch p.name {
		case "ClaimRequests", "SurveyRequests":
			m.t.Logf("%s: %s reads %d buffers", when, p.name, p.buffers())
			if p.buffers() > mostBuffers {
				m.t.Errorf("%s: %s reads %d buffers for %d leases, want at most %d", when, p.name, p.buffers(), leasesOfAClaim, mostBuffers)
			}
		}
	}
	m.t.Logf("%s: %d statements, %d buffers for %d leases claimed, dispatched, renewed and reported", when, len(plans), total, leasesOfAClaim)
	if len(plans) < 25 {
		m.t.Errorf("%s: only %d statements were explained", when, len(plans))
	}
}

func (m *million) renewAndReport(leases []scheduler.LeaseView) {
	m.t.Helper()
	var renewals []scheduler.Renewal
	var reports []scheduler.Report
	progress := 0.5
	for i, l := range leases {
		r := renewal(l, m.worker, time.Hour)
		r.Progress = &progress
		renewals = append(renewals, r)
		if i%2 == 0 {
			reports = append(reports, failure(l))
		} else {
			reports = append(reports, success(l))
		}
	}
	renewed, err := m.store.Renew(m.t.Context(), renewals, false)
	if err != nil || firstErr(renewed) != nil {
		m.t.Fatalf("renew: %v, %v", err, firstErr(renewed))
	}
	for range 2 { // the second time they come late
		reported, err := m.store.Report(m.t.Context(), reports, false)
		if err != nil || firstErr(reported) != nil {
			m.t.Fatalf("report: %v, %v", err, firstErr(reported))
		}
	}
}

// hidesNothing claims what a worker can run, past ten steps of the highest priority that are
// pinned to a node which is not there, and past all of another capability.
func (m *million) hidesNothing() {
	m.t.Helper()
	m.exec("UPDATE scheduling_requests SET claim_id = NULL, claim_expires_at = NULL WHERE claim_id IS NOT NULL")
	_, claimed := m.claim(m.worker, 50)
	if len(claimed.Requests) != 50 {
		m.t.Fatalf("claimed %d requests, want 50", len(claimed.Requests))
	}
	for _, r := range claimed.Requests {
		if r.Node != "" || r.Capability != "busy" {
			m.t.Errorf("claimed a step of %s on %q", r.Capability, r.Node)
		}
	}
	pinned := m.worker
	pinned.reg.Node = "absent-node"
	_, claimed = m.claim(pinned, 50)
	for i, r := range claimed.Requests {
		if (i < 10) != (r.Node == "absent-node") {
			m.t.Errorf("request %d of a worker on that node is pinned to %q: the highest priority comes first", i, r.Node)
		}
	}
}

// A generic plan is kept until the statistics change: those that are made while the tables are
// empty, or small, must be good for a million rows. Caught: a statement whose arrays could be
// looked up by walking a whole table.
func TestPlans_MadeOnSmallTables(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"never analyzed", "analyzed when empty", "analyzed when small"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			m := &million{stand: newStand(t), plans: &explainer{t: t}}
			if state == "analyzed when empty" {
				m.exec("ANALYZE")
			}
			m.worker = m.register("w", "busy", 10_000)
			for range 20 {
				m.enqueue(spec("busy", 10))
			}
			if state == "analyzed when small" {
				m.exec("ANALYZE")
			}
			m.reopen("force_generic_plan")
			m.walk(state)
		})
	}
}

// What one replica has claimed does not hide what is due behind it. Caught: SurveyRequests that
// looks at the first row only; a claim that stops at claimed ones.
func TestClaim_WhatOthersClaimedHidesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 6))
	w := s.register("w", "a", 10)
	groups := []scheduler.Group{{Namespace: "default", Capability: "a"}}
	s.claim(w, 3) // by a replica that has died since
	if wait, due, err := nextDue(t.Context(), s.store, groups); err != nil || !due || wait > 0 {
		t.Errorf("three are due behind what is claimed: due in %v, %v, %v", wait, due, err)
	}
	mine, claimed := s.claim(w, 10)
	if len(claimed.Requests) != 3 {
		t.Fatalf("claimed %d, want the other 3", len(claimed.Requests))
	}
	if wait, due, err := nextDue(t.Context(), s.store, groups); err != nil || !due || wait < 30*time.Second || wait > time.Minute {
		t.Errorf("all are claimed for a minute: due in %v, %v, %v", wait, due, err)
	}
	if err := s.store.Free(t.Context(), mine, []uuid.UUID{claimed.Requests[0].StepID}); err != nil {
		t.Fatal(err)
	}
	if wait, due, err := nextDue(t.Context(), s.store, groups); err != nil || !due || wait > 0 {
		t.Errorf("one was given back: due in %v, %v, %v", wait, due, err)
	}
}

// nextDue is how long until something is due for any of the groups.
func nextDue(ctx context.Context, store scheduler.DispatchStore, groups []scheduler.Group) (wait time.Duration, due bool, err error) {
	list, err := store.NextDue(ctx, groups)
	for i, g := range list {
		if i == 0 || g.In < wait {
			wait = g.In
		}
	}
	return wait, len(list) > 0, err
}
