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
-- Whether anything is over or due. Takes no lock; scans leases, which is small; index timers_due.
SELECT EXISTS (SELECT FROM leases WHERE expires_at <= now())::boolean AS leases_over,
    EXISTS (SELECT FROM timers WHERE fires_at <= now())::boolean AS timers_due;
