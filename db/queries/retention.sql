-- name: HoldPurge :execrows
-- Takes or keeps the right to remove what is old; who held it for so long without a word has
-- lost it. Locks the singleton, unless another has it just now; primary key.
UPDATE purges SET holder = @holder::uuid, held_at = now() WHERE id = (
    SELECT p.id FROM purges p WHERE p.id = 1
      AND (p.holder IS NULL OR p.holder = @holder::uuid OR p.held_at NOT BETWEEN now() - @silence::interval AND now() + @silence::interval)
    FOR UPDATE SKIP LOCKED);

-- name: EndedGroups :many
-- Namespaces and outcomes of which executions ended: a loose walk over index executions_ended.
-- Takes no lock.
WITH RECURSIVE groups AS (
    (SELECT e.namespace, e.outcome FROM executions e WHERE e.outcome IS NOT NULL AND e.namespace >= ''
     ORDER BY e.namespace, e.outcome LIMIT 1)
    UNION ALL
    SELECT n.namespace, n.outcome FROM groups g CROSS JOIN LATERAL (
        SELECT e.namespace, e.outcome FROM executions e
        WHERE e.outcome IS NOT NULL AND (e.namespace, e.outcome) > (g.namespace, g.outcome)
        ORDER BY e.namespace, e.outcome LIMIT 1) n
)
SELECT namespace, outcome::text AS outcome FROM groups;

-- name: OldExecutions :many
-- Executions of a group, oldest first, after a key, as old as retention asks for; due are those
-- that ended so long ago and have no unsettled event. Takes no lock: they are locked, then looked
-- at anew. Index executions_ended, backwards; primary key of outbox_heads.
SELECT e.id, e.created_at, e.step_count, e.revision, e.sequence,
    (e.ended_at <= now() - @age::interval AND h.aggregate_id IS NULL)::boolean AS due
FROM (
    SELECT k.id, k.created_at, k.ended_at, k.step_count, k.revision, k.sequence FROM executions k
    WHERE k.namespace = @namespace AND k.outcome = @outcome::text AND (k.created_at, k.id) > (@after_time::timestamptz, @after_id::uuid)
      AND k.created_at <= now() - @age::interval
    ORDER BY k.created_at, k.id LIMIT @executions::integer) e
LEFT JOIN LATERAL (SELECT o.aggregate_id FROM outbox_heads o WHERE o.aggregate_id = e.id OFFSET 0) h ON true
ORDER BY e.created_at, e.id;

-- name: LockOldExecutions :many
-- Executions that are to go. Locks FOR UPDATE in order of id, leaving out those that another
-- holds; primary key.
SELECT id FROM executions WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: OldExecutionsNow :many
-- Which of the locked executions may go: they ended so long ago, and every event of theirs is
-- settled. Under the executions' locks, takes none; primary keys of both.
SELECT e.id FROM executions e
LEFT JOIN LATERAL (SELECT o.aggregate_id FROM outbox_heads o WHERE o.aggregate_id = e.id OFFSET 0) h ON true
WHERE e.id = ANY(@ids::uuid[]) AND e.outcome IS NOT NULL AND e.ended_at <= now() - @age::interval AND h.aggregate_id IS NULL;

-- name: StepIDsOf :many
-- All steps of executions. Under the executions' locks, takes none; index (execution_id, ordinal).
SELECT id FROM steps WHERE execution_id = ANY(@execution_ids::uuid[]);

-- name: PurgePayloads :exec
-- Of steps that go, under their executions' locks. Locks and deletes the rows; primary key.
DELETE FROM payloads WHERE step_id = ANY(@step_ids::uuid[]);

-- name: PurgeEdges :exec
-- Of steps that go, under their executions' locks. Locks and deletes the rows; primary key.
DELETE FROM step_edges WHERE child_id = ANY(@step_ids::uuid[]);

-- name: PurgeAttempts :execrows
-- Of steps that go, some at a time, under their executions' locks. Locks and deletes the rows;
-- unique index (step_id, number), then the primary key.
DELETE FROM attempts WHERE id = ANY(ARRAY(SELECT a.id FROM attempts a WHERE a.step_id = ANY(@step_ids::uuid[]) LIMIT @batch::integer));

-- name: PurgeSteps :exec
-- Of executions that go, under their locks. Locks and deletes the rows; primary key.
DELETE FROM steps WHERE id = ANY(@step_ids::uuid[]);

-- name: PurgeEntries :execrows
-- Of executions that go, some at a time, under their locks. Locks and deletes the rows; primary
-- key, then by place.
DELETE FROM timeline_entries WHERE ctid = ANY(ARRAY(
    SELECT t.ctid FROM timeline_entries t WHERE t.execution_id = ANY(@execution_ids::uuid[]) LIMIT @batch::integer));

-- name: PurgeEventsOf :execrows
-- Of executions that go, some at a time, under their locks; all are settled. Locks and deletes
-- the rows; unique index (aggregate_id, sequence), then the primary key.
DELETE FROM outbox_events WHERE id = ANY(ARRAY(
    SELECT o.id FROM outbox_events o WHERE o.aggregate_id = ANY(@execution_ids::uuid[]) LIMIT @batch::integer));

-- name: PurgeExecutions :execrows
-- The executions themselves, which are locked. Deletes the rows; primary key.
DELETE FROM executions WHERE id = ANY(@ids::uuid[]);

-- name: OldEvents :many
-- Events, oldest first, after a key; due are those that were settled so long ago. Takes no lock;
-- index outbox_events_age.
SELECT id, created_at,
    (status IN ('PUBLISHED', 'SKIPPED') AND COALESCE(published_at, available_at) <= now() - @age::interval)::boolean AS due
FROM outbox_events WHERE (created_at, id) > (@after_time::timestamptz, @after_id::uuid) AND created_at <= now() - @age::interval
ORDER BY created_at, id LIMIT @events::integer;

-- name: PurgeEvents :execrows
-- Events that were settled so long ago; that is final. Locks the rows in order, leaving out locked
-- ones, and deletes them; primary key.
DELETE FROM outbox_events WHERE id = ANY(ARRAY(
    SELECT o.id FROM outbox_events o
    WHERE o.id = ANY(@ids::uuid[]) AND o.status IN ('PUBLISHED', 'SKIPPED')
      AND COALESCE(o.published_at, o.available_at) <= now() - @age::interval
    ORDER BY o.id FOR UPDATE SKIP LOCKED));

-- name: DropDeadEvents :many
-- Events that lead locked heads and have been DEAD for so long. Under the heads' locks, locks and
-- deletes the rows; unique index (aggregate_id, sequence).
DELETE FROM outbox_events e
USING (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
WHERE e.aggregate_id = u.aggregate_id AND e.sequence = u.sequence AND e.status = 'DEAD' AND e.available_at <= now() - @age::interval
RETURNING e.id, e.aggregate_id, e.sequence, e.event_type, e.last_error;

-- name: OldWorkers :many
-- Workers after an id; due are those that were not seen for so long, and that no operator has
-- drained. Takes no lock; primary keys of workers and drains.
SELECT w.id, (w.last_seen_at <= now() - @age::interval AND d.value IS NULL)::boolean AS due
FROM (SELECT k.id, k.namespace, k.last_seen_at FROM workers k WHERE k.id > @after_id::uuid ORDER BY k.id LIMIT @workers::integer) w
LEFT JOIN LATERAL (
    SELECT x.value FROM drains x WHERE x.namespace = w.namespace AND x.kind = 'WORKER' AND x.value = w.id::text OFFSET 0) d ON true
ORDER BY w.id;

-- name: LockOldWorkers :many
-- Workers that are to go. Locks FOR UPDATE in order of id, leaving out those that another holds;
-- primary key.
SELECT id FROM workers WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: PurgeWorkers :execrows
-- Locked workers that were not seen for so long, hold no lease, and are not drained by an operator:
-- that lasts until it is ended, and they may come back. Deletes the rows, with their sessions;
-- primary keys of workers and drains, and leases_worker.
DELETE FROM workers w WHERE w.id = ANY(@ids::uuid[]) AND w.last_seen_at <= now() - @age::interval
  AND NOT EXISTS (SELECT FROM leases l WHERE l.worker_id = w.id)
  AND NOT EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'WORKER' AND d.value = w.id::text);
