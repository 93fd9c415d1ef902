package drill

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestCheck_SeesWhatIsBroken: each rule is broken once, by hand.
func TestCheck_SeesWhatIsBroken(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.enqueue(graph(step("a"), step("b", "a"), step("c", "b"), step("x"))) // a tried twice, b live, c blocked, x ready
	h := w.worker(0, 2)
	h.report(byStep(h.take(2, long))["a"], Failed(&leaseholdv1.Failure{Type: "X"}))
	h.succeed(h.one(long))
	h.one(long)
	done := graph(step("d"))
	done.Priority = 100
	w.enqueue(done)
	w.cancel(0, w.enqueue(graph(step("e"))))
	conn, err := pgx.Connect(w.ctx, w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(w.ctx)
	rules := slices.Concat(attemptRules(), stepRules(), storyRules(), restRules())
	seen := map[string]bool{}
	for _, broken := range breakages() {
		tx, err := conn.Begin(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		tag, err := tx.Exec(w.ctx, broken.statement)
		if err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %v, %v", broken.statement, tag, err)
		}
		found, err := brokenIn(w.ctx, tx, rules)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, broken.rule+": ") }) {
			t.Errorf("%s: found %q, want %q", broken.statement, found, broken.rule)
		}
		seen[broken.rule] = true
		if err := tx.Rollback(w.ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range rulesOfTime() {
		if !seen[name] {
			t.Errorf("%q is no rule", name)
		}
	}
	for _, r := range rules {
		if !seen[r.rule] {
			t.Errorf("nothing breaks the rule %q", r.rule)
		}
	}
}

func breakages() []struct{ rule, statement string } {
	return []struct{ rule, statement string }{
		{"attempts are numbered 1..n without gaps", `UPDATE attempts SET number = number + 1 WHERE number = (SELECT max(number) FROM attempts)`},
		{"attempts of a step do not overlap", `UPDATE attempts SET ended_at = ended_at + interval '1 day' WHERE state = 'FAILED'`},
		{"an attempt ends after it began", `UPDATE attempts SET leased_at = ended_at + interval '1 s' WHERE state = 'SUCCEEDED'`},
		{"an attempt is live or ended", `UPDATE attempts SET ended_at = now() WHERE state = 'LEASED'`},
		{"a lease is there exactly while its attempt is live", `DELETE FROM leases`},
		{"lease_version grows within a step", `UPDATE attempts SET lease_version = 1 WHERE number = 2`},
		{"lease_version is never used twice", `UPDATE attempts SET lease_version = 7`},
		{"a lease does not outlast a deadline", `UPDATE leases SET cap_at = now() - interval '1 day'`},
		{"a worker never has more live attempts than slots", `UPDATE workers SET slots = 1`},
		{"a step's counters are those of its attempts", `UPDATE steps SET counted = counted + 1 WHERE name = 'a'`},
		{"maximum_attempts is kept", `UPDATE steps SET counted = 4 WHERE name = 'a'`},
		{"an execution's counters are those of its steps", `UPDATE executions SET live_attempts = live_attempts + 1`},
		{"an execution is terminal exactly when all its steps are", `UPDATE executions SET state = 'FAILED' WHERE open_steps > 0`},
		{"a live attempt is of an open step", `UPDATE steps SET state = 'FAILED' WHERE id IN (SELECT step_id FROM leases)`},
		{"a step starts after its parents succeeded", `UPDATE steps SET state = 'FAILED' WHERE name = 'a'`},
		{"a step waits for just those parents that have not succeeded", `UPDATE steps SET waiting_parents = 2 WHERE name = 'c'`},
		{"an attempt starts when it is due", `UPDATE attempts SET next_due = now() + interval '1 h' WHERE state = 'FAILED'`},
		{"a waiting step is asked for", `DELETE FROM scheduling_requests`},
		{"nothing but late reports and words on events follows the end in the timeline", `UPDATE executions SET end_entry = 1 WHERE end_entry > 0`},
		{"the timeline has no gaps", `UPDATE executions SET revision = revision + 1`},
		{"a milestone is reached once", `INSERT INTO timeline_entries (execution_id, sequence, milestone, stage, component, title, at)
			SELECT id, 999, 'r1/execution/enqueued', '', '', '', now() FROM executions`},
		{"events have no gaps", `UPDATE outbox_events SET sequence = sequence + 100 WHERE sequence > 1`},
		{"every transition is an event, once", `DELETE FROM outbox_events WHERE event_type LIKE '%leased'`},
		{"unsettled events have a head", `DELETE FROM outbox_heads`},
		{"nothing is there of an execution that is not", `DELETE FROM executions WHERE open_steps > 0`},
		{"only a waiting step is asked for", `UPDATE scheduling_requests SET attempt_number = attempt_number + 1`},
		{"no lease is over", `UPDATE leases SET expires_at = now() - interval '1 h'`},
		{"no rule of time is overlooked", `INSERT INTO timers SELECT id, 'DEADLINE', id, now() - interval '1 h' FROM executions`},
	}
}

// TestCheckPart_SeesItsNamespaceOnly: what is broken is found in its own namespace, all the same
// by every rule, and not in another one. Broken once: narrow without the view of executions.
func TestCheckPart_SeesItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.enqueue(graph(step("a")))
	conn, err := pgx.Connect(w.ctx, w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(w.ctx)
	if _, err := conn.Exec(w.ctx, `UPDATE executions SET open_steps = 2`); err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{"default": true, "other": false} {
		found, err := CheckPart(w.ctx, w.url, Part{Namespace: namespace})
		if err != nil || (len(found) > 0) != want {
			t.Errorf("in %s: %q, %v, want some: %v", namespace, found, err, want)
		}
	}
	if _, err := conn.Exec(w.ctx, `UPDATE executions SET open_steps = 1`); err != nil { // as it was
		t.Error(err)
	}
}
