-- name: EventsInOrder :many
-- Some events after a position, settled ones too. Takes no lock; unique index (aggregate_id, sequence).
SELECT id, namespace, aggregate_id, event_type, sequence, status, available_at, attempts, last_error, created_at, published_at,
    (available_at - now())::interval AS remaining
FROM outbox_events
WHERE (aggregate_id, sequence) > (@after_id::uuid, @after_sequence::bigint) AND aggregate_id <= @last_id::uuid
ORDER BY aggregate_id, sequence LIMIT @events::integer;

-- name: EventsBehindHeads :many
-- The first events of each head, from a sequence on: some are settled. Takes no lock; unique
-- index (aggregate_id, sequence).
SELECT e.id, e.namespace, e.aggregate_id, e.event_type, e.sequence, e.status, e.available_at, e.attempts, e.last_error,
    e.created_at, e.published_at, (e.available_at - now())::interval AS remaining
FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
CROSS JOIN LATERAL (
    SELECT f.id, f.namespace, f.aggregate_id, f.event_type, f.sequence, f.status, f.available_at, f.attempts, f.last_error,
        f.created_at, f.published_at
    FROM outbox_events f WHERE f.aggregate_id = u.aggregate_id AND f.sequence >= u.sequence
    ORDER BY f.sequence LIMIT @per_head::integer) e
ORDER BY e.aggregate_id, e.sequence;

-- name: EventPayloads :many
-- What events carry. Takes no lock; primary key.
SELECT id, payload FROM outbox_events WHERE id = ANY(@ids::uuid[]);

-- name: EventAggregates :many
-- Where events belong: facts that never change. Takes no lock; primary key.
SELECT id, aggregate_id FROM outbox_events WHERE id = ANY(@ids::uuid[]);

-- name: HeadsInOrder :many
-- Heads from an aggregate on. Takes no lock: they are locked, then looked at anew. Primary key.
SELECT aggregate_id, next_sequence FROM outbox_heads
WHERE aggregate_id >= @from_id::uuid AND aggregate_id <= @last_id::uuid ORDER BY aggregate_id LIMIT @heads::integer;

-- name: DeadHeadsInOrder :many
-- Those of the heads that a DEAD event leads. Takes no lock, as above; index outbox_heads_due.
SELECT aggregate_id, next_sequence FROM outbox_heads
WHERE available_at = 'infinity' AND aggregate_id >= @from_id::uuid AND aggregate_id <= @last_id::uuid
ORDER BY aggregate_id LIMIT @heads::integer;

-- name: AggregatesOfHeads :many
-- Whose the heads are, and how many events were written. Takes no lock; primary key.
SELECT id, namespace, sequence FROM executions WHERE id = ANY(@ids::uuid[]);

-- name: LockHeads :many
-- Heads, and whether a relay has a claim on them. Locks FOR UPDATE in order of id, after the
-- executions; primary key.
SELECT aggregate_id, next_sequence, COALESCE(claim_expires_at > now(), false)::boolean AS claimed
FROM outbox_heads WHERE aggregate_id = ANY(@aggregate_ids::uuid[]) ORDER BY aggregate_id FOR UPDATE;

-- name: ChangeEvents :many
-- An operator's word on unsettled events, some at a time. One whose publisher's claim is over
-- waits again, and counts as PENDING. Under the heads' locks, and locks the events; unique index
-- (aggregate_id, sequence), from the first unsettled one on; HOT, for no index holds what changes.
UPDATE outbox_events e SET status = @to_status, attempts = CASE WHEN @anew::boolean THEN 0 ELSE e.attempts END,
    available_at = now(), claim_id = NULL, claim_expires_at = NULL
FROM (SELECT v.id FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
      CROSS JOIN LATERAL (
          SELECT f.id FROM outbox_events f
          WHERE f.aggregate_id = u.aggregate_id AND f.sequence >= u.sequence AND f.created_at < @created_before::timestamptz
            AND (f.status = ANY(@from_statuses::text[])
                 OR f.status = 'PUBLISHING' AND f.claim_expires_at <= now() AND 'PENDING' = ANY(@from_statuses::text[]))
            AND (cardinality(@ids::uuid[]) = 0 OR f.id = ANY(@ids::uuid[]))
          ORDER BY f.sequence) v LIMIT @events::integer) p
WHERE e.id = p.id
RETURNING e.aggregate_id, e.sequence;

-- name: CountEvents :one
-- How many events an operator's word would change, and of how many aggregates. Takes no lock;
-- unique index (aggregate_id, sequence), from the first unsettled one on.
SELECT count(*)::integer AS events, count(DISTINCT v.aggregate_id)::integer AS aggregates
FROM (SELECT unnest(@aggregate_ids::uuid[]) AS aggregate_id, unnest(@sequences::bigint[]) AS sequence) u
CROSS JOIN LATERAL (
    SELECT f.aggregate_id FROM outbox_events f
    WHERE f.aggregate_id = u.aggregate_id AND f.sequence >= u.sequence AND f.created_at < @created_before::timestamptz
      AND (f.status = ANY(@from_statuses::text[])
           OR f.status = 'PUBLISHING' AND f.claim_expires_at <= now() AND 'PENDING' = ANY(@from_statuses::text[]))
      AND (cardinality(@ids::uuid[]) = 0 OR f.id = ANY(@ids::uuid[])) OFFSET 0) v;

-- name: EventsChangedBefore :many
-- What a call has done already, by the entries that it left. Under the executions' locks, takes
-- none; unique index (execution_id, milestone).
SELECT t.execution_id, (t.details ->> 'events')::integer AS events
FROM (SELECT unnest(@execution_ids::uuid[]) AS execution_id, unnest(@milestones::text[]) AS milestone) u
JOIN timeline_entries t ON t.execution_id = u.execution_id AND t.milestone = u.milestone;
