-- name: DrawLeaseVersions :many
-- The clock and the fencing tokens of a dispatch, drawn after its last lock: timeline of the
-- WAL in the high bits, so that no promotion of a standby repeats one. Takes no lock, reads no index.
SELECT clock_timestamp()::timestamptz AS at,
    ((('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint << 40) | nextval('lease_versions'))::bigint AS lease_version
FROM generate_series(1, @n::integer);

-- name: DrawLeaseVersionsOfEpoch :many
-- As DrawLeaseVersions, where pg_walfile_name is missing: a setting stands for the timeline.
-- Takes no lock, reads no index.
SELECT clock_timestamp()::timestamptz AS at, ((@epoch::bigint << 40) | nextval('lease_versions'))::bigint AS lease_version
FROM generate_series(1, @n::integer);

-- name: InsertLeases :exec
-- Grants. Locks the new rows; the unique index on step_id holds that a step has one live lease.
INSERT INTO leases (attempt_id, step_id, execution_id, worker_id, session_id, claim_id, request_id, lease_version, expires_at, cap_at, duration)
SELECT unnest(@attempt_ids::uuid[]), unnest(@step_ids::uuid[]), unnest(@execution_ids::uuid[]), unnest(@worker_ids::uuid[]),
    unnest(@session_ids::uuid[]), unnest(@claim_ids::uuid[]), unnest(@request_ids::text[]), unnest(@lease_versions::bigint[]),
    unnest(@expires_ats::timestamptz[]), unnest(@cap_ats::timestamptz[]), unnest(@durations::interval[]);

-- name: LockLeases :many
-- Locks leases FOR UPDATE in order of id, leaving out those that another holds: a frozen
-- replica in the middle of a renewal delays nobody else's. Primary key.
SELECT attempt_id, lease_version FROM leases WHERE attempt_id = ANY(@attempt_ids::uuid[]) ORDER BY attempt_id FOR UPDATE SKIP LOCKED;

-- name: LiveLeases :many
-- Which attempts are live. Takes no lock; primary key.
SELECT attempt_id FROM leases WHERE attempt_id = ANY(@attempt_ids::uuid[]);

-- name: DeleteLeases :many
-- Ends leases: the row is the authority, and only its own version ends it. Locks and deletes
-- the rows; primary key. The LIMIT leaves out nothing: it tells the planner that the arrays are
-- few, or a plan that was made while the table was small would walk it whole.
DELETE FROM leases l
USING (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@lease_versions::bigint[]) AS lease_version
      LIMIT cardinality(@attempt_ids::uuid[])) u
WHERE l.attempt_id = u.attempt_id AND l.lease_version = u.lease_version
RETURNING l.attempt_id, l.expires_at;

-- name: EndLeases :exec
-- As DeleteLeases, of rows that were locked with these versions: all of them, or an error.
WITH deleted AS (
    DELETE FROM leases l
    USING (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@lease_versions::bigint[]) AS lease_version
          LIMIT cardinality(@attempt_ids::uuid[])) u
    WHERE l.attempt_id = u.attempt_id AND l.lease_version = u.lease_version
    RETURNING l.attempt_id
)
SELECT exactly(count(*), cardinality(@attempt_ids::uuid[])) FROM deleted;

-- name: DeleteExpiredLeases :many
-- Ends leases that are over, by this very statement's look: one that was renewed meanwhile
-- stays. Locks and deletes the rows; primary key.
DELETE FROM leases l
USING (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@lease_versions::bigint[]) AS lease_version
      LIMIT cardinality(@attempt_ids::uuid[])) u
WHERE l.attempt_id = u.attempt_id AND l.lease_version = u.lease_version AND l.expires_at <= now()
RETURNING l.attempt_id, l.step_id, l.execution_id, l.expires_at,
    COALESCE((SELECT w.session_id = l.session_id FROM workers w WHERE w.id = l.worker_id), false)::boolean AS session_current;

-- name: DeleteUndeliveredLeases :many
-- Hands back grants that provably reached nobody: same version, same delivery, never renewed.
-- Locks and deletes the rows; primary key.
DELETE FROM leases l
USING (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@lease_versions::bigint[]) AS lease_version,
        unnest(@deliveries::integer[]) AS delivery
      LIMIT cardinality(@attempt_ids::uuid[])) u
WHERE l.attempt_id = u.attempt_id AND l.lease_version = u.lease_version AND l.delivery = u.delivery AND NOT l.renewed
RETURNING l.attempt_id;

-- name: ExpiredLeases :many
-- Candidates of the sweeper, but for executions that were missed. Takes no lock: what is over is
-- decided when they are deleted. Looks as SweepWork does.
WITH size AS MATERIALIZED (
    SELECT pg_relation_size('leases') <= GREATEST(@small::bigint, c.reltuples::bigint * @per_worker::bigint) AS whole
    FROM pg_catalog.pg_class c WHERE c.oid = 'workers'::regclass
)
SELECT x.attempt_id, x.execution_id, x.lease_version FROM (
    SELECT l.attempt_id, l.execution_id, l.lease_version FROM leases l
    WHERE (SELECT whole FROM size) AND l.expires_at <= now()
    UNION ALL
    SELECT l.attempt_id, l.execution_id, l.lease_version FROM worker_states w CROSS JOIN LATERAL (
        SELECT k.attempt_id, k.execution_id, k.lease_version FROM leases k
        WHERE k.worker_id = w.id AND k.lease_version >= w.leases_from AND k.expires_at <= now() OFFSET 0) l
    WHERE NOT (SELECT whole FROM size)) x
WHERE NOT x.execution_id = ANY(@skipped::uuid[])
  AND (cardinality(@wanted::uuid[]) = 0 OR x.execution_id = ANY(@wanted::uuid[]))
ORDER BY x.execution_id, x.attempt_id LIMIT @batch::integer;

-- name: RenewLeases :many
-- Renews leases locked before. Never shortens and never passes a deadline; only the session
-- that is still its worker's renews. Primary keys, of drains too; HOT, for no index holds what changes. LIMIT
-- as in DeleteLeases; OFFSET 0 as in AttemptsOfNumber.
UPDATE leases l SET expires_at = LEAST(l.cap_at, l.cancel_at, GREATEST(l.expires_at, now() + u.duration)), duration = u.duration, renewed = true
FROM (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@lease_versions::bigint[]) AS lease_version,
        unnest(@session_ids::uuid[]) AS session_id, unnest(@durations::interval[]) AS duration
      LIMIT cardinality(@attempt_ids::uuid[])) u
WHERE l.attempt_id = u.attempt_id AND l.lease_version = u.lease_version AND l.session_id = u.session_id
  AND EXISTS (SELECT FROM workers w WHERE w.id = l.worker_id AND w.session_id = l.session_id OFFSET 0)
RETURNING l.attempt_id, l.step_id, l.worker_id, l.expires_at, (l.expires_at - now())::interval AS remaining,
    COALESCE((SELECT e.stopping FROM executions e WHERE e.id = l.execution_id), false)::boolean AS stopping, l.cancel_at,
    (l.cancel_at - now())::interval AS cancel_remaining,
    COALESCE((SELECT w.drained FROM worker_states w WHERE w.id = l.worker_id), false)::boolean AS draining;

-- name: StopLeases :exec
-- Gives the live leases of stopped executions the end of the grace. The rows were locked
-- before; primary key.
UPDATE leases l SET cancel_at = u.cancel_at, expires_at = LEAST(l.expires_at, u.cancel_at)
FROM (SELECT unnest(@attempt_ids::uuid[]) AS attempt_id, unnest(@cancel_ats::timestamptz[]) AS cancel_at) u
WHERE l.attempt_id = u.attempt_id;

-- name: LockLeasesWaiting :many
-- As LockLeases, but waits (lock_timeout bounds it). Locks FOR UPDATE in order of id; primary key.
SELECT attempt_id, lease_version FROM leases WHERE attempt_id = ANY(@attempt_ids::uuid[]) ORDER BY attempt_id FOR UPDATE;

-- name: CountLeases :many
-- How many leases workers hold. Takes no lock (the workers' rows are locked where it decides);
-- primary keys of workers and lease_floors, index leases_worker from the floor on.
SELECT w.id AS worker_id, (SELECT count(*) FROM leases l WHERE l.worker_id = w.id AND l.lease_version >= w.leases_from)::integer AS live
FROM worker_states w WHERE w.id = ANY(@worker_ids::uuid[]);

-- name: PutFloor :exec
-- No live lease of a worker has a lower version from now on. Under the worker's lock; locks the
-- new row; primary key.
INSERT INTO lease_floors (worker_id, lease_version) VALUES (@worker_id, @lease_version) ON CONFLICT DO NOTHING;

-- name: DropFloors :exec
-- Floors of a worker that are above a version which was drawn just now: of a history that this
-- database does not have, for it was restored from a dump. Under the worker's lock; locks and
-- deletes the rows; primary key.
DELETE FROM lease_floors WHERE worker_id = @worker_id AND lease_version > @lease_version;

-- name: DeleteOldFloors :execrows
-- Forgets floors with a newer one above them, some at a time. Locks and deletes the rows; walks
-- the primary key up to the bound, then by place. Chosen into an array as in ClaimHeads.
DELETE FROM lease_floors WHERE ctid = ANY(ARRAY(
    SELECT f.ctid FROM lease_floors f
    WHERE EXISTS (SELECT FROM lease_floors n WHERE n.worker_id = f.worker_id AND n.lease_version > f.lease_version OFFSET 0)
    ORDER BY f.worker_id, f.lease_version LIMIT @batch::integer FOR UPDATE SKIP LOCKED));

-- name: LeasesOfEndedSessions :many
-- The leases of a worker's sessions that are over: a session never becomes current again, so
-- what is found stays so. Those of one that was opened since are its own. Takes no lock; primary
-- keys of workers and lease_floors, index leases_worker from the floor on.
SELECT l.attempt_id, l.execution_id, l.step_id, l.lease_version
FROM worker_states w CROSS JOIN LATERAL (
    SELECT k.attempt_id, k.execution_id, k.step_id, k.lease_version FROM leases k
    WHERE k.worker_id = w.id AND k.lease_version >= w.leases_from AND k.session_id IS DISTINCT FROM w.session_id OFFSET 0) l
WHERE w.id = @worker_id
ORDER BY l.execution_id, l.attempt_id LIMIT @batch::integer;

-- name: LeasesOfRequests :many
-- The live leases that bear polls' request ids, of the session that asked. Takes no lock;
-- primary keys of workers and lease_floors, index leases_worker from the floor on.
SELECT l.attempt_id, u.session_id::uuid AS session_id, u.request_id::text AS request_id
FROM (SELECT unnest(@worker_ids::uuid[]) AS worker_id, unnest(@session_ids::uuid[]) AS session_id, unnest(@request_ids::text[]) AS request_id) u
JOIN worker_states w ON w.id = u.worker_id
CROSS JOIN LATERAL (
    SELECT k.attempt_id FROM leases k
    WHERE k.worker_id = w.id AND k.lease_version >= w.leases_from AND k.session_id = u.session_id AND k.request_id = u.request_id OFFSET 0) l;

-- name: RaiseDeliveries :many
-- A replay of grants: from now on only this delivery can hand them back, and it is told which
-- one it is. Locks the rows in order of id, waiting; primary key.
UPDATE leases l SET delivery = l.delivery + 1
WHERE l.attempt_id = ANY(ARRAY(SELECT k.attempt_id FROM leases k WHERE k.attempt_id = ANY(@attempt_ids::uuid[]) ORDER BY k.attempt_id FOR UPDATE))
RETURNING l.attempt_id, l.delivery;

-- name: AnsweredRequests :many
-- Which polls were answered with grants before. Takes no lock; primary key (session_id, request_id).
SELECT r.session_id, r.request_id FROM lease_requests r
JOIN (SELECT unnest(@session_ids::uuid[]) AS session_id, unnest(@request_ids::text[]) AS request_id) u
  ON r.session_id = u.session_id AND r.request_id = u.request_id;

-- name: InsertAnsweredRequests :exec
-- Remembers polls that are answered with grants, under their workers' locks. Locks the new
-- rows; primary key (session_id, request_id).
INSERT INTO lease_requests (session_id, request_id, answered_at)
SELECT unnest(@session_ids::uuid[]), unnest(@request_ids::text[]), now() ON CONFLICT DO NOTHING;

-- name: DeleteOldAnsweredRequests :execrows
-- Forgets polls that are older than an hour, the longest lease, some at a time. Locks and deletes
-- the rows; index lease_requests_age, then by place. Chosen into an array as in ClaimHeads.
DELETE FROM lease_requests WHERE ctid = ANY(ARRAY(
    SELECT r.ctid FROM lease_requests r WHERE r.answered_at < now() - interval '1 hour'
    ORDER BY r.answered_at LIMIT @batch::integer FOR UPDATE SKIP LOCKED));

-- name: CreditLeases :exec
-- After an outage of the service: every lease that was not over at the last sweep lasts
-- anew, at most its duration, within its deadlines. The rows were locked before. Scans the table.
UPDATE leases l SET
    cancel_at = l.cancel_at + @gap::interval,
    expires_at = LEAST(l.cap_at, l.cancel_at + @gap::interval, GREATEST(l.expires_at, now() + LEAST(@gap::interval, l.duration)))
WHERE l.expires_at > @swept_at::timestamptz;

-- name: LockAllLeases :many
-- Locks every lease FOR UPDATE in order of id, for a credit. Scans the table, which is small.
SELECT attempt_id FROM leases ORDER BY attempt_id FOR UPDATE;

-- name: RunningOfCapabilities :many
-- How many leases are live of each capability, of so many leases at most. Takes no lock; scans
-- leases up to the bound, primary key of steps.
SELECT s.capability_id, count(*)::integer AS running
FROM (SELECT k.step_id FROM leases k LIMIT @most::integer) l
CROSS JOIN LATERAL (SELECT t.capability_id FROM steps t WHERE t.id = l.step_id OFFSET 0) s
GROUP BY s.capability_id;

-- name: LeasesOfWorker :many
-- The live leases of a worker, the oldest first. Takes no lock; index leases_worker from the
-- floor on, primary keys. OFFSET 0 as in LeaseContents.
SELECT l.attempt_id, l.lease_version, l.expires_at, a.number, a.leased_at, a.progress, a.progress_message,
    l.step_id, s.name AS step_name, c.name AS capability, l.execution_id, e.name AS execution_name
FROM worker_states w
CROSS JOIN LATERAL (
    SELECT k.attempt_id, k.lease_version, k.expires_at, k.step_id, k.execution_id FROM leases k
    WHERE k.worker_id = w.id AND k.lease_version >= w.leases_from OFFSET 0) l
CROSS JOIN LATERAL (SELECT t.number, t.leased_at, t.progress, t.progress_message FROM attempts t WHERE t.id = l.attempt_id OFFSET 0) a
CROSS JOIN LATERAL (SELECT t.name, t.capability_id FROM steps t WHERE t.id = l.step_id OFFSET 0) s
CROSS JOIN LATERAL (SELECT t.name FROM capabilities t WHERE t.id = s.capability_id OFFSET 0) c
CROSS JOIN LATERAL (SELECT t.name FROM executions t WHERE t.id = l.execution_id OFFSET 0) e
WHERE w.id = @worker_id ORDER BY a.leased_at, l.attempt_id LIMIT @most::integer;
