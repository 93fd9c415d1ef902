-- +goose Up

-- The attempts of a timeline are looked up step by step: a plan that was made while the table
-- was small would walk all of it, at each look of those who watch. OFFSET 0 keeps the order.
CREATE OR REPLACE VIEW timeline AS
SELECT execution_id, sequence, milestone, stage, component, title, step_name, attempt_number,
       lease_version, worker_id, at, count, details
FROM timeline_entries
UNION ALL
SELECT e.id, 1::bigint, 'r1/execution/enqueued', 'ENQUEUE', 'producer', 'Execution accepted', '', 0,
       0::bigint, NULL::uuid, e.created_at, 1,
       jsonb_build_object('name', e.name, 'steps', e.step_count::text)
FROM executions e
UNION ALL
SELECT e.id, e.end_entry, 'r' || e.round || '/execution/ended', 'EXECUTION', 'scheduler', 'Execution ' || e.state, '', 0,
       0::bigint, NULL::uuid, e.ended_at, 1,
       jsonb_strip_nulls(jsonb_build_object('failure_type', e.failure ->> 'type', 'failure_message', e.failure ->> 'message',
                                            'cancel_reason', NULLIF(e.cancel_reason, '')))
FROM executions e WHERE e.end_entry > 0
UNION ALL
SELECT s.execution_id, a.lease_entry, 'r' || a.round || '/step/' || s.name || '/attempt/' || a.number || '/leased',
       'SCHEDULING', 'dispatcher', 'Attempt leased', s.name, a.number,
       a.lease_version, a.worker_id, a.leased_at, 1,
       jsonb_strip_nulls(jsonb_build_object('worker_name', a.worker_name, 'node', NULLIF(a.node, '')))
FROM steps s CROSS JOIN LATERAL (
    SELECT t.number, t.round, t.worker_id, t.worker_name, t.node, t.lease_version, t.leased_at, t.lease_entry
    FROM attempts t WHERE t.step_id = s.id OFFSET 0) a
UNION ALL
SELECT s.execution_id, a.end_entry, 'r' || a.round || '/step/' || s.name || '/attempt/' || a.number || '/ended',
       CASE WHEN a.state IN ('LOST', 'TIMED_OUT') THEN 'RECOVERY' ELSE 'EXECUTION' END,
       CASE WHEN a.outcome IS NULL THEN 'scheduler' ELSE 'worker' END,
       'Attempt ' || a.state, s.name, a.number,
       a.lease_version, a.worker_id, a.ended_at, 1,
       jsonb_strip_nulls(jsonb_build_object('reason', NULLIF(a.reason, ''), 'failure_type', a.failure ->> 'type',
                                            'failure_message', a.failure ->> 'message', 'next_attempt_time', a.next_due))
FROM steps s CROSS JOIN LATERAL (
    SELECT t.number, t.round, t.state, t.reason, t.worker_id, t.lease_version, t.ended_at, t.next_due, t.failure, t.outcome, t.end_entry
    FROM attempts t WHERE t.step_id = s.id OFFSET 0) a WHERE a.end_entry > 0;

-- +goose Down
-- Nothing: the view tells the same as before.
