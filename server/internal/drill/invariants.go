package drill

// attemptRules are about attempts and leases; they hold in every committed state, as all but
// restRules do.
func attemptRules() []invariant {
	return []invariant{
		{"attempts are numbered 1..n without gaps", `
SELECT format('step %s has %s attempts, numbered %s to %s', step_id, count(*), min(number), max(number))
FROM attempts GROUP BY step_id HAVING min(number) <> 1 OR max(number) <> count(*)`},
		{"attempts of a step do not overlap", `
SELECT format('step %s: attempt %s began %s, %s ended %s', a.step_id, b.number, b.leased_at, a.number, a.ended_at)
FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number = a.number + 1
WHERE a.ended_at IS NULL OR b.leased_at < a.ended_at`},
		{"an attempt ends after it began", `
SELECT format('attempt %s: %s to %s', id, leased_at, ended_at) FROM attempts WHERE ended_at < leased_at`},
		{"an attempt is live or ended", `
SELECT format('attempt %s is %s, ended %s, entry %s', id, state, ended_at, end_entry) FROM attempts
WHERE (state = 'LEASED') <> (ended_at IS NULL) OR (state = 'LEASED') <> (end_entry = 0)`},
		{"a lease is there exactly while its attempt is live", `
SELECT format('attempt %s is %s with version %s, lease %s has %s', a.id, a.state, a.lease_version, l.attempt_id, l.lease_version)
FROM (SELECT * FROM attempts WHERE state = 'LEASED') a FULL JOIN leases l ON l.attempt_id = a.id
WHERE a.id IS NULL OR l.attempt_id IS NULL OR a.lease_version <> l.lease_version OR a.worker_id <> l.worker_id OR a.step_id <> l.step_id`},
		{"lease_version grows within a step", `
SELECT format('step %s: attempt %s has %s after %s', a.step_id, b.number, b.lease_version, a.lease_version)
FROM attempts a JOIN attempts b ON b.step_id = a.step_id AND b.number = a.number + 1 WHERE b.lease_version <= a.lease_version`},
		{"lease_version is never used twice", `
SELECT format('%s: %s attempts', lease_version, count(*)) FROM attempts GROUP BY lease_version HAVING count(*) > 1`},
		{"a lease does not outlast a deadline", `
SELECT format('attempt %s: until %s, cap %s, cancel %s', attempt_id, expires_at, cap_at, cancel_at) FROM leases
WHERE expires_at > cap_at OR expires_at > cancel_at`},
		{"a worker never has more live attempts than slots", `
SELECT format('worker %s has %s of %s slots in use at %s', w.name, r.used, w.slots, r.at)
FROM workers w JOIN (
    SELECT worker_id, at, sum(change) OVER (PARTITION BY worker_id ORDER BY at, change) AS used
    FROM (SELECT worker_id, leased_at AS at, 1 AS change FROM attempts
          UNION ALL SELECT worker_id, ended_at, -1 FROM attempts WHERE ended_at IS NOT NULL) c) r ON r.worker_id = w.id
WHERE r.used > w.slots AND (SELECT count(*) FROM sessions s WHERE s.worker_id = w.id) = 1`},
	}
}

// stepRules are about steps and executions: counters, states, the graph.
func stepRules() []invariant {
	return []invariant{
		{"a step's counters are those of its attempts", `
SELECT format('step %s: ended %s of %s, counted %s of %s', s.name, s.attempts_ended, r.ended, s.counted, r.counted)
FROM steps s JOIN executions e ON e.id = s.execution_id LEFT JOIN (
    SELECT a.step_id, count(*) FILTER (WHERE a.state <> 'LEASED') AS ended,
        count(*) FILTER (WHERE a.state IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'LOST') AND a.round = 1) AS counted
    FROM attempts a GROUP BY a.step_id) r ON r.step_id = s.id
WHERE e.round = 1 AND (s.attempts_ended <> COALESCE(r.ended, 0) OR s.counted <> COALESCE(r.counted, 0))`},
		{"maximum_attempts is kept", `
SELECT format('step %s: %s attempts counted, policy %s', name, counted, retry_policy) FROM steps
WHERE counted > NULLIF(COALESCE((retry_policy ->> 'MaximumAttempts')::integer, 3), -1)`},
		{"an execution's counters are those of its steps", `
SELECT format('execution %s: open %s of %s, unsuccessful %s of %s, live %s of %s, steps %s of %s', e.id,
    e.open_steps, r.open, e.unsuccessful_steps, r.unsuccessful, e.live_attempts, l.live, e.step_count, r.steps)
FROM executions e LEFT JOIN (
    SELECT s.execution_id, count(*) AS steps, count(*) FILTER (WHERE s.state IN ('BLOCKED', 'READY')) AS open,
        count(*) FILTER (WHERE s.state IN ('FAILED', 'CANCELED', 'SKIPPED')) AS unsuccessful
    FROM steps s GROUP BY s.execution_id) r ON r.execution_id = e.id LEFT JOIN (
    SELECT l.execution_id, count(*) AS live FROM leases l GROUP BY l.execution_id) l ON l.execution_id = e.id
WHERE e.open_steps <> COALESCE(r.open, 0) OR e.unsuccessful_steps <> COALESCE(r.unsuccessful, 0)
   OR e.live_attempts <> COALESCE(l.live, 0) OR e.step_count <> COALESCE(r.steps, 0)`},
		{"an execution is terminal exactly when all its steps are", `
SELECT format('execution %s is %s with %s open steps, ended %s', id, state, open_steps, ended_at) FROM executions
WHERE (state IN ('SUCCEEDED', 'FAILED', 'CANCELED')) <> (open_steps = 0)
   OR (state IN ('SUCCEEDED', 'FAILED', 'CANCELED')) <> (ended_at IS NOT NULL)
   OR state = 'SUCCEEDED' AND unsuccessful_steps > 0 OR state = 'FAILED' AND unsuccessful_steps = 0`},
		{"a live attempt is of an open step", `
SELECT format('step %s is %s', s.id, s.state) FROM leases l JOIN steps s ON s.id = l.step_id WHERE s.state <> 'READY'`},
		{"a step starts after its parents succeeded", `
SELECT format('step %s started %s, parent %s is %s, ended %s', s.name, a.leased_at, p.name, p.state, pa.ended_at)
FROM attempts a JOIN steps s ON s.id = a.step_id JOIN step_edges d ON d.child_id = s.id JOIN steps p ON p.id = d.parent_id
LEFT JOIN attempts pa ON pa.step_id = p.id AND pa.state = 'SUCCEEDED'
WHERE p.state <> 'SUCCEEDED' OR pa.ended_at IS NULL OR a.leased_at < pa.ended_at`},
		{"a step waits for just those parents that have not succeeded", `
SELECT format('step %s is %s, waits for %s', s.name, s.state, s.waiting_parents)
FROM (
    SELECT t.name, t.state, t.waiting_parents, COALESCE(g.waiting, 0) AS waiting, COALESCE(g.lost, 0) AS lost
    FROM steps t LEFT JOIN (
        SELECT d.child_id, count(*) FILTER (WHERE p.state <> 'SUCCEEDED') AS waiting,
            count(*) FILTER (WHERE p.state IN ('FAILED', 'SKIPPED', 'CANCELED')) AS lost
        FROM step_edges d JOIN steps p ON p.id = d.parent_id GROUP BY d.child_id) g ON g.child_id = t.id) s
WHERE s.state = 'BLOCKED' AND (s.waiting_parents <> s.waiting OR s.waiting = 0 OR s.lost > 0)
   OR s.state IN ('READY', 'SUCCEEDED', 'FAILED') AND s.waiting > 0 OR s.state = 'SKIPPED' AND s.lost = 0`},
		{"an attempt starts when it is due", `
SELECT format('step %s: attempt %s leased %s, due %s', s.name, a.number, a.leased_at, COALESCE(b.next_due, s.opened_at))
FROM attempts a JOIN steps s ON s.id = a.step_id JOIN executions e ON e.id = s.execution_id
LEFT JOIN attempts b ON b.step_id = a.step_id AND b.number = a.number - 1 AND b.round = a.round
WHERE a.leased_at < COALESCE(b.next_due, CASE WHEN a.round = e.round THEN s.opened_at END)`},
		// A request whose time is over is dropped by dispatch; the timer, which is due, ends the step.
		{"a waiting step is asked for", `
SELECT format('step %s (%s) of %s', s.id, s.name, s.execution_id) FROM steps s WHERE s.state = 'READY'
  AND NOT EXISTS (SELECT FROM scheduling_requests r WHERE r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1)
  AND NOT EXISTS (SELECT FROM leases l WHERE l.step_id = s.id)
  AND NOT EXISTS (SELECT FROM timers t WHERE t.execution_id = s.execution_id AND t.step_id IN (s.id, '00000000-0000-0000-0000-000000000000')
    AND t.kind <> 'START' AND t.fires_at <= now())`},
	}
}

// wholeRule is that executions come and go as a whole: nothing belongs to one that is not there.
func wholeRule() invariant {
	return invariant{"nothing is there of an execution that is not", `
SELECT format('step %s of %s', s.id, s.execution_id) FROM steps s LEFT JOIN executions e ON e.id = s.execution_id WHERE e.id IS NULL
UNION ALL SELECT format('attempt %s', a.id) FROM attempts a LEFT JOIN steps s ON s.id = a.step_id WHERE s.id IS NULL
UNION ALL SELECT format('%s of step %s', p.role, p.step_id) FROM payloads p LEFT JOIN steps s ON s.id = p.step_id WHERE s.id IS NULL
UNION ALL SELECT format('edge of step %s', d.child_id) FROM step_edges d LEFT JOIN steps s ON s.id = d.child_id WHERE s.id IS NULL
UNION ALL SELECT format('lease of step %s', l.step_id) FROM leases l LEFT JOIN steps s ON s.id = l.step_id WHERE s.id IS NULL
UNION ALL SELECT format('timer of %s', t.execution_id) FROM timers t LEFT JOIN executions e ON e.id = t.execution_id WHERE e.id IS NULL
UNION ALL SELECT format('entry %s of %s', t.milestone, t.execution_id) FROM timeline_entries t LEFT JOIN executions e ON e.id = t.execution_id WHERE e.id IS NULL
UNION ALL SELECT format('event %s of %s', o.id, o.aggregate_id) FROM outbox_events o LEFT JOIN executions e ON e.id = o.aggregate_id WHERE e.id IS NULL
UNION ALL SELECT format('head of %s', h.aggregate_id) FROM outbox_heads h LEFT JOIN executions e ON e.id = h.aggregate_id WHERE e.id IS NULL`}
}

// storyRules are about what is told: the timeline and the events.
func storyRules() []invariant {
	return []invariant{
		{"nothing but late reports and words on events follows the end in the timeline", `
SELECT format('execution %s: %s %s after %s', e.id, t.sequence, t.milestone, e.end_entry)
FROM executions e JOIN timeline t ON t.execution_id = e.id
WHERE e.end_entry > 0 AND t.sequence > e.end_entry AND t.milestone NOT LIKE 'late/%' AND t.milestone NOT LIKE 'r%/outbox/%'`},
		{"the timeline has no gaps", `
SELECT format('execution %s: %s of %s entries, %s to %s', e.id, count(*), e.revision, min(t.sequence), max(t.sequence))
FROM executions e JOIN timeline t ON t.execution_id = e.id GROUP BY e.id, e.revision
HAVING count(*) <> e.revision OR count(DISTINCT t.sequence) <> e.revision OR min(t.sequence) <> 1 OR max(t.sequence) <> e.revision`},
		{"a milestone is reached once", `
SELECT format('execution %s: %s', execution_id, milestone) FROM timeline GROUP BY execution_id, milestone HAVING count(*) > 1`},
		{"events have no gaps", `
SELECT format('execution %s: %s of %s events, %s to %s', e.id, count(*), e.sequence, min(o.sequence), max(o.sequence))
FROM executions e LEFT JOIN outbox_events o ON o.aggregate_id = e.id GROUP BY e.id, e.sequence
HAVING count(o.id) <> e.sequence OR min(o.sequence) <> 1 OR max(o.sequence) <> e.sequence`},
		{"every transition is an event, once", eventsQuery},
		wholeRule(),
		{"unsettled events have a head", `
SELECT format('execution %s', o.aggregate_id) FROM outbox_events o WHERE o.status IN ('PENDING', 'PUBLISHING', 'FAILED', 'DEAD')
  AND NOT EXISTS (SELECT FROM outbox_heads h WHERE h.aggregate_id = o.aggregate_id)`},
	}
}

// eventsQuery counts, for executions of one round, what the other tables say should have been
// told, and compares it with the events that are there.
const eventsQuery = `
WITH told AS (
    SELECT o.aggregate_id AS id, o.event_type AS type, count(*) AS n FROM outbox_events o GROUP BY 1, 2
), due AS (
    SELECT e.id, 'leasehold.execution.v1.enqueued' AS type, 1 AS n FROM executions e
    UNION ALL SELECT e.id, 'leasehold.execution.v1.started', 1 FROM executions e WHERE e.started_at IS NOT NULL
    UNION ALL SELECT e.id, 'leasehold.execution.v1.' || lower(e.state), 1 FROM executions e WHERE e.ended_at IS NOT NULL
    UNION ALL SELECT s.execution_id, 'leasehold.step.v1.' || lower(s.state), count(*) FROM steps s
        WHERE s.state NOT IN ('BLOCKED', 'READY') GROUP BY 1, 2
    UNION ALL SELECT s.execution_id, 'leasehold.attempt.v1.leased', count(*) FROM attempts a JOIN steps s ON s.id = a.step_id GROUP BY 1
    UNION ALL SELECT s.execution_id, 'leasehold.attempt.v1.' || lower(a.state), count(*) FROM attempts a JOIN steps s ON s.id = a.step_id
        WHERE a.state <> 'LEASED' GROUP BY 1, 2
    UNION ALL SELECT s.execution_id, 'leasehold.step.v1.retry_scheduled', count(*) FROM attempts a JOIN steps s ON s.id = a.step_id
        WHERE a.next_due IS NOT NULL GROUP BY 1
)
SELECT format('execution %s: %s %s times, should be %s', e.id, COALESCE(told.type, due.type), COALESCE(told.n, 0), COALESCE(due.n, 0))
FROM told FULL JOIN due ON due.id = told.id AND due.type = told.type
JOIN executions e ON e.id = COALESCE(told.id, due.id) AND e.round = 1
WHERE COALESCE(told.n, 0) <> COALESCE(due.n, 0)`

// restRules hold when nothing is under way.
func restRules() []invariant {
	return []invariant{
		{"only a waiting step is asked for", `
SELECT format('step %s is %s: attempt %s of %s', s.name, s.state, r.attempt_number, s.attempts_ended + 1)
FROM scheduling_requests r LEFT JOIN steps s ON s.id = r.step_id
WHERE s.id IS NULL OR s.state <> 'READY' OR r.attempt_number <> s.attempts_ended + 1
   OR EXISTS (SELECT FROM leases l WHERE l.step_id = s.id)`},
		{"no lease is over", `
SELECT format('attempt %s, since %s', attempt_id, now() - expires_at) FROM leases WHERE expires_at < now() - interval '5 seconds'`},
		{"no rule of time is overlooked", `
SELECT format('%s of execution %s, since %s', kind, execution_id, now() - fires_at) FROM timers WHERE fires_at < now() - interval '5 seconds'`},
	}
}

// rulesOfTime are those that compare instants of PostgreSQL's clock.
func rulesOfTime() []string {
	return []string{
		"attempts of a step do not overlap", "an attempt ends after it began", "a worker never has more live attempts than slots",
		"a step starts after its parents succeeded", "an attempt starts when it is due", "no lease is over", "no rule of time is overlooked",
	}
}
