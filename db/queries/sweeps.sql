-- name: LockSweep :one
-- The right to sweep. Locks the singleton FOR UPDATE; who does not get it gets no row. Primary key.
SELECT swept_at, now()::timestamptz AS now FROM sweeps WHERE id = 1 FOR UPDATE SKIP LOCKED;

-- name: StampSweep :exec
-- The row is locked before; primary key.
UPDATE sweeps SET swept_at = now() WHERE id = 1;

-- name: CancelingExecutions :many
-- Executions whose live attempts were asked to stop. Locks FOR NO KEY UPDATE in order of id;
-- through the leases that are being stopped, which are few; primary key.
SELECT e.id FROM executions e
WHERE e.id IN (SELECT l.execution_id FROM leases l WHERE l.cancel_at IS NOT NULL) AND e.cancel_deadline IS NOT NULL
ORDER BY e.id FOR NO KEY UPDATE;

-- name: CreditCancelGrace :exec
-- The cancel's grace moves by the outage. The rows are locked before; primary key.
UPDATE executions SET cancel_deadline = cancel_deadline + @gap::interval WHERE id = ANY(@ids::uuid[]);

-- name: SweepWork :one
-- Whether anything is over or due. Leases are few and have no index on what renewals change: the
-- table is scanned as a whole while it is small. It is not, when something keeps its dead rows:
-- then worker by worker, the index leases_worker from the floor on, unless that costs more. So
-- no lease is left out either way: each has a worker. And the first timer from an instant on. Takes
-- no lock; primary keys of workers and lease_floors; index timers_due.
WITH size AS MATERIALIZED (
    SELECT pg_relation_size('leases') <= GREATEST(@small::bigint, c.reltuples::bigint * @per_worker::bigint) AS whole
    FROM pg_catalog.pg_class c WHERE c.oid = 'workers'::regclass
)
SELECT CASE WHEN (SELECT whole FROM size) THEN EXISTS (SELECT FROM leases l WHERE l.expires_at <= now())
    ELSE EXISTS (
        SELECT FROM worker_states w CROSS JOIN LATERAL (
            SELECT l.attempt_id FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from AND l.expires_at <= now() LIMIT 1) x)
    END::boolean AS leases_over,
    t.fires_at::timestamptz AS next_timer, COALESCE(t.fires_at <= now(), false)::boolean AS timers_due
FROM (SELECT 1) one
LEFT JOIN LATERAL (SELECT k.fires_at FROM timers k WHERE k.fires_at >= @since::timestamptz ORDER BY k.fires_at LIMIT 1) t ON true;

-- name: Horizon :one
-- Where the work of others that is not seen yet begins at the earliest. Takes no lock; reads no
-- table.
SELECT horizon, server_started FROM horizons;
