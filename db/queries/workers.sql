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

-- name: NewWorker :one
-- Whether a worker's name is new, and how many others its namespace has, up to a bound. Takes no
-- lock; unique index (namespace, name).
SELECT (NOT EXISTS (SELECT FROM workers w WHERE w.namespace = @namespace AND w.name = @name))::boolean AS added,
    (SELECT count(*) FROM (SELECT FROM workers o WHERE o.namespace = @namespace LIMIT @most::integer) x)::integer AS existing;

-- name: LockWorkers :many
-- The slots' gate: dispatch re-counts under it. Locks FOR NO KEY UPDATE in order of id,
-- leaving out those that another holds; primary key.
SELECT id, name, node, slots, session_id FROM workers WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED;

-- name: LockWorker :one
-- Locks FOR NO KEY UPDATE; primary key.
SELECT id, session_id FROM workers WHERE id = @id FOR NO KEY UPDATE;

-- name: HoldWorker :one
-- A worker that must not be removed meanwhile. Locks FOR KEY SHARE, which keeps no dispatch waiting;
-- primary key.
SELECT namespace FROM workers WHERE id = @id FOR KEY SHARE;

-- name: WorkerLoads :many
-- What workers hold and whether they are drained, by a statement later than the locks over them:
-- a drain that was committed before counts. Also the version of the oldest that is live, or 0,
-- and the floor. Takes no lock; primary keys of workers, drains and lease_floors, index
-- leases_worker from the floor on.
SELECT w.id, w.drained::boolean AS drained, l.live, l.oldest_version, w.leases_from
FROM worker_states w CROSS JOIN LATERAL (
    SELECT count(*)::integer AS live, COALESCE(min(k.lease_version), 0)::bigint AS oldest_version
    FROM leases k WHERE k.worker_id = w.id AND k.lease_version >= w.leases_from) l
WHERE w.id = ANY(@ids::uuid[]);

-- name: FindWorkers :many
-- Workers as committed. Takes no lock; primary keys of workers and drains.
SELECT w.id, w.namespace, w.name, w.node, w.slots, w.session_id, w.drained::boolean AS drained, w.capabilities
FROM worker_states w WHERE w.id = ANY(@ids::uuid[]);

-- name: DrainWorker :exec
-- No new leases for its session. Locks the row; primary key.
UPDATE workers SET draining = true, last_seen_at = now() WHERE id = @id AND session_id = @session_id::uuid;

-- name: EndWorkerSession :exec
-- The worker has no session any more. Locks the row; primary key.
UPDATE workers SET session_id = NULL WHERE id = @id AND session_id = @session_id::uuid;

-- name: TouchWorkers :exec
-- Signs of life, some seconds' worth at a time. Locks the rows in order, leaving out locked
-- ones; primary key; HOT, for no index holds it.
UPDATE workers SET last_seen_at = now() WHERE id = ANY(ARRAY(
    SELECT w.id FROM workers w WHERE w.id = ANY(@ids::uuid[]) ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED));

-- name: TouchLiveWorkers :exec
-- After an outage of the service, sessions count as seen now. Locks the rows in order, leaving
-- out locked ones; scans the table.
UPDATE workers SET last_seen_at = now() WHERE id = ANY(ARRAY(
    SELECT w.id FROM workers w WHERE w.session_id IS NOT NULL AND w.last_seen_at > @since::timestamptz ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED));

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
-- Forgets sessions that ended more than a week ago, some at a time. Locks and deletes the rows;
-- index sessions_ended, then the primary key. Chosen into an array as in ClaimHeads.
DELETE FROM sessions WHERE id = ANY(ARRAY(
    SELECT s.id FROM sessions s WHERE s.ended_at < now() - interval '7 days' ORDER BY s.ended_at LIMIT @batch::integer FOR UPDATE SKIP LOCKED));

-- name: ListWorkers :many
-- A page of a namespace's workers in order of name, with the leases that they hold. Takes no
-- lock; unique index (namespace, name), the other filters are looked at row by row; index
-- leases_worker.
SELECT w.id, w.namespace, w.name, w.node, w.version, w.slots, w.labels, w.capabilities, w.session_id, w.draining, w.registered_at,
    w.last_seen_at, w.drained::boolean AS drained,
    (SELECT count(*) FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from)::integer AS live
FROM worker_states w
WHERE w.namespace = @namespace AND w.name > @after::text
  AND (@node::text = '' OR w.node = @node::text) AND (@version::text = '' OR w.version = @version::text)
  AND (@capability::text = '' OR @capability::text = ANY(w.capabilities))
  AND (NOT @live_only::boolean OR w.session_id IS NOT NULL AND w.last_seen_at > now() - @session_timeout::interval)
ORDER BY w.name LIMIT @page_size::integer;

-- name: GetWorker :one
-- One worker, with the leases that it holds. Takes no lock; primary key, index leases_worker.
SELECT w.id, w.namespace, w.name, w.node, w.version, w.slots, w.labels, w.capabilities, w.session_id, w.draining, w.registered_at,
    w.last_seen_at, w.drained::boolean AS drained,
    (SELECT count(*) FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from)::integer AS live
FROM worker_states w WHERE w.id = @id;

-- name: CapableWorkers :many
-- Workers with a session that offer a capability, those that came last first, with the leases
-- that they hold. Takes no lock; index workers_open, one namespace's workers up to a bound;
-- index leases_worker.
SELECT w.id, w.node, w.slots, w.last_seen_at, w.drained::boolean AS drained,
    (SELECT count(*) FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from)::integer AS live
FROM worker_states w
WHERE w.namespace = @namespace AND w.session_id IS NOT NULL AND @capability::text = ANY(w.capabilities)
ORDER BY w.id DESC LIMIT @most::integer;

-- name: CapacityOfCapabilities :many
-- What the workers that are there can take, of each capability: the same rules as
-- task.Standing, summed up. looked is how many workers with a session were looked at, up to a
-- bound, those that came last first. Takes no lock; index workers_open, index leases_worker.
WITH open AS MATERIALIZED (
    SELECT w.id, w.slots, w.capabilities, w.last_seen_at, w.drained, w.leases_from FROM worker_states w
    WHERE w.namespace = @namespace AND w.session_id IS NOT NULL ORDER BY w.id DESC LIMIT @most::integer
), there AS MATERIALIZED (
    SELECT o.capabilities, o.drained, CASE WHEN o.drained THEN 0
        ELSE GREATEST(o.slots - (SELECT count(*) FROM leases l WHERE l.worker_id = o.id AND l.lease_version >= o.leases_from), 0) END AS free
    FROM open o WHERE o.last_seen_at > now() - @session_timeout::interval
), offers AS (
    SELECT x.name, t.drained, t.free FROM there t CROSS JOIN LATERAL unnest(t.capabilities) x (name)
    WHERE x.name = ANY(@names::text[])
)
SELECT o.name::text AS name, count(*)::integer AS live, (count(*) FILTER (WHERE o.drained))::integer AS drained,
    sum(o.free)::bigint AS free
FROM offers o GROUP BY o.name
UNION ALL
SELECT '', count(*)::integer, 0, 0::bigint FROM open;
