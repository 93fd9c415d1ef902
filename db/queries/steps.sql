-- name: InsertSteps :exec
-- The steps of new executions; one whose capability has no row breaks NOT NULL. Locks the new rows;
-- primary key and (execution_id, ordinal), and (namespace, name) of capabilities.
INSERT INTO steps (id, execution_id, ordinal, name, capability_id, node, priority, state, retry_policy, schedule_to_start,
    start_to_close, schedule_to_close, start_delay, has_children, waiting_parents, opened_at, input_bytes)
SELECT u.id, u.execution_id, u.ordinal, u.name, c.id, u.node, u.priority, u.state, u.retry_policy, u.schedule_to_start,
    u.start_to_close, u.schedule_to_close, u.start_delay, u.has_children, u.waiting_parents, u.opened_at, u.input_bytes
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@execution_ids::uuid[]) AS execution_id, unnest(@ordinals::integer[]) AS ordinal,
        unnest(@names::text[]) AS name, unnest(@namespaces::text[]) AS namespace, unnest(@capabilities::text[]) AS capability,
        unnest(@nodes::text[]) AS node, unnest(@priorities::smallint[]) AS priority, unnest(@states::text[]) AS state,
        unnest(@retry_policies::jsonb[]) AS retry_policy, unnest(@schedule_to_starts::interval[]) AS schedule_to_start,
        unnest(@start_to_closes::interval[]) AS start_to_close, unnest(@schedule_to_closes::interval[]) AS schedule_to_close,
        unnest(@start_delays::interval[]) AS start_delay, unnest(@has_children::boolean[]) AS has_children,
        unnest(@waiting_parents::integer[]) AS waiting_parents, unnest(@opened_ats::timestamptz[]) AS opened_at,
        unnest(@input_bytes::integer[]) AS input_bytes) u
LEFT JOIN LATERAL (SELECT k.id FROM capabilities k WHERE k.namespace = u.namespace AND k.name = u.capability OFFSET 0) c ON true;

-- name: StepsByID :many
-- Steps with their live attempt, or zeros: the next number's row exists exactly while it is
-- live. Read under the execution's lock, takes none; primary keys of steps and (step_id, number).
-- OFFSET 0 as in AttemptsOfNumber.
SELECT s.id, s.execution_id, s.ordinal, s.name, s.capability_id, c.name AS capability, s.node, s.priority, s.state, s.retry_policy,
    s.schedule_to_start, s.start_to_close, s.schedule_to_close, s.start_delay, s.has_children, s.waiting_parents, s.opened_at,
    s.attempts_ended, s.counted, s.failures, s.lost_in_row, s.released_in_row, s.failure, s.stopped_because, s.input_bytes,
    s.parent_bytes, s.output_bytes, s.checkpoint_bytes, c.paused,
    COALESCE(a.id, '00000000-0000-0000-0000-000000000000')::uuid AS attempt_id, COALESCE(a.number, 0)::integer AS number,
    COALESCE(a.round, 0)::integer AS round, COALESCE(a.state, '')::text AS attempt_state,
    COALESCE(a.worker_id, '00000000-0000-0000-0000-000000000000')::uuid AS worker_id,
    COALESCE(a.session_id, '00000000-0000-0000-0000-000000000000')::uuid AS session_id,
    COALESCE(a.worker_name, '')::text AS worker_name, COALESCE(a.node, '')::text AS attempt_node,
    COALESCE(a.lease_version, 0)::bigint AS lease_version, COALESCE(a.leased_at, 'epoch')::timestamptz AS leased_at,
    COALESCE(a.start_to_close_at, 'epoch')::timestamptz AS start_to_close_at, COALESCE(a.lease_entry, 0)::bigint AS lease_entry,
    COALESCE(a.checkpoint_bytes, 0)::integer AS attempt_checkpoint_bytes
FROM steps s
JOIN capabilities c ON c.id = s.capability_id
LEFT JOIN LATERAL (
    SELECT t.id, t.number, t.round, t.state, t.worker_id, t.session_id, t.worker_name, t.node, t.lease_version, t.leased_at,
        t.start_to_close_at, t.lease_entry, t.checkpoint_bytes
    FROM attempts t WHERE t.step_id = s.id AND t.number = s.attempts_ended + 1 OFFSET 0) a ON true
WHERE s.id = ANY(@ids::uuid[]);

-- name: OpenStepIDs :many
-- The steps of executions that are not terminal. Read under the execution's lock, takes none;
-- index (execution_id, ordinal).
SELECT id FROM steps WHERE execution_id = ANY(@execution_ids::uuid[]) AND state IN ('BLOCKED', 'READY');

-- name: ChildEdges :many
-- The children of steps. Read under the execution's lock, takes none; index step_edges_children.
SELECT parent_id, child_id FROM step_edges WHERE parent_id = ANY(@parents::uuid[]);

-- name: BlockedDescendants :many
-- Everything below steps that is still blocked. Read under the execution's lock, takes none;
-- index step_edges_children.
WITH RECURSIVE below AS (
    SELECT e.child_id AS id FROM step_edges e WHERE e.parent_id = ANY(@parents::uuid[])
    UNION
    SELECT e.child_id FROM below b JOIN step_edges e ON e.parent_id = b.id
)
SELECT s.id, s.execution_id FROM below b JOIN steps s ON s.id = b.id WHERE s.state = 'BLOCKED';

-- name: UpdateSteps :exec
-- Writes what the domain decided. Changed under the execution's lock only, and locks the rows;
-- a terminal step is not overwritten but by a new round: all, or an error. Primary key; HOT, no index
-- holds what changes.
WITH changed AS (
    UPDATE steps s SET state = u.state, waiting_parents = u.waiting_parents, opened_at = u.opened_at, attempts_ended = u.attempts_ended,
        counted = u.counted, failures = u.failures, lost_in_row = u.lost_in_row, released_in_row = u.released_in_row,
        failure = u.failure, stopped_because = u.stopped_because, parent_bytes = u.parent_bytes, output_bytes = u.output_bytes,
        checkpoint_bytes = u.checkpoint_bytes
    FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@states::text[]) AS state, unnest(@waiting_parents::integer[]) AS waiting_parents,
            unnest(@opened_ats::timestamptz[]) AS opened_at, unnest(@attempts_ended::integer[]) AS attempts_ended,
            unnest(@counted::integer[]) AS counted, unnest(@failures::integer[]) AS failures,
            unnest(@lost_in_row::integer[]) AS lost_in_row, unnest(@released_in_row::integer[]) AS released_in_row,
            unnest(@last_failures::jsonb[]) AS failure, unnest(@stopped_because::text[]) AS stopped_because,
            unnest(@parent_bytes::integer[]) AS parent_bytes, unnest(@output_bytes::integer[]) AS output_bytes,
            unnest(@checkpoint_bytes::integer[]) AS checkpoint_bytes) u
    WHERE s.id = u.id AND (s.state IN ('BLOCKED', 'READY') OR u.state IN ('BLOCKED', 'READY'))
    RETURNING s.id
)
SELECT exactly(count(*), cardinality(@ids::uuid[])) FROM changed;

-- name: InsertEdges :exec
-- The edges of new executions. Locks the new rows; primary key and step_edges_children.
INSERT INTO step_edges (child_id, parent_id) SELECT unnest(@children::uuid[]), unnest(@parents::uuid[]);

-- name: ListSteps :many
-- A page of an execution's steps in the order of declaration. Takes no lock; index
-- (execution_id, ordinal).
SELECT s.execution_id, s.id, s.ordinal, s.name, c.name AS capability, s.node, s.priority, s.state, s.attempts_ended, s.counted,
    s.failure, s.stopped_because, r.available_at AS next_due
FROM steps s
JOIN capabilities c ON c.id = s.capability_id
LEFT JOIN scheduling_requests r ON r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1
WHERE s.execution_id = @execution_id AND s.ordinal > @after::integer
  AND (cardinality(@names::text[]) = 0 OR s.name = ANY(@names::text[]))
ORDER BY s.ordinal LIMIT @page_size::integer;

-- name: ListParents :many
-- The names of steps' parents. Takes no lock; primary keys of step_edges and steps.
SELECT e.child_id, p.name FROM step_edges e JOIN steps p ON p.id = e.parent_id
WHERE e.child_id = ANY(@step_ids::uuid[]) ORDER BY e.child_id, p.ordinal;

-- name: AllSteps :many
-- Every step of an execution, by name. Read under the execution's lock, takes none; index
-- (execution_id, ordinal).
SELECT id, name FROM steps WHERE execution_id = @execution_id;

-- name: StepsByName :many
-- Steps of executions by their names. Names have no index: the steps of each execution are walked
-- once, and looked up among its names, which are a jsonb since that is searched and not walked.
-- Takes no lock; index (execution_id, ordinal).
SELECT w.execution_id::uuid AS execution_id, s.id, s.ordinal, s.name, c.name AS capability, s.node, s.priority, s.state,
    s.attempts_ended, s.counted, s.failure, s.stopped_because, r.available_at AS next_due
FROM (SELECT u.execution_id, jsonb_object_agg(u.name, true) AS names
    FROM (SELECT unnest(@execution_ids::uuid[]) AS execution_id, unnest(@names::text[]) AS name) u GROUP BY u.execution_id) w
CROSS JOIN LATERAL (
    SELECT t.id, t.ordinal, t.name, t.capability_id, t.node, t.priority, t.state, t.attempts_ended, t.counted, t.failure,
        t.stopped_because
    FROM steps t WHERE t.execution_id = w.execution_id AND w.names ? t.name OFFSET 0) s
JOIN capabilities c ON c.id = s.capability_id
LEFT JOIN scheduling_requests r ON r.step_id = s.id AND r.attempt_number = s.attempts_ended + 1;

-- name: StepOfName :one
-- A step by its name. Takes no lock; index (execution_id, ordinal), one execution's steps.
SELECT id FROM steps WHERE execution_id = @execution_id AND name = @name::text;

-- name: UnfinishedParents :many
-- The parents that a step waits for, in the order of their declaration. Takes no lock; primary
-- keys of step_edges and steps, and (step_id, number) of attempts: whether one runs.
SELECT p.id, p.name, p.state, (EXISTS (SELECT FROM attempts a WHERE a.step_id = p.id AND a.number = p.attempts_ended + 1))::boolean AS running
FROM step_edges e JOIN steps p ON p.id = e.parent_id
WHERE e.child_id = @step_id AND p.state <> 'SUCCEEDED' ORDER BY p.ordinal LIMIT @most::integer;
