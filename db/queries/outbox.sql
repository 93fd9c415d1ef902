-- name: InsertEvents :exec
-- Events, in the transaction of the change that they tell of. Locks the new rows; primary key
-- and (aggregate_id, sequence).
INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, available_at, created_at)
SELECT unnest(@ids::uuid[]), unnest(@namespaces::text[]), unnest(@aggregate_ids::uuid[]), unnest(@event_types::text[]),
    unnest(@sequences::bigint[]), unnest(@payloads::jsonb[]), now(), unnest(@created_ats::timestamptz[]);

-- name: PutHeads :exec
-- One head per aggregate with unsettled events, after its events. A head that is there already
-- stays as it is: its relay sees the new events. Locks the rows, in order of id; primary key.
INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at)
SELECT u.aggregate_id, min(u.sequence), now()
FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
GROUP BY u.aggregate_id ORDER BY u.aggregate_id
ON CONFLICT (aggregate_id) DO UPDATE SET available_at = outbox_heads.available_at;

-- name: ClaimHeads :many
-- Heads that are due. Locks them FOR UPDATE, leaving out locked ones; index outbox_heads_due, then
-- the primary key. Chosen into an array, once: a subquery that skips locked rows, joined by a plan
-- that was made on an empty table, is run again for each row, and chooses others each time.
UPDATE outbox_heads h SET claim_id = @claim_id::uuid, claim_expires_at = now() + @claim_duration::interval
WHERE h.aggregate_id = ANY(ARRAY(
    SELECT d.aggregate_id FROM outbox_heads d
    WHERE d.available_at <= now() AND (d.claim_expires_at IS NULL OR d.claim_expires_at <= now() OR d.claim_id = @claim_id::uuid)
    ORDER BY d.available_at LIMIT @heads::integer FOR UPDATE SKIP LOCKED))
RETURNING h.aggregate_id, h.next_sequence;

-- name: StartPublishing :many
-- The first unsettled events of claimed heads. Under the heads' locks, and locks the events;
-- unique index (aggregate_id, sequence), from the first unsettled one on, then the primary key, and
-- that of executions. Chosen into an array as in ClaimHeads.
UPDATE outbox_events e SET status = 'PUBLISHING', claim_id = @claim_id::uuid, claim_expires_at = now() + @claim_duration::interval
WHERE e.id = ANY(ARRAY(
    SELECT v.id FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
    CROSS JOIN LATERAL (
        SELECT f.id FROM outbox_events f
        WHERE f.aggregate_id = u.aggregate_id AND f.sequence >= u.sequence AND f.sequence < u.sequence + @events::integer
          AND f.status IN ('PENDING', 'FAILED', 'PUBLISHING')
        ORDER BY f.sequence OFFSET 0) v))
RETURNING e.id, e.namespace, e.aggregate_id, e.event_type, e.sequence, e.payload, e.created_at, e.attempts,
    (SELECT x.trace_context FROM executions x WHERE x.id = e.aggregate_id) AS trace_context;

-- name: LockClaimedHeads :many
-- The heads that are still ours. Locks FOR UPDATE in order of id; primary key.
SELECT aggregate_id, claim_id FROM outbox_heads
WHERE aggregate_id = ANY(@aggregate_ids::uuid[]) AND claim_id = ANY(@claim_ids::uuid[]) ORDER BY aggregate_id FOR UPDATE;

-- name: SettleEvents :execrows
-- What came of published events, each by its claim. Under the heads' locks, and locks the
-- events; primary key; HOT, for no index holds what changes. The LIMIT keeps the order of the join:
-- from the few to the table.
UPDATE outbox_events e SET status = u.status, last_error = u.last_error, claim_id = NULL, claim_expires_at = NULL,
    attempts = e.attempts + u.tries, available_at = now() + u.pause,
    published_at = CASE WHEN u.status = 'PUBLISHED' THEN now() ELSE e.published_at END
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@claim_ids::uuid[]) AS claim_id, unnest(@statuses::text[]) AS status,
        unnest(@last_errors::text[]) AS last_error, unnest(@tries::integer[]) AS tries, unnest(@pauses::interval[]) AS pause
      LIMIT cardinality(@ids::uuid[])) u
WHERE e.id = u.id AND e.claim_id = u.claim_id AND e.status = 'PUBLISHING';

-- name: FirstUnsettled :many
-- What is left of aggregates, in a statement later than the locks of their heads. Takes no
-- lock; unique index (aggregate_id, sequence), from the first that was unsettled on.
SELECT u.aggregate_id::uuid AS aggregate_id, v.sequence, v.status, v.available_at
FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
CROSS JOIN LATERAL (
    SELECT f.sequence, f.status, f.available_at FROM outbox_events f
    WHERE f.aggregate_id = u.aggregate_id AND f.sequence >= u.sequence AND f.status NOT IN ('PUBLISHED', 'SKIPPED')
    ORDER BY f.sequence LIMIT 1) v;

-- name: MoveHeads :exec
-- Heads of aggregates with something left: due with their first unsettled event, never behind
-- a DEAD one. Locked before; primary key. LIMIT as in SettleEvents.
UPDATE outbox_heads h SET claim_id = NULL, claim_expires_at = NULL, next_sequence = u.sequence,
    available_at = CASE WHEN u.dead THEN 'infinity'::timestamptz ELSE u.available_at END
FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence,
        unnest(@deads::boolean[]) AS dead, unnest(@available_ats::timestamptz[]) AS available_at
      LIMIT cardinality(@aggregate_ids::uuid[])) u
WHERE h.aggregate_id = u.aggregate_id;

-- name: DeleteHeads :exec
-- Heads of aggregates that are settled. A writer that waits for one makes it anew. Locked
-- before; primary key.
DELETE FROM outbox_heads WHERE aggregate_id = ANY(@aggregate_ids::uuid[]);

-- name: NextHeadDue :one
-- How long until a head is due; NULL when there is none. Takes no lock; index outbox_heads_due.
SELECT (min(GREATEST(h.available_at, COALESCE(h.claim_expires_at, h.available_at))) - now())::interval AS remaining
FROM (SELECT available_at, claim_expires_at FROM outbox_heads WHERE available_at < 'infinity' ORDER BY available_at LIMIT 200) h;
