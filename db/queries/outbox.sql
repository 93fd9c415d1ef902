-- name: InsertEvents :exec
-- Events, in the transaction of the change that they tell of. Locks the new rows; primary key
-- and (aggregate_id, sequence).
INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, available_at, created_at)
SELECT unnest(@ids::uuid[]), unnest(@namespaces::text[]), unnest(@aggregate_ids::uuid[]), unnest(@event_types::text[]),
    unnest(@sequences::bigint[]), unnest(@payloads::jsonb[]), now(), unnest(@created_ats::timestamptz[]);

-- name: PutHeads :exec
-- One head per aggregate with unsettled events, after its events. A head that is there already
-- stays as it is: its relay sees the new events. Locks the rows, in order of id; primary key.
INSERT INTO outbox_heads (aggregate_id, available_at)
SELECT u.aggregate_id, now() FROM (SELECT DISTINCT unnest(@aggregate_ids::uuid[]) AS aggregate_id) u ORDER BY u.aggregate_id
ON CONFLICT (aggregate_id) DO UPDATE SET available_at = outbox_heads.available_at;
