-- name: PutDrain :exec
-- Drains; what is drained already stays as it is. Locks the new row; primary key.
INSERT INTO drains (namespace, kind, value, reason, created_at) VALUES (@namespace, @kind, @value, @reason, now())
ON CONFLICT (namespace, kind, value) DO NOTHING;

-- name: NewDrain :one
-- Whether a drain is new, and how many others its namespace has, up to a bound. Takes no lock;
-- primary key.
SELECT (NOT EXISTS (SELECT FROM drains d WHERE d.namespace = @namespace AND d.kind = @kind AND d.value = @value))::boolean AS added,
    (SELECT count(*) FROM (SELECT FROM drains o WHERE o.namespace = @namespace LIMIT @most::integer) x)::integer AS existing;

-- name: DeleteDrain :execrows
-- Ends a drain. Locks and deletes the row; primary key.
DELETE FROM drains WHERE namespace = @namespace AND kind = @kind AND value = @value;

-- name: AwaitDispatchesToWorkers :exec
-- Waits for the dispatches under way to the workers of a drain. Locks their rows FOR SHARE in
-- order of id; index workers_open, one namespace's workers.
SELECT w.id FROM workers w
WHERE w.namespace = @namespace AND w.session_id IS NOT NULL
  AND CASE @kind::text WHEN 'WORKER' THEN w.id::text WHEN 'NODE' THEN w.node ELSE w.version END = @value::text
ORDER BY w.id FOR SHARE;

-- name: DrainsOfWorkers :many
-- Every drain that holds for workers. Takes no lock; primary keys of workers and drains.
SELECT w.id AS worker_id, d.kind, d.value, d.reason, d.created_at
FROM workers w
CROSS JOIN LATERAL (VALUES ('WORKER', w.id::text), ('NODE', w.node), ('VERSION', w.version)) v (kind, value)
JOIN drains d ON d.namespace = w.namespace AND d.kind = v.kind AND d.value = v.value
WHERE w.id = ANY(@ids::uuid[]) ORDER BY w.id, d.created_at, d.kind;

-- name: CountDrained :one
-- How many workers with a session a drain is about, up to a bound, and the leases that they
-- hold. Takes no lock; index workers_open, one namespace's workers; index leases_worker.
SELECT count(*)::integer AS workers,
    COALESCE(sum((SELECT count(*) FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from)), 0)::integer AS leases
FROM (SELECT k.id, k.leases_from FROM worker_states k
      WHERE k.namespace = @namespace AND k.session_id IS NOT NULL
        AND CASE @kind::text WHEN 'WORKER' THEN k.id::text WHEN 'NODE' THEN k.node ELSE k.version END = @value::text
      LIMIT @most::integer) w;
