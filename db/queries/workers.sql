-- name: UpsertWorker :one
-- Opens a session; it supersedes the one before. Locks the row; unique index (namespace, name).
INSERT INTO workers (id, namespace, name, node, version, slots, labels, capabilities, session_id, request_id, registered_at, last_seen_at)
VALUES (@id, @namespace, @name, @node, @version, @slots, @labels, @capabilities::text[], @session_id::uuid, @request_id, now(), now())
ON CONFLICT (namespace, name) DO UPDATE SET node = excluded.node, version = excluded.version, slots = excluded.slots,
    labels = excluded.labels, capabilities = excluded.capabilities, session_id = excluded.session_id,
    request_id = excluded.request_id, draining = false, registered_at = now(), last_seen_at = now()
RETURNING id;

-- name: LockWorkerByName :one
-- A registration meets the one before. Locks FOR NO KEY UPDATE; unique index (namespace, name).
SELECT id, session_id, request_id FROM workers WHERE namespace = @namespace AND name = @name FOR NO KEY UPDATE;

-- name: LockWorkers :many
-- The slots' gate: dispatch re-counts under it. Locks FOR NO KEY UPDATE in order of id,
-- leaving out those that another holds; primary key.
SELECT id, name, node, slots, session_id, draining, capabilities FROM workers WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: LockWorker :one
-- Locks FOR NO KEY UPDATE; primary key.
SELECT id, session_id FROM workers WHERE id = @id FOR NO KEY UPDATE;

-- name: FindWorkers :many
-- Workers as committed. Takes no lock; primary key.
SELECT id, namespace, name, node, slots, session_id, draining, capabilities FROM workers WHERE id = ANY(@ids::uuid[]);

-- name: DrainWorker :exec
-- No new leases for its session. Locks the row; primary key.
UPDATE workers SET draining = true, last_seen_at = now() WHERE id = @id AND session_id = @session_id::uuid;

-- name: EndWorkerSession :exec
-- The worker has no session any more. Locks the row; primary key.
UPDATE workers SET session_id = NULL WHERE id = @id AND session_id = @session_id::uuid;

-- name: TouchWorkers :exec
-- Signs of life, some seconds' worth at a time. Locks the rows in order, leaving out locked
-- ones; primary key; HOT, for no index holds it.
UPDATE workers SET last_seen_at = now() WHERE id IN (
    SELECT w.id FROM workers w WHERE w.id = ANY(@ids::uuid[]) ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED);

-- name: TouchLiveWorkers :exec
-- After an outage of the service, sessions count as seen now. Locks the rows in order, leaving
-- out locked ones; scans the table.
UPDATE workers SET last_seen_at = now() WHERE id IN (
    SELECT w.id FROM workers w WHERE w.session_id IS NOT NULL AND w.last_seen_at > @since::timestamptz ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED);

-- name: InsertSession :exec
-- Locks the new row; primary key.
INSERT INTO sessions (id, worker_id, opened_at) VALUES (@id, @worker_id, now());

-- name: EndSessions :exec
-- Every session of a worker but its current one is over. Locks the rows; index sessions_worker.
UPDATE sessions SET ended_at = now(), end_reason = @reason WHERE worker_id = @worker_id AND id <> @current::uuid AND ended_at IS NULL;

-- name: FindSessions :many
-- How sessions stand. Takes no lock; primary keys.
SELECT s.id, s.worker_id, s.ended_at, s.end_reason FROM sessions s WHERE s.id = ANY(@ids::uuid[]);

-- name: DeleteOldSessions :execrows
-- Forgets sessions that ended more than a week ago, some at a time. Locks and deletes the rows; index sessions_ended.
DELETE FROM sessions WHERE id IN (
    SELECT s.id FROM sessions s WHERE s.ended_at < now() - interval '7 days' ORDER BY s.ended_at LIMIT @batch::integer FOR UPDATE SKIP LOCKED);
