-- name: MeasureRequests :many
-- How much waits of each capability: due, due later, and since when the first one is due. It
-- walks from one (capability, node, priority) to the next, up to @levels, and counts each up to
-- @counted. Takes no lock; index scheduling_requests_claim, equality on three columns and a
-- range of the fourth, so that what waits for later never hides what is due.
WITH RECURSIVE levels AS (
    (SELECT r.capability_id, r.node, r.priority, 1 AS n FROM scheduling_requests r
     ORDER BY r.capability_id, r.node, r.priority DESC LIMIT 1)
    UNION ALL
    SELECT x.capability_id, x.node, x.priority, l.n + 1
    FROM levels l CROSS JOIN LATERAL (
        SELECT k.capability_id, k.node, k.priority FROM (
            (SELECT r.capability_id, r.node, r.priority, 1 AS turn FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority < l.priority
             ORDER BY r.priority DESC LIMIT 1)
            UNION ALL
            (SELECT r.capability_id, r.node, r.priority, 2 FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node > l.node ORDER BY r.node, r.priority DESC LIMIT 1)
            UNION ALL
            (SELECT r.capability_id, r.node, r.priority, 3 FROM scheduling_requests r
             WHERE r.capability_id > l.capability_id ORDER BY r.capability_id, r.node, r.priority DESC LIMIT 1)) k
        ORDER BY k.turn LIMIT 1) x
    WHERE l.n < @levels::integer
)
SELECT m.capability_id::integer AS capability_id, sum(m.ready)::bigint AS ready, sum(m.delayed)::bigint AS delayed,
    (now() - COALESCE(min(m.oldest), now()))::interval AS oldest_ready
FROM (
    SELECT l.capability_id,
        (SELECT count(*) FROM (SELECT r.step_id FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at <= now()
             LIMIT @counted::integer) c) AS ready,
        (SELECT count(*) FROM (SELECT r.step_id FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at > now()
             LIMIT @counted::integer) c) AS delayed,
        (SELECT r.available_at FROM scheduling_requests r
         WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at <= now()
         ORDER BY r.available_at, r.step_id LIMIT 1) AS oldest
    FROM levels l) m
GROUP BY m.capability_id;

-- name: MeasureLeases :many
-- How many live leases each capability has, counted up to @counted in all. Takes no lock; scans
-- leases, which is small; primary key of steps.
SELECT s.capability_id, count(*)::bigint AS running
FROM (SELECT l.step_id FROM leases l LIMIT @counted::integer) u
CROSS JOIN LATERAL (SELECT t.capability_id FROM steps t WHERE t.id = u.step_id OFFSET 0) s
GROUP BY s.capability_id;

-- name: MeasureCapabilities :many
-- The names of capabilities, and those of the first ones that there are. Takes no lock; primary key.
SELECT c.id, c.namespace, c.name FROM capabilities c WHERE c.id = ANY(@ids::integer[])
UNION
SELECT f.id, f.namespace, f.name FROM (SELECT k.id, k.namespace, k.name FROM capabilities k ORDER BY k.id LIMIT @first::integer) f;

-- name: MeasureEvents :many
-- How many events wait or were given up, by status, and how old the oldest one is that is on
-- its way: neither DEAD nor behind a DEAD one. Up to @heads executions of each kind, of each up
-- to @per_head events. Takes no lock; index outbox_heads_due, then (aggregate_id, sequence) from
-- the first unsettled event on.
SELECT e.status, count(*)::bigint AS events,
    (now() - COALESCE(min(e.created_at) FILTER (WHERE NOT h.dead), now()))::interval AS oldest
FROM (
    (SELECT d.aggregate_id, d.next_sequence, false AS dead FROM outbox_heads d
     WHERE d.available_at < 'infinity' ORDER BY d.available_at LIMIT @heads::integer)
    UNION ALL
    (SELECT d.aggregate_id, d.next_sequence, true FROM outbox_heads d WHERE d.available_at = 'infinity' LIMIT @heads::integer)) h
CROSS JOIN LATERAL (
    SELECT v.status, v.created_at FROM outbox_events v
    WHERE v.aggregate_id = h.aggregate_id AND v.sequence >= h.next_sequence AND v.status NOT IN ('PUBLISHED', 'SKIPPED')
    ORDER BY v.sequence LIMIT @per_head::integer) e
GROUP BY e.status;

-- name: MeasureTransactions :one
-- The age of the oldest open transaction in this database, anybody's, prepared ones too: it
-- keeps dead rows from being cleaned away, and updates become slow. An ordinary role sees its
-- own sessions and those of its groups, a member of pg_read_all_stats sees all. Takes no lock;
-- reads no table.
SELECT GREATEST(
    (SELECT max(clock_timestamp() - a.xact_start) FROM pg_catalog.pg_stat_activity a
     WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'),
    (SELECT max(clock_timestamp() - p.prepared) FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database()),
    interval '0')::interval AS oldest;
