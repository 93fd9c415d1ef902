-- name: Now :one
-- The transaction's instant, by the one clock there is. Takes no lock, reads no index.
SELECT now()::timestamptz AS now;

-- name: InsertExecutions :many
-- Accepts executions; one whose key exists already is left out of the answer. Sorted by key,
-- so that two batches with the same keys wait in one order. Locks the new rows and waits for
-- an unfinished insert of the same key; unique index executions_key.
INSERT INTO executions (id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast,
    created_at, due_at, timeout, cancel_grace, deadline, revision, sequence, step_count, open_steps,
    unsuccessful_steps, live_attempts, labels, trace_context)
SELECT u.id, u.namespace, u.name, NULLIF(u.idempotency_key, ''), u.content_hash, u.state, 1, u.priority, u.fail_fast,
    now(), u.due_at, u.timeout, u.cancel_grace, u.deadline, u.revision, u.sequence, u.step_count, u.step_count,
    0, 0, u.labels, u.trace_context
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@namespaces::text[]) AS namespace, unnest(@names::text[]) AS name,
        unnest(@idempotency_keys::text[]) AS idempotency_key, unnest(@content_hashes::bytea[]) AS content_hash,
        unnest(@states::text[]) AS state, unnest(@priorities::smallint[]) AS priority, unnest(@fail_fasts::boolean[]) AS fail_fast,
        unnest(@due_ats::timestamptz[]) AS due_at, unnest(@timeouts::interval[]) AS timeout,
        unnest(@cancel_graces::interval[]) AS cancel_grace, unnest(@deadlines::timestamptz[]) AS deadline,
        unnest(@revisions::bigint[]) AS revision, unnest(@sequences::bigint[]) AS sequence,
        unnest(@step_counts::integer[]) AS step_count, unnest(@labels::jsonb[]) AS labels,
        unnest(@trace_contexts::jsonb[]) AS trace_context) u
ORDER BY u.namespace, u.idempotency_key, u.id
ON CONFLICT (namespace, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id;

-- name: FindExecutionsByKey :many
-- What exists under keys. Takes no lock; unique index executions_key.
SELECT e.id, e.namespace, e.idempotency_key, e.content_hash
FROM executions e
JOIN (SELECT unnest(@namespaces::text[]) AS namespace, unnest(@idempotency_keys::text[]) AS idempotency_key) u
  ON e.namespace = u.namespace AND e.idempotency_key = u.idempotency_key;

-- name: ExistingExecutions :many
-- Which of these ids are there: how an enqueue whose commit is unknown finds its own.
-- Takes no lock; primary key.
SELECT id FROM executions WHERE id = ANY(@ids::uuid[]);

-- name: LockExecutions :many
-- The gate: whoever changes anything of an execution holds this. Locks FOR NO KEY UPDATE in
-- order of id, leaving out those that another holds; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: LockExecutionsWaiting :many
-- As LockExecutions, but waits (lock_timeout bounds it). Locks FOR NO KEY UPDATE in order of
-- id; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: UpdateExecutions :execrows
-- Writes what the domain decided. The rows are locked already; base, the revision that was
-- read, is the proof that nobody changed them since. Primary key; HOT, for no index holds what
-- changes.
UPDATE executions e SET state = u.state, round = u.round, stopping = u.stopping, due_at = u.due_at, started_at = u.started_at,
    ended_at = u.ended_at, deadline = u.deadline, cancel_deadline = u.cancel_deadline, cancel_reason = u.cancel_reason,
    failure = u.failure, revision = u.revision, sequence = u.sequence, end_entry = u.end_entry,
    open_steps = u.open_steps, unsuccessful_steps = u.unsuccessful_steps, live_attempts = u.live_attempts
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@states::text[]) AS state, unnest(@rounds::integer[]) AS round,
        unnest(@stoppings::boolean[]) AS stopping, unnest(@due_ats::timestamptz[]) AS due_at,
        unnest(@started_ats::timestamptz[]) AS started_at, unnest(@ended_ats::timestamptz[]) AS ended_at,
        unnest(@deadlines::timestamptz[]) AS deadline, unnest(@cancel_deadlines::timestamptz[]) AS cancel_deadline,
        unnest(@cancel_reasons::text[]) AS cancel_reason, unnest(@failures::jsonb[]) AS failure,
        unnest(@bases::bigint[]) AS base, unnest(@revisions::bigint[]) AS revision, unnest(@sequences::bigint[]) AS sequence,
        unnest(@end_entries::bigint[]) AS end_entry, unnest(@open_steps::integer[]) AS open_steps,
        unnest(@unsuccessful_steps::integer[]) AS unsuccessful_steps, unnest(@live_attempts::integer[]) AS live_attempts) u
WHERE e.id = u.id AND e.revision = u.base;

-- name: GetExecution :one
-- One execution as committed. Takes no lock; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions WHERE id = @id;

-- name: GetExecutionByKey :one
-- One execution as committed. Takes no lock; unique index executions_key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions WHERE namespace = @namespace AND idempotency_key = @idempotency_key::text;

-- name: ListExecutions :many
-- A page, newest first, after a key. Takes no lock; index executions_newest gives the order,
-- the other filters are looked at row by row.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions
WHERE namespace = @namespace
  AND (created_at, id) < (@before_time::timestamptz, @before_id::uuid)
  AND created_at >= @created_after::timestamptz AND created_at < @created_before::timestamptz
  AND (cardinality(@states::text[]) = 0 OR state = ANY(@states::text[]))
  AND (@name::text = '' OR name = @name::text)
  AND (@labels::jsonb = '{}'::jsonb OR labels @> @labels::jsonb)
ORDER BY created_at DESC, id DESC LIMIT @page_size::integer;

-- name: MovedExecutions :many
-- Which executions are not at the revision that is known of them; 0 is one that is gone. Takes
-- no lock; primary key. OFFSET 0 as in AttemptsOfNumber.
SELECT w.id::uuid AS id, COALESCE(e.revision, 0)::bigint AS revision
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@revisions::bigint[]) AS revision) w
LEFT JOIN LATERAL (SELECT t.revision FROM executions t WHERE t.id = w.id OFFSET 0) e ON true
WHERE e.revision IS DISTINCT FROM w.revision;

-- name: ExecutionsByID :many
-- Executions as committed. Takes no lock; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context
FROM executions WHERE id = ANY(@ids::uuid[]);
