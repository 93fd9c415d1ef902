-- One round of a drain, as three transactions: a claim of :batch requests, their dispatch, and
-- their reports. It writes the rows that Leasehold writes, and looks for nothing more than it
-- needs to find them: no advisory locks, no locks before the writes, no second looks.
BEGIN;
WITH picked AS (
    SELECT r.step_id, r.attempt_number FROM scheduling_requests r
    WHERE r.capability_id = 1 AND r.node = '' AND r.priority = 0 AND r.available_at <= now() AND r.claim_expires_at IS NULL
    ORDER BY r.available_at, r.step_id LIMIT :batch FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE scheduling_requests s SET claim_id = :claim::uuid, claim_expires_at = now() + interval '10 seconds'
    FROM picked p WHERE s.step_id = p.step_id AND s.attempt_number = p.attempt_number
    RETURNING s.step_id, s.execution_id
)
SELECT COALESCE(array_agg(c.step_id), '{}') AS steps, COALESCE(array_agg(c.execution_id), '{}') AS executions FROM claimed c \gset
COMMIT;

BEGIN;
UPDATE executions SET state = 'RUNNING', started_at = now(), revision = revision + 1, live_attempts = 1
WHERE id = ANY(:executions::uuid[]);
WITH granted AS (
    SELECT bench_id() AS id, u.step_id, u.execution_id, 1::bigint << 40 | nextval('lease_versions') AS lease_version
    FROM unnest(:steps::uuid[], :executions::uuid[]) AS u(step_id, execution_id)
), attempted AS (
    INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, lease_version, leased_at,
        start_to_close_at, lease_entry)
    SELECT g.id, g.step_id, 1, 1, 'LEASED', :claim::uuid, :claim::uuid, :claim::text, g.lease_version, now(), now() + interval '1 hour', 2
    FROM granted g
), leased AS (
    INSERT INTO leases (attempt_id, step_id, execution_id, worker_id, session_id, claim_id, request_id, lease_version, expires_at,
        cap_at, duration)
    SELECT g.id, g.step_id, g.execution_id, :claim::uuid, :claim::uuid, :claim::uuid, :claim::text, g.lease_version,
        now() + interval '30 seconds', now() + interval '1 hour', interval '30 seconds'
    FROM granted g RETURNING attempt_id
)
SELECT COALESCE(array_agg(l.attempt_id), '{}') AS attempts FROM leased l \gset
INSERT INTO lease_requests (session_id, request_id, answered_at)
SELECT :claim::uuid, gen_random_uuid()::text, now() FROM generate_series(1, :polls);
DELETE FROM scheduling_requests WHERE step_id = ANY(:steps::uuid[]) AND attempt_number = 1;
COMMIT;

BEGIN;
DELETE FROM leases WHERE attempt_id = ANY(:attempts::uuid[]);
UPDATE executions SET state = 'SUCCEEDED', ended_at = now(), revision = revision + 2, end_entry = revision + 2, open_steps = 0,
    live_attempts = 0
WHERE id = ANY(:executions::uuid[]);
UPDATE steps SET state = 'SUCCEEDED', attempts_ended = 1, counted = 1 WHERE id = ANY(:steps::uuid[]);
UPDATE attempts SET state = 'SUCCEEDED', ended_at = now(), outcome = sha256('SUCCEEDED'), end_entry = 3
WHERE id = ANY(:attempts::uuid[]);
INSERT INTO attempt_tallies (capability_id, at, state, n) VALUES (1, now(), 'SUCCEEDED', :batch);
COMMIT;
