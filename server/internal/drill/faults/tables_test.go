package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rule is a query for rows that break it: there must be none.
type rule struct {
	name  string
	query string
}

// alwaysRules hold in every snapshot, whatever is going on: each is one statement.
func alwaysRules() []rule {
	return []rule{
		{"a READY step has a request or a lease", `
			SELECT s.id, s.state FROM steps s JOIN executions e ON e.id = s.execution_id
			WHERE s.state = 'READY' AND e.ended_at IS NULL
			  AND NOT EXISTS (SELECT FROM scheduling_requests r WHERE r.step_id = s.id)
			  AND NOT EXISTS (SELECT FROM leases l WHERE l.step_id = s.id)`},
		{"a BLOCKED step waits for a parent that can still succeed", `
			SELECT s.id, s.waiting_parents FROM steps s
			WHERE s.state = 'BLOCKED' AND NOT EXISTS (
				SELECT FROM step_edges g JOIN steps p ON p.id = g.parent_id
				WHERE g.child_id = s.id AND p.state IN ('BLOCKED', 'READY'))`},
		{"a lease exists exactly while its attempt is live", `
			SELECT a.id, a.state FROM attempts a FULL JOIN leases l ON l.attempt_id = a.id
			WHERE coalesce(a.state = 'LEASED', false) <> (l.attempt_id IS NOT NULL)
			   OR l.lease_version <> a.lease_version OR l.step_id <> a.step_id`},
		{"a step never has two live attempts", `
			SELECT step_id, count(*) FROM attempts WHERE state = 'LEASED' GROUP BY step_id HAVING count(*) > 1`},
		{"no request for an attempt that was made", `
			SELECT r.step_id, r.attempt_number FROM scheduling_requests r
			JOIN attempts a ON a.step_id = r.step_id AND a.number >= r.attempt_number`},
		{"a terminal execution has nothing live", `
			SELECT e.id, s.state FROM executions e JOIN steps s ON s.execution_id = e.id
			WHERE e.ended_at IS NOT NULL AND (s.state IN ('BLOCKED', 'READY')
				OR EXISTS (SELECT FROM leases l WHERE l.execution_id = e.id))`},
		{"an open execution has an open step", `
			SELECT e.id, e.state FROM executions e WHERE e.ended_at IS NULL
			AND NOT EXISTS (SELECT FROM steps s WHERE s.execution_id = e.id AND s.state IN ('BLOCKED', 'READY'))`},
		{"a worker has no more leases than slots", `
			SELECT w.name, count(*) FROM workers w JOIN leases l ON l.worker_id = w.id GROUP BY w.id HAVING count(*) > w.slots`},
	}
}

// endRules hold when all work has ended.
func endRules() []rule {
	return slices.Concat(alwaysRules(), attemptRules(), executionRules())
}

// attemptRules are about the attempts of a step, one after the other.
func attemptRules() []rule {
	return []rule{
		{"every execution has ended", `SELECT id, state FROM executions WHERE ended_at IS NULL OR state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')`},
		{"every step has ended", `SELECT id, state FROM steps WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'SKIPPED', 'CANCELED')`},
		{"nothing waits for dispatch", `SELECT step_id, attempt_number FROM scheduling_requests`},
		{"nothing is leased", `SELECT attempt_id, expires_at::text FROM leases`},
		{"intervals of a step's attempts do not overlap", `
			SELECT b.step_id, b.number FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number > a.number
			WHERE a.ended_at IS NULL OR b.leased_at < a.ended_at OR a.ended_at < a.leased_at`},
		{"attempts are numbered from 1 without a gap", `
			SELECT step_id, array_agg(number ORDER BY number)::text FROM attempts GROUP BY step_id
			HAVING min(number) <> 1 OR max(number) <> count(*) OR count(DISTINCT number) <> count(*)`},
		{"lease versions grow within a step", `
			SELECT b.step_id, b.number FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number > a.number
			WHERE b.lease_version <= a.lease_version`},
		{"no lease version was given twice", `SELECT lease_version::text, count(*) FROM attempts GROUP BY 1 HAVING count(*) > 1`},
		{"a step succeeded by its last attempt, and by one", `
			SELECT s.id, s.state FROM steps s LEFT JOIN attempts a ON a.step_id = s.id
			GROUP BY s.id HAVING s.state IN ('SUCCEEDED', 'FAILED') AND (
				count(*) FILTER (WHERE a.state = 'SUCCEEDED') <> CASE WHEN s.state = 'SUCCEEDED' THEN 1 ELSE 0 END
				OR s.state = 'SUCCEEDED' AND max(a.number) FILTER (WHERE a.state = 'SUCCEEDED') <> max(a.number))`},
		{"an attempt does not begin before it is due", `
			SELECT b.step_id, b.number FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number = a.number + 1
			WHERE a.next_due IS NULL OR b.leased_at < a.next_due`},
		{"no attempt is LOST before the shortest lease is over", `
			SELECT id, (ended_at - leased_at)::text FROM attempts WHERE state = 'LOST' AND ended_at < leased_at + interval '1 second'`},
		{"a step's counters are what a count finds", `
			SELECT s.id, x.* FROM steps s CROSS JOIN LATERAL (SELECT count(*) AS n,
				count(*) FILTER (WHERE state IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'LOST')) AS counted,
				count(*) FILTER (WHERE state IN ('FAILED', 'TIMED_OUT')) AS failures FROM attempts WHERE step_id = s.id) x
			WHERE s.attempts_ended <> x.n OR s.counted <> x.counted OR s.failures <> x.failures`},
	}
}

// executionRules are about whole executions: their graphs, their counters, their story.
func executionRules() []rule {
	return []rule{
		{"a step starts after all its parents have succeeded", `
			SELECT c.id, p.id FROM step_edges g JOIN steps c ON c.id = g.child_id JOIN steps p ON p.id = g.parent_id
			JOIN attempts a ON a.step_id = c.id AND a.number = 1
			WHERE p.state <> 'SUCCEEDED' OR a.leased_at < (SELECT max(x.ended_at) FROM attempts x WHERE x.step_id = p.id)`},
		{"a step is skipped exactly when a parent did not succeed, unless it was cancelled", `
			SELECT c.id, c.state FROM steps c WHERE c.state <> 'CANCELED' AND (c.state = 'SKIPPED') <> EXISTS (
				SELECT FROM step_edges g JOIN steps p ON p.id = g.parent_id
				WHERE g.child_id = c.id AND p.state <> 'SUCCEEDED')`},
		{"nothing begins after a cancel", `
			SELECT t.execution_id, a.id FROM timeline_entries t JOIN steps s ON s.execution_id = t.execution_id
			JOIN attempts a ON a.step_id = s.id WHERE t.milestone LIKE '%cancel_requested' AND a.lease_entry > t.sequence`},
		{"an execution's counters are what a count finds", `
			SELECT e.id, x.* FROM executions e CROSS JOIN LATERAL (SELECT count(*) AS n,
				count(*) FILTER (WHERE state IN ('BLOCKED', 'READY')) AS open,
				count(*) FILTER (WHERE state IN ('FAILED', 'SKIPPED', 'CANCELED')) AS bad FROM steps WHERE execution_id = e.id) x
			WHERE e.step_count <> x.n OR e.open_steps <> x.open OR e.unsuccessful_steps <> x.bad OR e.live_attempts <> 0
			   OR (e.state = 'SUCCEEDED') <> (x.bad = 0 AND e.cancel_reason = '')`},
		{"no step has more attempts that count than it may", `
			SELECT id, counted FROM steps WHERE counted > (coalesce(retry_policy ->> 'maximum_attempts', retry_policy ->> 'MaximumAttempts', '3'))::int`},
		{"the timeline is numbered from 1 without a gap", `
			SELECT e.id, count(t.sequence), max(t.sequence), e.revision FROM executions e LEFT JOIN timeline t ON t.execution_id = e.id
			GROUP BY e.id HAVING count(t.sequence) <> e.revision OR min(t.sequence) <> 1 OR max(t.sequence) <> e.revision
			   OR count(DISTINCT t.milestone) <> e.revision OR count(DISTINCT t.sequence) <> e.revision`},
		{"nothing but late calls follows the end in the timeline", `
			SELECT e.id, t.milestone FROM executions e JOIN timeline t ON t.execution_id = e.id
			WHERE t.sequence > e.end_entry AND t.stage <> 'RECOVERY' AND t.milestone NOT LIKE '%late%'`},
	}
}

// broken are the rows that break a rule, at most five.
func broken(ctx context.Context, db *pgxpool.Pool, r rule) ([]string, error) {
	rows, err := db.Query(ctx, r.query)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	var found []string
	for _, row := range all[:min(len(all), 5)] {
		found = append(found, fmt.Sprintf("%s: %s (%d rows)", r.name, describe(row), len(all)))
	}
	return found, nil
}

// describe writes a row with ids as they are written elsewhere.
func describe(row map[string]any) string {
	var parts []string
	for name, value := range row {
		if id, ok := value.([16]byte); ok {
			value = fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:])
		}
		parts = append(parts, fmt.Sprintf("%s=%v", name, value))
	}
	return strings.Join(parts, " ")
}

// checkTables fails the test for every rule of the end that is broken.
func checkTables(t *testing.T, c *cluster) {
	t.Helper()
	c.db.Reset() // none of its connections is from before a fault
	for _, r := range endRules() {
		found, err := broken(t.Context(), c.db, r)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range found {
			t.Error(row)
		}
	}
}

// watcher looks again and again, from the first call to the last, whether what always holds
// holds. While PostgreSQL is away it has nothing to look at.
type watcher struct {
	t     *testing.T
	stop  context.CancelFunc
	done  sync.WaitGroup
	looks int
}

func startWatcher(t *testing.T, c *cluster) *watcher {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &watcher{t: t, stop: stop}
	w.done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			w.look(ctx, c)
			pause(ctx, max(700*time.Millisecond, 4*time.Since(began))) // looking is not the load
		}
	})
	t.Cleanup(w.end)
	return w
}

func (w *watcher) look(ctx context.Context, c *cluster) {
	for _, r := range alwaysRules() {
		found, err := broken(ctx, c.db, r)
		if err != nil {
			return // PostgreSQL is away, or the test is over
		}
		for _, row := range found {
			w.t.Errorf("while it ran: %s", row)
		}
	}
	w.looks++
}

// end stops looking.
func (w *watcher) end() {
	w.stop()
	w.done.Wait()
}

// describeOpen lists what keeps a few open executions open.
func describeOpen(t *testing.T, c *cluster) string {
	t.Helper()
	rows, err := c.db.Query(t.Context(), `
		SELECT e.id, e.state, s.name, s.state AS step, r.attempt_number, r.available_at::text, r.claim_expires_at::text,
			l.expires_at::text, l.worker_id, now()::text FROM executions e JOIN steps s ON s.execution_id = e.id
		LEFT JOIN scheduling_requests r ON r.step_id = s.id LEFT JOIN leases l ON l.step_id = s.id
		WHERE e.ended_at IS NULL AND s.state IN ('BLOCKED', 'READY') LIMIT 10`)
	if err != nil {
		return err.Error()
	}
	all, err := pgx.CollectRows(rows, pgx.RowToMap)
	if err != nil {
		return err.Error()
	}
	lines := make([]string, len(all))
	for i, row := range all {
		lines[i] = describe(row)
	}
	return strings.Join(lines, "\n")
}
