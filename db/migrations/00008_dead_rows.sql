-- +goose Up

-- While any transaction holds an old snapshot, no dead row can be removed, and whoever walks an
-- index from its front walks over all that were there since. Counting a worker's leases begins
-- at a floor instead: no live lease of the worker has a lower version. Versions of a worker's
-- grants only grow, and a floor is written under the worker's lock, so it holds for ever. Rows
-- are never changed: the newest comes first, and what has become of older ones costs nothing.
CREATE TABLE lease_floors (
    worker_id     uuid NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    lease_version bigint NOT NULL,
    PRIMARY KEY (worker_id, lease_version)
);

-- The version of a lease never changes (HOT). Writers wait while it is built: leases is small.
DROP INDEX leases_worker;
CREATE INDEX leases_worker ON leases (worker_id, lease_version);

-- leases_from is where a worker's live leases begin.
CREATE OR REPLACE VIEW worker_states AS
SELECT w.id, w.namespace, w.name, w.node, w.version, w.slots, w.labels, w.capabilities, w.session_id, w.draining,
       w.registered_at, w.last_seen_at,
       w.draining
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'WORKER' AND d.value = w.id::text OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'NODE' AND d.value = w.node OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'VERSION' AND d.value = w.version OFFSET 0)
       AS drained,
       COALESCE((SELECT f.lease_version FROM lease_floors f WHERE f.worker_id = w.id ORDER BY f.lease_version DESC LIMIT 1), 0)::bigint
       AS leases_from
FROM workers w;

-- For those who remember from where on something is left, so that they need not walk over what
-- is dead: no transaction of the service that is not seen by a statement which begins after this
-- was read had a now() before the horizon. A tenth of a second is for a session that has read
-- the clock and not yet told so. It stays 45 seconds back, which is longer than any transaction of
-- the service lasts, where a session's transaction may not be looked at. Other programs' sessions
-- do not count, however old their transactions are: they write nothing here.
CREATE VIEW horizons AS
SELECT GREATEST(now() - interval '45 seconds', LEAST(now() - interval '100 milliseconds', (
        SELECT min(CASE WHEN a.backend_start IS NULL OR a.state = 'disabled' THEN '-infinity' ELSE a.xact_start END)
        FROM pg_catalog.pg_stat_activity a
        WHERE a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
          AND a.application_name = current_setting('application_name') AND a.pid <> pg_backend_pid())))::timestamptz AS horizon,
    pg_postmaster_start_time()::timestamptz AS server_started;

-- +goose Down
DROP VIEW horizons;
DROP VIEW worker_states;
CREATE VIEW worker_states AS
SELECT w.id, w.namespace, w.name, w.node, w.version, w.slots, w.labels, w.capabilities, w.session_id, w.draining,
       w.registered_at, w.last_seen_at,
       w.draining
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'WORKER' AND d.value = w.id::text OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'NODE' AND d.value = w.node OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'VERSION' AND d.value = w.version OFFSET 0)
       AS drained
FROM workers w;
DROP INDEX leases_worker;
CREATE INDEX leases_worker ON leases (worker_id);
DROP TABLE lease_floors;
