-- name: Now :one
-- The transaction's instant, by the one clock there is. Takes no lock, reads no index.
SELECT now()::timestamptz AS now;

-- name: InsertExecutions :exec
-- Accepts executions, under the locks of their keys, and after a look whether those are free. The
-- unique index executions_key stands behind that: who meets a row there looks again. Locks the new
-- rows; indexes of executions.
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
        unnest(@trace_contexts::jsonb[]) AS trace_context) u;

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
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context, outcome
FROM executions WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: LockExecutionsWaiting :many
-- As LockExecutions, but waits (lock_timeout bounds it). Locks FOR NO KEY UPDATE in order of
-- id; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context, outcome
FROM executions WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE;

-- name: UpdateExecutions :exec
-- Writes what the domain decided. The rows are locked already; base, the revision that was
-- read, is the proof that nobody changed them since: all, or an error. Primary key; HOT until the
-- end, for no index holds what changes but the outcome.
WITH changed AS (
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
    WHERE e.id = u.id AND e.revision = u.base
    RETURNING e.id
)
SELECT exactly(count(*), cardinality(@ids::uuid[])) FROM changed;

-- name: GetExecution :one
-- One execution as committed. Takes no lock; primary key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context, outcome
FROM executions WHERE id = @id;

-- name: GetExecutionByKey :one
-- One execution as committed. Takes no lock; unique index executions_key.
SELECT id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, stopping, created_at, due_at,
    started_at, ended_at, timeout, cancel_grace, deadline, cancel_deadline, cancel_reason, failure, revision,
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context, outcome
FROM executions WHERE namespace = @namespace AND idempotency_key = @idempotency_key::text;

-- name: ListExecutions :many
-- A page, newest first, between two keys: of the executions that ended as asked for, and of the
-- live ones, so many each; then merged. Takes no lock; indexes executions_ended and
-- executions_live give the order, the other filters are looked at row by row; primary key for
-- the rows of the page.
SELECT e.id, e.namespace, e.name, e.idempotency_key, e.content_hash, e.state, e.round, e.priority, e.fail_fast, e.stopping,
    e.created_at, e.due_at, e.started_at, e.ended_at, e.timeout, e.cancel_grace, e.deadline, e.cancel_deadline,
    e.cancel_reason, e.failure, e.revision, e.sequence, e.end_entry, e.step_count, e.open_steps, e.unsuccessful_steps,
    e.live_attempts, e.labels, e.trace_context, e.outcome
FROM (
    SELECT k.created_at, k.id FROM (
        SELECT m.created_at, m.id FROM unnest(@outcomes::text[]) AS o(outcome)
        CROSS JOIN LATERAL (
            SELECT t.created_at, t.id FROM executions t
            WHERE t.namespace = @namespace AND t.outcome = o.outcome
              AND (t.created_at, t.id) < (@before_time::timestamptz, @before_id::uuid)
              AND (t.created_at, t.id) >= (@from_time::timestamptz, @from_id::uuid)
              AND (@name::text = '' OR t.name = @name::text)
              AND (@labels::jsonb = '{}'::jsonb OR t.labels @> @labels::jsonb)
            ORDER BY t.created_at DESC, t.id DESC LIMIT @page_size::integer) m
        UNION ALL
        (SELECT l.created_at, l.id FROM executions l
         WHERE @live::boolean AND l.namespace = @namespace AND l.outcome IS NULL
           AND (l.created_at, l.id) < (@before_time::timestamptz, @before_id::uuid)
           AND (l.created_at, l.id) >= (@from_time::timestamptz, @from_id::uuid)
           AND (cardinality(@live_states::text[]) = 0 OR l.state = ANY(@live_states::text[]))
           AND (@name::text = '' OR l.name = @name::text)
           AND (@labels::jsonb = '{}'::jsonb OR l.labels @> @labels::jsonb)
         ORDER BY l.created_at DESC, l.id DESC LIMIT @page_size::integer)
    ) k ORDER BY k.created_at DESC, k.id DESC LIMIT @page_size::integer) p
CROSS JOIN LATERAL (
    SELECT t.id, t.namespace, t.name, t.idempotency_key, t.content_hash, t.state, t.round, t.priority, t.fail_fast, t.stopping,
        t.created_at, t.due_at, t.started_at, t.ended_at, t.timeout, t.cancel_grace, t.deadline, t.cancel_deadline,
        t.cancel_reason, t.failure, t.revision, t.sequence, t.end_entry, t.step_count, t.open_steps, t.unsuccessful_steps,
        t.live_attempts, t.labels, t.trace_context, t.outcome
    FROM executions t WHERE t.id = p.id OFFSET 0) e
ORDER BY e.created_at DESC, e.id DESC;

-- name: ListFrontier :one
-- How far down a page may look: the newest of the keys at which so many rows were passed, of each
-- outcome and of the live ones. No row where none of them has as many. Takes no lock; indexes
-- executions_ended and executions_live, without the rows where they are not new.
SELECT k.created_at, k.id FROM (
    SELECT m.created_at, m.id FROM unnest(@outcomes::text[]) AS o(outcome)
    CROSS JOIN LATERAL (
        SELECT t.created_at, t.id FROM executions t
        WHERE t.namespace = @namespace AND t.outcome = o.outcome
          AND (t.created_at, t.id) < (@before_time::timestamptz, @before_id::uuid)
          AND (t.created_at, t.id) >= (@from_time::timestamptz, @from_id::uuid)
        ORDER BY t.created_at DESC, t.id DESC OFFSET @passed::integer LIMIT 1) m
    UNION ALL
    (SELECT l.created_at, l.id FROM executions l
     WHERE @live::boolean AND l.namespace = @namespace AND l.outcome IS NULL
       AND (l.created_at, l.id) < (@before_time::timestamptz, @before_id::uuid)
       AND (l.created_at, l.id) >= (@from_time::timestamptz, @from_id::uuid)
     ORDER BY l.created_at DESC, l.id DESC OFFSET @passed::integer LIMIT 1)
) k ORDER BY k.created_at DESC, k.id DESC LIMIT 1;

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
    sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts, labels, trace_context, outcome
FROM executions WHERE id = ANY(@ids::uuid[]);
