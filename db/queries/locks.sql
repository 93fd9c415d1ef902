-- name: TryLocks :many
-- Which keys are ours in this transaction: a (step, attempt number) to dispatch, an
-- idempotency key to insert under. Takes advisory locks,
-- in order of key, that end with the transaction; reads no index.
SELECT k.key::bigint AS key, pg_try_advisory_xact_lock(k.key) AS locked
FROM (SELECT unnest(@keys::bigint[]) AS key ORDER BY 1) k;

-- name: WriteWAL :exec
-- Makes the transaction's commit one that has to be replicated, where replication is
-- synchronous. Takes no lock, reads no index.
SELECT pg_logical_emit_message(true, 'leasehold', '');

-- name: CommitLater :exec
-- Nobody is told of this transaction, and nothing is lost with it: its commit waits neither for the
-- disk nor for a standby. Takes no lock, reads no index.
SELECT set_config('synchronous_commit', 'off', true);

-- name: Notify :exec
-- Passes hints on to the replicas that listen, outside every transaction that writes. Takes
-- the lock of the notification queue for the length of its own commit, which writes nothing else and
-- waits neither for the disk nor for a standby; reads no index.
SELECT pg_notify('leasehold', @payload::text);

-- name: KeyLocks :many
-- Waits for the right to insert under idempotency keys, or a worker's name, and for an earlier try of
-- the same dispatch. Takes advisory
-- locks, in order of key, that end with the transaction; reads no index.
SELECT k.key::bigint AS key, pg_advisory_xact_lock(k.key)::text AS locked
FROM (SELECT unnest(@keys::bigint[]) AS key ORDER BY 1) k;
