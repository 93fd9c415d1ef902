-- name: InsertEntries :exec
-- Entries that stand in no other row. Locks the new rows; primary key and (execution_id, milestone).
INSERT INTO timeline_entries (execution_id, sequence, milestone, stage, component, title, step_name, attempt_number, lease_version, worker_id, at, details)
SELECT unnest(@execution_ids::uuid[]), unnest(@sequences::bigint[]), unnest(@milestones::text[]), unnest(@stages::text[]),
    unnest(@components::text[]), unnest(@titles::text[]), unnest(@step_names::text[]), unnest(@attempt_numbers::integer[]),
    unnest(@lease_versions::bigint[]), NULLIF(unnest(@worker_ids::uuid[]), '00000000-0000-0000-0000-000000000000'::uuid),
    unnest(@ats::timestamptz[]), unnest(@details::jsonb[]);

-- name: CountEntry :execrows
-- Counts a milestone that is there already. Locks the row, under the execution's lock; unique
-- index (execution_id, milestone).
UPDATE timeline_entries SET count = count + 1 WHERE execution_id = @execution_id AND milestone = @milestone;

-- name: ListTimeline :many
-- What happened to executions after an entry of each, in order, a page of each. Takes no lock;
-- primary keys, and (execution_id, ordinal) of steps for what is derived.
SELECT w.id::uuid AS execution_id, t.sequence, t.milestone, t.stage, t.component, t.title, t.step_name, t.attempt_number,
    t.lease_version, t.worker_id, t.at, t.count, t.details
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@afters::bigint[]) AS after) w
CROSS JOIN LATERAL (
    SELECT l.sequence, l.milestone, l.stage, l.component, l.title, l.step_name, l.attempt_number, l.lease_version, l.worker_id,
        l.at, l.count, l.details
    FROM timeline l WHERE l.execution_id = w.id AND l.sequence > w.after ORDER BY l.sequence LIMIT @page_size::integer) t
ORDER BY w.id, t.sequence;

-- name: ReopenedBy :many
-- The round that a request opened. Read under the execution's lock, takes none; primary key,
-- one execution's entries.
SELECT t.milestone FROM timeline_entries t
WHERE t.execution_id = @execution_id AND t.milestone LIKE 'r%/execution/reopened' AND t.details ->> 'request_id' = @request_id::text;

-- name: MilestonesAt :many
-- When milestones were reached, those that were. Takes no lock; unique index (execution_id, milestone).
SELECT milestone, at FROM timeline_entries WHERE execution_id = @execution_id AND milestone = ANY(@milestones::text[]);
