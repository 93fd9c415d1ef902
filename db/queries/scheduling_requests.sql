-- name: InsertRequests :exec
-- Asks for next attempts. The step gives what never changes. Locks the new rows; primary keys
-- of both. One that is there already stays: a dispatcher that holds it looks at the step anew.
INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
SELECT s.id, u.attempt_number, s.execution_id, s.capability_id, s.node, s.priority, u.available_at, u.answer_bytes
FROM (SELECT unnest(@step_ids::uuid[]) AS step_id, unnest(@attempt_numbers::integer[]) AS attempt_number,
        unnest(@available_ats::timestamptz[]) AS available_at, unnest(@answer_bytes::integer[]) AS answer_bytes) u
JOIN steps s ON s.id = u.step_id
ON CONFLICT (step_id, attempt_number) DO NOTHING;

-- name: InsertFirstRequests :exec
-- Asks for attempts of steps that this transaction has just made, so that nobody can have asked
-- before, and all that is wanted of a step is known; one whose capability has no row breaks NOT
-- NULL. Locks the new rows; primary key, scheduling_requests_claim, and (namespace, name) of capabilities.
INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
SELECT u.step_id, u.attempt_number, u.execution_id, c.id, u.node, u.priority, u.available_at, u.answer_bytes
FROM (SELECT unnest(@step_ids::uuid[]) AS step_id, unnest(@attempt_numbers::integer[]) AS attempt_number,
        unnest(@execution_ids::uuid[]) AS execution_id, unnest(@namespaces::text[]) AS namespace,
        unnest(@capabilities::text[]) AS capability, unnest(@nodes::text[]) AS node, unnest(@priorities::smallint[]) AS priority,
        unnest(@available_ats::timestamptz[]) AS available_at, unnest(@answer_bytes::integer[]) AS answer_bytes) u
LEFT JOIN LATERAL (SELECT k.id FROM capabilities k WHERE k.namespace = u.namespace AND k.name = u.capability OFFSET 0) c ON true;

-- name: DropRequests :execrows
-- Takes back the requests of steps; one in a dispatcher's hands is dropped there. Locks and
-- deletes the rows, leaving out locked ones; primary key, then by place: a join, planned while
-- the table was empty, would walk all of it.
DELETE FROM scheduling_requests r WHERE r.ctid = ANY(ARRAY(
    SELECT k.ctid FROM scheduling_requests k WHERE k.step_id = ANY(@step_ids::uuid[])
    ORDER BY k.step_id, k.attempt_number FOR UPDATE SKIP LOCKED));

-- name: LockClaimedRequests :many
-- The requests that are still ours. Locks FOR UPDATE in order of id, leaving out those that
-- another holds; primary key.
SELECT step_id, attempt_number, execution_id, capability_id, available_at FROM scheduling_requests
WHERE step_id = ANY(@step_ids::uuid[]) AND claim_id = @claim_id::uuid AND claim_expires_at > now()
ORDER BY step_id, attempt_number FOR UPDATE SKIP LOCKED;

-- name: DeleteRequests :execrows
-- Requests that were dispatched, or that nothing needs any more; locked before. Primary key.
DELETE FROM scheduling_requests r
USING (SELECT unnest(@step_ids::uuid[]) AS step_id, unnest(@attempt_numbers::integer[]) AS attempt_number) u
WHERE r.step_id = u.step_id AND r.attempt_number = u.attempt_number;

-- name: FreeRequests :execrows
-- Gives back what was claimed and not placed. Locks the rows in order, leaving out locked
-- ones; primary key; HOT, for no index holds the claim.
UPDATE scheduling_requests r SET claim_id = NULL, claim_expires_at = NULL
WHERE r.claim_id = @claim_id::uuid AND (r.step_id, r.attempt_number) IN (
    SELECT k.step_id, k.attempt_number FROM scheduling_requests k WHERE k.step_id = ANY(@step_ids::uuid[])
    ORDER BY k.step_id, k.attempt_number FOR UPDATE SKIP LOCKED);

-- name: ClaimRequests :many
-- Claims what the parked pollers can run, of levels (capability, node, priority) that were found
-- by SurveyRequests, the highest priority first: of each level the oldest due from an instant on,
-- before which nothing is left; then merged by priority and due time before the limit. What a
-- level cannot run is in no range that is read. What bears this claim already is ours: a commit
-- whose answer was lost. Locks FOR UPDATE, leaving out locked ones; index scheduling_requests_claim,
-- equality on all columns before the order.
WITH picked AS (
    SELECT q.step_id, q.attempt_number, q.priority, q.available_at
    FROM (SELECT unnest(@capability_ids::integer[]) AS capability_id, unnest(@nodes::text[]) AS node, unnest(@priorities::integer[]) AS priority,
            unnest(@sinces::timestamptz[]) AS since, unnest(@rooms::integer[]) AS room) l
    CROSS JOIN LATERAL (SELECT k.id FROM capabilities k WHERE k.id = l.capability_id AND NOT k.paused OFFSET 0) c
    CROSS JOIN LATERAL (
        SELECT r.step_id, r.attempt_number, r.priority, r.available_at FROM scheduling_requests r
        WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority
          AND r.available_at >= l.since AND r.available_at <= now()
          AND (r.claim_expires_at IS NULL OR r.claim_expires_at <= now() OR r.claim_id = @claim_id::uuid)
        ORDER BY r.available_at, r.step_id LIMIT LEAST(l.room, @batch::integer) FOR UPDATE SKIP LOCKED) q
    ORDER BY l.priority DESC, q.available_at, q.step_id LIMIT @batch::integer
)
UPDATE scheduling_requests s SET claim_id = @claim_id::uuid, claim_expires_at = now() + @claim_duration::interval
FROM picked p, capabilities c
WHERE s.step_id = p.step_id AND s.attempt_number = p.attempt_number AND c.id = s.capability_id
RETURNING s.step_id, s.attempt_number, s.execution_id, c.namespace, c.name AS capability, s.node, s.priority, s.available_at, s.answer_bytes;

-- name: SurveyRequests :many
-- What waits of groups (capability, node) that parked polls can serve, level by level: a level
-- is one priority of a group. Asked for are ranges of priorities, those between above and below.
-- A range of one is a level that is known, and looked at from an instant on: before it nothing
-- was left. Others are walked from the highest on (a loose walk over the index). Of each level:
-- the oldest row, whoever has it, and how long until one is due: the first that is not claimed;
-- where all are claimed, the end of the oldest claim. A range of a capability that is paused, or not
-- there, was not looked at: it is told with capability 0. Place -1: there is nothing but the horizon.
--
-- The horizon, where it is asked for, is of use to later surveys. Takes no lock; index scheduling_requests_claim.
WITH RECURSIVE wanted AS (
    SELECT u.place, c.id AS capability_id, u.node, u.above, u.below, u.since
    FROM (SELECT unnest(@places::integer[]) AS place, unnest(@namespaces::text[]) AS namespace, unnest(@capabilities::text[]) AS capability,
            unnest(@nodes::text[]) AS node, unnest(@aboves::integer[]) AS above, unnest(@belows::integer[]) AS below,
            unnest(@sinces::timestamptz[]) AS since) u
    LEFT JOIN LATERAL (
        SELECT k.id FROM capabilities k WHERE k.namespace = u.namespace AND k.name = u.capability AND NOT k.paused OFFSET 0) c ON true
), levels AS (
    SELECT w.place, w.capability_id, w.node, w.above, w.since, CASE WHEN w.below = w.above + 2 THEN w.above + 1 ELSE
        (SELECT r.priority::integer FROM scheduling_requests r
         WHERE r.capability_id = w.capability_id AND r.node = w.node AND r.priority < w.below AND r.priority > w.above
         ORDER BY r.priority DESC LIMIT 1) END AS priority
    FROM wanted w
    UNION ALL
    SELECT l.place, l.capability_id, l.node, l.above, l.since,
        (SELECT r.priority::integer FROM scheduling_requests r
         WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority < l.priority AND r.priority > l.above
         ORDER BY r.priority DESC LIMIT 1)
    FROM levels l WHERE l.priority > l.above + 1
), found AS (
    SELECT l.place, l.capability_id, l.priority, f.available_at AS oldest_at,
        CASE WHEN f.claim_expires_at IS NULL OR f.claim_expires_at <= now() THEN f.available_at ELSE COALESCE(
            (SELECT r.available_at FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at >= f.available_at
               AND (r.claim_expires_at IS NULL OR r.claim_expires_at <= now())
             ORDER BY r.available_at, r.step_id LIMIT 1),
            f.claim_expires_at) END AS due_at
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT r.available_at, r.claim_expires_at FROM scheduling_requests r
        WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at >= l.since
        ORDER BY r.available_at, r.step_id LIMIT 1) f
    WHERE l.capability_id IS NOT NULL AND l.priority IS NOT NULL
    UNION ALL
    SELECT w.place, NULL, NULL, NULL, NULL FROM wanted w WHERE w.capability_id IS NULL
)
SELECT COALESCE(v.place, -1)::integer AS place, COALESCE(v.capability_id, 0)::integer AS capability_id, COALESCE(v.priority, 0)::integer AS priority,
    v.oldest_at::timestamptz AS oldest_at, (v.due_at - now())::interval AS remaining,
    h.horizon::timestamptz AS horizon, h.server_started::timestamptz AS server_started
FROM (SELECT CASE WHEN @ask::boolean THEN (SELECT x.horizon FROM horizons x) END AS horizon, pg_postmaster_start_time() AS server_started) h
LEFT JOIN found v ON true;

-- name: WaitingOfCapabilities :many
-- How many requests of capabilities are due and how many are delayed, each counted up to a
-- bound, and since when the oldest is due; a capability of which nothing waits is left out. Per
-- capability a loose walk over its nodes and priorities, so that what is delayed never hides
-- what is due. Takes no lock; index scheduling_requests_claim.
WITH RECURSIVE levels AS (
    SELECT c.id AS capability_id, f.node, f.priority, 1 AS depth
    FROM (SELECT unnest(@ids::integer[]) AS id) c
    CROSS JOIN LATERAL (
        SELECT r.node, r.priority FROM scheduling_requests r WHERE r.capability_id = c.id
        ORDER BY r.node, r.priority DESC LIMIT 1) f
    UNION ALL
    SELECT l.capability_id, x.node, x.priority, l.depth + 1
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT u.node, u.priority FROM (
            (SELECT 1 AS place, r.node, r.priority FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority < l.priority
             ORDER BY r.priority DESC LIMIT 1)
            UNION ALL
            (SELECT 2 AS place, r.node, r.priority FROM scheduling_requests r
             WHERE r.capability_id = l.capability_id AND r.node > l.node
             ORDER BY r.node, r.priority DESC LIMIT 1)) u
        ORDER BY u.place LIMIT 1) x
    WHERE l.depth < @most_levels::integer
), found AS (
    SELECT v.capability_id, array_agg(v.node) AS nodes, array_agg(v.priority) AS priorities FROM levels v GROUP BY v.capability_id
)
SELECT g.capability_id::integer AS capability_id, cardinality(g.nodes)::integer AS levels,
    (SELECT count(*) FROM (
        SELECT FROM (SELECT unnest(g.nodes) AS node, unnest(g.priorities) AS priority) l CROSS JOIN LATERAL (
            SELECT FROM scheduling_requests r
            WHERE r.capability_id = g.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at <= now() OFFSET 0) x
        LIMIT @most::integer) y)::integer AS ready,
    (SELECT count(*) FROM (
        SELECT FROM (SELECT unnest(g.nodes) AS node, unnest(g.priorities) AS priority) l CROSS JOIN LATERAL (
            SELECT FROM scheduling_requests r
            WHERE r.capability_id = g.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at > now() OFFSET 0) x
        LIMIT @most::integer) y)::integer AS delayed,
    (SELECT min(x.available_at) FROM (SELECT unnest(g.nodes) AS node, unnest(g.priorities) AS priority) l CROSS JOIN LATERAL (
        SELECT r.available_at FROM scheduling_requests r
        WHERE r.capability_id = g.capability_id AND r.node = l.node AND r.priority = l.priority AND r.available_at <= now()
        ORDER BY r.available_at LIMIT 1) x)::timestamptz AS oldest_at
FROM found g;

-- name: RequestOfStep :many
-- When the next attempt of a step is due. Takes no lock; primary key, whose order it asks for:
-- while the table is small any index would do, and a plan is kept.
SELECT available_at FROM scheduling_requests WHERE step_id = @step_id AND attempt_number >= @attempt_number
ORDER BY attempt_number LIMIT 1;

-- name: CountAhead :one
-- How many requests that are due the dispatcher would serve before a step's, of all that workers
-- can run; counted up to a bound. The groups are those that polls of these workers make a claim
-- look at, the order is the claim's. Takes no lock; primary key of workers, (namespace, name)
-- of capabilities, index scheduling_requests_claim.
WITH RECURSIVE served AS (
    SELECT c.id AS capability_id, d.node
    FROM (
        SELECT DISTINCT w.namespace, o.name, n.node
        FROM (SELECT unnest(@worker_ids::uuid[]) AS id) u
        CROSS JOIN LATERAL (SELECT x.namespace, x.node, x.capabilities FROM workers x WHERE x.id = u.id OFFSET 0) w
        CROSS JOIN LATERAL unnest(w.capabilities) o (name)
        CROSS JOIN LATERAL (SELECT unnest(ARRAY['', w.node]) AS node) n) d
    CROSS JOIN LATERAL (
        SELECT y.id FROM capabilities y WHERE y.namespace = d.namespace AND y.name = d.name AND NOT y.paused OFFSET 0) c
), levels AS (
    SELECT s.capability_id, s.node,
        (SELECT r.priority FROM scheduling_requests r
         WHERE r.capability_id = s.capability_id AND r.node = s.node AND r.priority >= @priority::smallint
         ORDER BY r.priority DESC LIMIT 1) AS priority
    FROM served s
    UNION ALL
    SELECT l.capability_id, l.node,
        (SELECT r.priority FROM scheduling_requests r
         WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority < l.priority AND r.priority >= @priority::smallint
         ORDER BY r.priority DESC LIMIT 1)
    FROM levels l WHERE l.priority IS NOT NULL
)
SELECT count(*)::integer AS ahead FROM (
    SELECT FROM levels l CROSS JOIN LATERAL (
        SELECT FROM scheduling_requests r
        WHERE r.capability_id = l.capability_id AND r.node = l.node AND r.priority = l.priority
          AND r.available_at <= CASE WHEN l.priority > @priority::smallint THEN now() ELSE @due::timestamptz END
          AND (l.priority > @priority::smallint OR r.available_at < @due::timestamptz OR r.step_id < @step_id::uuid) OFFSET 0) x
    LIMIT @most::integer) y;
