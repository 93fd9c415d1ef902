-- name: InsertAttempts :exec
-- The attempts of a dispatch. Locks the new rows; the unique index (step_id, number) stands
-- behind the advisory lock: a number is given once.
INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, node, lease_version, leased_at,
    start_to_close_at, lease_entry)
SELECT unnest(@ids::uuid[]), unnest(@step_ids::uuid[]), unnest(@numbers::integer[]), unnest(@rounds::integer[]), 'LEASED',
    unnest(@worker_ids::uuid[]), unnest(@session_ids::uuid[]), unnest(@worker_names::text[]), unnest(@nodes::text[]),
    unnest(@lease_versions::bigint[]), unnest(@leased_ats::timestamptz[]), unnest(@start_to_close_ats::timestamptz[]),
    unnest(@lease_entries::bigint[]);

-- name: EndAttempts :exec
-- Ends attempts whose lease rows were deleted before in the same transaction: all, or an
-- error. Locks the rows; primary key; HOT, for no index holds what changes.
WITH changed AS (
    UPDATE attempts a SET state = u.state, reason = u.reason, ended_at = u.ended_at, next_due = u.next_due, failure = u.failure,
        outcome = u.outcome, end_entry = u.end_entry
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@states::text[]) AS state, unnest(@reasons::text[]) AS reason,
            unnest(@ended_ats::timestamptz[]) AS ended_at, unnest(@next_dues::timestamptz[]) AS next_due,
            unnest(@failures::jsonb[]) AS failure, unnest(@outcomes::bytea[]) AS outcome, unnest(@end_entries::bigint[]) AS end_entry) u
    WHERE a.id = u.id AND a.state = 'LEASED'
    RETURNING a.id
)
SELECT exactly(count(*), cardinality(@ids::uuid[])) FROM changed;

-- name: FindAttempts :many
-- Where attempts belong: facts that never change. Takes no lock; primary keys.
SELECT a.id, a.step_id, s.execution_id FROM attempts a JOIN steps s ON s.id = a.step_id WHERE a.id = ANY(@ids::uuid[]);

-- name: LateAttempts :many
-- What is known of attempts whose lease is not there. Takes no lock; primary keys.
SELECT a.id, a.step_id, a.number, a.round, a.state, a.reason, a.worker_id, a.session_id, a.lease_version, a.outcome,
    s.name AS step_name, s.execution_id, s.state AS step_state, e.state AS execution_state,
    EXISTS (SELECT FROM attempts l WHERE l.step_id = a.step_id AND l.number > a.number)::boolean AS later,
    COALESCE((SELECT max(l.lease_version) FROM attempts l WHERE l.step_id = a.step_id), 0)::bigint AS current_version,
    COALESCE((SELECT w.session_id = a.session_id FROM workers w WHERE w.id = a.worker_id), false)::boolean AS session_current,
    r.available_at AS next_due
FROM attempts a
JOIN steps s ON s.id = a.step_id
JOIN executions e ON e.id = s.execution_id
LEFT JOIN scheduling_requests r ON r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1
WHERE a.id = ANY(@ids::uuid[]);

-- name: AttemptsOfNumber :many
-- Attempts that exist already for (step, number), with the claim that made them while they
-- are live, else zero. Takes no lock; unique indexes (step_id, number) and leases' primary key. OFFSET 0
-- keeps the order of the loops: a plan that was made while a table was empty would walk it whole.
SELECT a.id, a.step_id, a.number,
    COALESCE((SELECT l.claim_id FROM leases l WHERE l.attempt_id = a.id), '00000000-0000-0000-0000-000000000000')::uuid AS claim_id
FROM (SELECT unnest(@step_ids::uuid[]) AS step_id, unnest(@numbers::integer[]) AS number) u
CROSS JOIN LATERAL (
    SELECT t.id, t.step_id, t.number FROM attempts t WHERE t.step_id = u.step_id AND t.number = u.number OFFSET 0) a;

-- name: ListAttempts :many
-- The last attempts of steps, oldest first, with their leases. Takes no lock; unique index
-- (step_id, number) and leases' primary key.
SELECT a.id, a.step_id, a.number, a.round, a.state, a.reason, a.worker_id, a.worker_name, a.node, a.lease_version, a.leased_at,
    a.ended_at, a.failure, a.progress, a.progress_message, l.expires_at, now()::timestamptz AS now
FROM unnest(@step_ids::uuid[]) AS u(step_id)
CROSS JOIN LATERAL (
    SELECT t.id, t.step_id, t.number, t.round, t.state, t.reason, t.worker_id, t.worker_name, t.node, t.lease_version,
        t.leased_at, t.ended_at, t.failure, t.progress, t.progress_message
    FROM attempts t WHERE t.step_id = u.step_id ORDER BY t.number DESC LIMIT @per_step::integer) a
LEFT JOIN leases l ON l.attempt_id = a.id
ORDER BY a.step_id, a.number;

-- name: SetProgress :exec
-- What renewals and reports said of attempts. Locks the rows, under the lease's lock; primary key; HOT.
UPDATE attempts a SET
    progress = CASE WHEN u.has_progress THEN u.progress ELSE a.progress END,
    progress_message = CASE WHEN u.message <> '' THEN u.message ELSE a.progress_message END,
    checkpoint_bytes = CASE WHEN u.checkpoint_bytes >= 0 THEN u.checkpoint_bytes ELSE a.checkpoint_bytes END
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@has_progress::boolean[]) AS has_progress,
        unnest(@progress::double precision[]) AS progress, unnest(@messages::text[]) AS message,
        unnest(@checkpoint_bytes::integer[]) AS checkpoint_bytes) u
WHERE a.id = u.id;

-- name: LeaseContents :many
-- What a worker gets with live leases. Takes no lock; primary keys. OFFSET 0 as in AttemptsOfNumber;
-- what belongs to a lease is looked up for it, or the planner may begin with a table that was small.
SELECT l.attempt_id, l.step_id, l.execution_id, l.worker_id, l.session_id, l.request_id, l.lease_version, l.expires_at, l.duration,
    l.delivery, a.number, a.start_to_close_at, s.name AS step_name, c.name AS capability, s.failure, s.parent_bytes,
    s.input_bytes, s.has_children, e.name AS execution_name, e.labels, e.trace_context,
    (l.expires_at - clock_timestamp())::interval AS remaining,
    (a.start_to_close_at - clock_timestamp())::interval AS start_to_close_remaining
FROM (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id) u
CROSS JOIN LATERAL (
    SELECT k.attempt_id, k.step_id, k.execution_id, k.worker_id, k.session_id, k.request_id, k.lease_version, k.expires_at,
        k.duration, k.delivery
    FROM leases k WHERE k.attempt_id = u.attempt_id OFFSET 0) l
CROSS JOIN LATERAL (SELECT t.number, t.start_to_close_at FROM attempts t WHERE t.id = l.attempt_id OFFSET 0) a
CROSS JOIN LATERAL (
    SELECT t.name, t.failure, t.parent_bytes, t.input_bytes, t.has_children, t.priority, t.capability_id
    FROM steps t WHERE t.id = l.step_id OFFSET 0) s
CROSS JOIN LATERAL (SELECT t.name FROM capabilities t WHERE t.id = s.capability_id OFFSET 0) c
CROSS JOIN LATERAL (SELECT t.name, t.labels, t.trace_context FROM executions t WHERE t.id = l.execution_id OFFSET 0) e
ORDER BY s.priority DESC, l.lease_version;
