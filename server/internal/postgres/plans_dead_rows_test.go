package postgres_test

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// P6, and what B118 asks of rows that are dead. While a snapshot is held open, no dead row can be removed. What a round of the dispatcher, a
// look-up of polls and a sweep read stays the same however much was dispatched since. Caught: a claim or a survey
// that begins at the front; leases counted without a floor, or one that is not moved; a sweep that scans
// all leases there ever were.
func TestPlans_WithASnapshotHeldOpen(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, table := range []string{"executions", "steps", "scheduling_requests", "attempts", "leases", "timers"} {
		s.exec("ALTER TABLE " + table + " SET (autovacuum_enabled = off)") // it would not help, and takes time
	}
	w := s.register("w", "a", 1000)
	s.oldSnapshot()
	plans := &explainer{t: t}
	if err := s.store.Trace(t.Context(), plans, nil); err != nil {
		t.Fatal(err)
	}
	s.store.SweepByWorkers()
	group := []scheduler.Group{{Namespace: "default", Capability: "a"}}

	drain := func(n int) {
		s.exec(`INSERT INTO timers (execution_id, kind, step_id, fires_at)
			SELECT gen_random_uuid(), 'START', gen_random_uuid(), now() - interval '1 minute' FROM generate_series(1, $1::integer)`, n)
		s.exec("DELETE FROM timers")
		for range n / 100 {
			s.enqueue(spec("a", 100))
			s.succeed(s.lease(w, 100, time.Minute))
		}
	}
	// round is what one round reads, with a hundred steps that wait.
	round := func() map[string]int {
		s.enqueue(spec("a", 100))
		least := map[string]int{}
		for range 5 { // a look in full comes between from time to time
			s.beginSweep(time.Nanosecond) // may give credit: it is long ago
			for _, p := range plans.during(func() {
				if _, due, err := nextDue(t.Context(), s.store, group); err != nil || !due {
					t.Fatalf("next due: %v, %v", due, err)
				}
				s.beginSweep(time.Nanosecond)
				if _, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.store.FireTimers(t.Context(), scheduler.SweepBatch{}); err != nil {
					t.Fatal(err)
				}
				s.succeed(s.lease(w, 20, time.Minute))
			}) {
				if n, seen := least[p.name]; !seen || p.buffers() < n {
					least[p.name] = p.buffers()
				}
			}
		}
		return least
	}
	drain(1000)
	few := round()
	drain(rounds(8000, 50_000))
	many := round()
	for _, name := range []string{
		"SurveyRequests", "ClaimRequests", "LockClaimedRequests", "CountLeases", "WorkerLoads", "SweepWork", "ExpiredLeases", "DueTimers",
	} {
		if _, seen := many[name]; !seen {
			t.Errorf("%s was not seen", name)
		}
	}
	for name, n := range many {
		t.Logf("%s: %d buffers, %d before", name, n, few[name])
		if n > 2*few[name]+mostWithDeadRows {
			t.Errorf("%s reads %d buffers, and read %d when less was dead", name, n, few[name])
		}
	}
}

// mostWithDeadRows is what one statement may read more when much more is dead.
const mostWithDeadRows = 50
