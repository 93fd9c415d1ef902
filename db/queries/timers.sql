-- name: PutTimers :exec
-- Sets timers anew. Locks the rows, under the execution's lock; primary key.
INSERT INTO timers (execution_id, kind, step_id, fires_at)
SELECT unnest(@execution_ids::uuid[]), unnest(@kinds::text[]), unnest(@step_ids::uuid[]), unnest(@fires_ats::timestamptz[])
ON CONFLICT (execution_id, kind, step_id) DO UPDATE SET fires_at = excluded.fires_at;

-- name: DueTimers :many
-- Executions with a timer that is due, from an instant on, before which none was left. Takes no
-- lock: they are locked, then looked at anew. Index timers_due.
SELECT DISTINCT t.execution_id FROM (
    SELECT execution_id FROM timers WHERE fires_at >= @since::timestamptz AND fires_at <= now() AND NOT execution_id = ANY(@skipped::uuid[])
      AND (cardinality(@wanted::uuid[]) = 0 OR execution_id = ANY(@wanted::uuid[]))
    ORDER BY fires_at LIMIT @batch::integer) t;

-- name: TakeTimers :many
-- The due timers of executions that are locked. Locks and deletes the rows; primary key.
DELETE FROM timers WHERE execution_id = ANY(@execution_ids::uuid[]) AND fires_at <= now()
RETURNING execution_id, kind, step_id, fires_at;

-- name: DropTimers :exec
-- An execution that has ended needs none. Locks and deletes the rows, under the execution's lock; primary key.
DELETE FROM timers WHERE execution_id = ANY(@execution_ids::uuid[]);
