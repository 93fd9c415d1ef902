-- What an enqueue writes of :count executions of one step each, with a key and an input.
-- bench_id is a version 7 UUID, as Leasehold makes them: new rows go to the end of an index.
CREATE FUNCTION bench_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
        || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid
$$;

INSERT INTO capabilities (namespace, name) VALUES ('default', 'bench');

CREATE TEMPORARY TABLE wanted AS
SELECT i, bench_id() AS execution_id, bench_id() AS step_id FROM generate_series(1, $1::integer) i;

INSERT INTO executions (id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, created_at, due_at,
    cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
SELECT w.execution_id, 'default', 'bench', w.i::text, sha256(w.i::text::bytea), 'QUEUED', 1, 0, false, now(), now(),
    interval '30 seconds', 1, 0, 1, 1, 0, 0
FROM wanted w ORDER BY w.i;

INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents,
    opened_at, input_bytes)
SELECT w.step_id, w.execution_id, 0, 'step', 1, 0, 'READY', interval '1 hour', false, 0, now(), 8
FROM wanted w ORDER BY w.i;

INSERT INTO payloads (step_id, role, is_json, body)
SELECT w.step_id, 'INPUT', true, convert_to('{"n":' || w.i || '}', 'UTF8') FROM wanted w ORDER BY w.i;

INSERT INTO scheduling_requests (step_id, attempt_number, execution_id, capability_id, node, priority, available_at, answer_bytes)
SELECT w.step_id, 1, w.execution_id, 1, '', 0, now(), 200 FROM wanted w ORDER BY w.i;
