-- +goose Up

-- What operators have drained: no new leases for the worker of this id, or for the workers of
-- this node or version, those that come later too. Mostly empty.
CREATE TABLE drains (
    namespace  text NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('WORKER', 'NODE', 'VERSION')),
    value      text NOT NULL,
    reason     text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (namespace, kind, value)
);

-- Workers that have not left, for counts of capacity. Nothing that a sign of life changes is
-- in it (HOT).
CREATE INDEX workers_open ON workers (namespace, id) WHERE session_id IS NOT NULL;

-- Whether a worker takes no more, by its own word or an operator's: the one place for it.
-- OFFSET 0 keeps these single lookups, whatever the planner knows of the tables.
CREATE VIEW worker_states AS
SELECT w.id, w.namespace, w.name, w.node, w.version, w.slots, w.labels, w.capabilities, w.session_id, w.draining,
       w.registered_at, w.last_seen_at,
       w.draining
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'WORKER' AND d.value = w.id::text OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'NODE' AND d.value = w.node OFFSET 0)
       OR EXISTS (SELECT FROM drains d WHERE d.namespace = w.namespace AND d.kind = 'VERSION' AND d.value = w.version OFFSET 0)
       AS drained
FROM workers w;

-- How attempts ended, for statistics: a row for each capability and state of a transaction that
-- ends some, never changed; minutes that are over are summed up, and an hour later forgotten.
-- The end of an attempt itself stays HOT: no index knows of it.
CREATE TABLE attempt_tallies (
    capability_id integer NOT NULL,
    at            timestamptz NOT NULL,
    state         text NOT NULL,
    n             integer NOT NULL CHECK (n > 0),
    summed        boolean NOT NULL DEFAULT false  -- a whole minute's, from its beginning on
);
CREATE INDEX attempt_tallies_capability ON attempt_tallies (capability_id, at);
-- For those who sum up and forget, and say so by n > 0: a count of some capabilities is never
-- planned by it, however small the table was at that time.
CREATE INDEX attempt_tallies_age ON attempt_tallies (at) WHERE n > 0;

-- +goose Down
DROP VIEW worker_states;
DROP TABLE drains, attempt_tallies;
DROP INDEX workers_open;
