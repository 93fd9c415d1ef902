-- name: TryDispatchLocks :many
-- Which (step, attempt number) are ours to dispatch in this transaction. Takes advisory locks,
-- in order of key, that end with the transaction; reads no index.
SELECT k.key::bigint AS key, pg_try_advisory_xact_lock(k.key) AS locked
FROM (SELECT unnest(@keys::bigint[]) AS key ORDER BY 1) k;

-- name: WriteWAL :exec
-- Makes the transaction's commit one that has to be replicated, where replication is
-- synchronous. Takes no lock, reads no index.
SELECT pg_logical_emit_message(true, 'leasehold', '');

-- name: Notify :exec
-- Passes hints on to the replicas that listen, outside every transaction that writes. Takes
-- the lock of the notification queue for the length of its own commit, reads no index.
SELECT pg_notify('leasehold', @payload::text);

-- name: NowWithLockTimeout :one
-- The transaction's instant; its waits for locks end after so long. Takes no lock, reads no index.
SELECT now()::timestamptz AS now, set_config('lock_timeout', @lock_timeout::text, true) AS lock_timeout;
