-- +goose Up

-- Foreign keys are left out on the paths of the work itself: their checks lock the rows that
-- many callers share (a capability, an execution) outside the order of locks.

-- The service's own singleton: when any replica last swept, by PostgreSQL's clock.
CREATE TABLE sweeps (
    id        integer PRIMARY KEY CHECK (id = 1),
    swept_at  timestamptz
);
INSERT INTO sweeps (id) VALUES (1);

-- Drawn for each grant; the low 40 bits of lease_version. CACHE 1: the values of two
-- sessions must be in the order in which they were drawn.
CREATE SEQUENCE lease_versions CACHE 1;

-- A row exists from the first enqueue or registration on, so that a pause always meets it.
CREATE TABLE capabilities (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace    text NOT NULL,
    name         text NOT NULL,
    paused       boolean NOT NULL DEFAULT false,
    pause_reason text NOT NULL DEFAULT '',
    paused_at    timestamptz,
    UNIQUE (namespace, name)
);

CREATE TABLE executions (
    id                 uuid PRIMARY KEY,
    namespace          text NOT NULL,
    name               text NOT NULL,
    idempotency_key    text,
    content_hash       bytea NOT NULL,
    state              text NOT NULL CHECK (state IN ('CREATED', 'QUEUED', 'RUNNING', 'CANCELING', 'SUCCEEDED', 'FAILED', 'CANCELED')),
    round              integer NOT NULL,
    priority           smallint NOT NULL,
    fail_fast          boolean NOT NULL,
    stopping           boolean NOT NULL DEFAULT false,
    created_at         timestamptz NOT NULL,
    due_at             timestamptz NOT NULL,
    started_at         timestamptz,
    ended_at           timestamptz,
    timeout            interval,           -- NULL: none
    cancel_grace       interval NOT NULL,
    deadline           timestamptz,
    cancel_deadline    timestamptz,
    cancel_reason      text NOT NULL DEFAULT '',
    failure            jsonb,
    revision           bigint NOT NULL,
    entries            bigint NOT NULL,    -- numbers given out in the timeline
    sequence           bigint NOT NULL,    -- events written
    end_entry          bigint NOT NULL DEFAULT 0,
    step_count         integer NOT NULL,
    open_steps         integer NOT NULL CHECK (open_steps >= 0),
    unsuccessful_steps integer NOT NULL CHECK (unsuccessful_steps >= 0),
    live_attempts      integer NOT NULL CHECK (live_attempts >= 0),
    labels             jsonb,
    trace_context      jsonb
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX executions_key ON executions (namespace, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_newest ON executions (namespace, created_at DESC, id DESC);

-- RUNNING is not stored: a READY step whose next attempt exists is running.
CREATE TABLE steps (
    id                 uuid PRIMARY KEY,
    execution_id       uuid NOT NULL,
    ordinal            integer NOT NULL,
    name               text NOT NULL,
    capability_id      integer NOT NULL,
    node               text NOT NULL DEFAULT '',
    priority           smallint NOT NULL,
    state              text NOT NULL CHECK (state IN ('BLOCKED', 'READY', 'SUCCEEDED', 'FAILED', 'CANCELED', 'SKIPPED')),
    retry_policy       jsonb,              -- NULL: the default policy
    schedule_to_start  interval,           -- NULL: none
    start_to_close     interval NOT NULL,
    schedule_to_close  interval,           -- NULL: none
    start_delay        interval,           -- NULL: none
    has_children       boolean NOT NULL,
    waiting_parents    integer NOT NULL CHECK (waiting_parents >= 0),
    opened_at          timestamptz,
    attempts_ended     integer NOT NULL DEFAULT 0,
    counted            integer NOT NULL DEFAULT 0,
    failures           integer NOT NULL DEFAULT 0,
    lost_in_row        integer NOT NULL DEFAULT 0,
    released_in_row    integer NOT NULL DEFAULT 0,
    failure            jsonb,
    stopped_because    text NOT NULL DEFAULT '',
    input_bytes        integer NOT NULL DEFAULT 0,
    parent_bytes       integer NOT NULL DEFAULT 0,
    output_bytes       integer NOT NULL DEFAULT 0,
    checkpoint_bytes   integer NOT NULL DEFAULT 0,
    UNIQUE (execution_id, ordinal)
) WITH (fillfactor = 80);

CREATE TABLE step_edges (
    child_id  uuid NOT NULL,
    parent_id uuid NOT NULL,
    PRIMARY KEY (child_id, parent_id)
);
CREATE INDEX step_edges_children ON step_edges (parent_id);

-- Payloads sit apart, so that rows which change stay narrow.
CREATE TABLE payloads (
    step_id      uuid NOT NULL,
    role         text NOT NULL CHECK (role IN ('INPUT', 'OUTPUT', 'CHECKPOINT')),
    is_json      boolean NOT NULL,
    content_type text NOT NULL DEFAULT '',
    body         bytea NOT NULL,
    PRIMARY KEY (step_id, role)
);

-- All that the claim reads: "step S needs attempt N, not before available_at".
CREATE TABLE scheduling_requests (
    step_id          uuid NOT NULL,
    attempt_number   integer NOT NULL,
    execution_id     uuid NOT NULL,
    capability_id    integer NOT NULL,
    node             text NOT NULL,
    priority         smallint NOT NULL,
    available_at     timestamptz NOT NULL,
    answer_bytes     integer NOT NULL,
    claim_id         uuid,
    claim_expires_at timestamptz,
    PRIMARY KEY (step_id, attempt_number)
) WITH (fillfactor = 70);
-- Equality first, then exactly the order of the claim. What changes with a claim is not in it.
CREATE INDEX scheduling_requests_claim ON scheduling_requests (capability_id, node, priority DESC, available_at, step_id);

CREATE TABLE attempts (
    id                uuid PRIMARY KEY,
    step_id           uuid NOT NULL,
    number            integer NOT NULL CHECK (number > 0),
    round             integer NOT NULL,
    state             text NOT NULL CHECK (state IN ('LEASED', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'LOST', 'RELEASED', 'CANCELED')),
    reason            text NOT NULL DEFAULT '',
    worker_id         uuid NOT NULL,
    session_id        uuid NOT NULL,
    worker_name       text NOT NULL,
    node              text NOT NULL DEFAULT '',
    lease_version     bigint NOT NULL,
    leased_at         timestamptz NOT NULL,
    start_to_close_at timestamptz NOT NULL,
    ended_at          timestamptz,
    next_due          timestamptz,
    failure           jsonb,
    outcome           bytea,
    lease_entry       bigint NOT NULL,
    end_entry         bigint NOT NULL DEFAULT 0,
    progress          double precision,
    progress_message  text NOT NULL DEFAULT '',
    checkpoint_bytes  integer NOT NULL DEFAULT 0,
    UNIQUE (step_id, number)
) WITH (fillfactor = 80);

-- A row exists exactly while its attempt is live, and is the only authority. Nothing that a
-- renewal changes is indexed (HOT); the sweeper scans this small table.
CREATE TABLE leases (
    attempt_id    uuid PRIMARY KEY,
    step_id       uuid NOT NULL UNIQUE,
    execution_id  uuid NOT NULL,
    worker_id     uuid NOT NULL,
    session_id    uuid NOT NULL,
    claim_id      uuid NOT NULL,
    request_id    text NOT NULL,
    lease_version bigint NOT NULL,
    expires_at    timestamptz NOT NULL,
    cap_at        timestamptz NOT NULL,   -- the earliest deadline over it
    cancel_at     timestamptz,            -- the end of a cancel's grace
    duration      interval NOT NULL,
    delivery      integer NOT NULL DEFAULT 1,
    renewed       boolean NOT NULL DEFAULT false
) WITH (fillfactor = 60);
CREATE INDEX leases_worker ON leases (worker_id);

-- Which polls were answered with grants, so that a repeat never gets further ones.
CREATE TABLE lease_requests (
    session_id  uuid NOT NULL,
    request_id  text NOT NULL,
    answered_at timestamptz NOT NULL,
    PRIMARY KEY (session_id, request_id)
);
CREATE INDEX lease_requests_age ON lease_requests (answered_at);

CREATE TABLE workers (
    id            uuid PRIMARY KEY,
    namespace     text NOT NULL,
    name          text NOT NULL,
    node          text NOT NULL DEFAULT '',
    version       text NOT NULL DEFAULT '',
    slots         integer NOT NULL CHECK (slots > 0),
    labels        jsonb,
    capabilities  text[] NOT NULL,
    session_id    uuid,                   -- the current one; NULL: none
    request_id    text NOT NULL DEFAULT '',
    draining      boolean NOT NULL DEFAULT false,
    registered_at timestamptz NOT NULL,
    last_seen_at  timestamptz NOT NULL,
    UNIQUE (namespace, name)
) WITH (fillfactor = 70);

CREATE TABLE sessions (
    id         uuid PRIMARY KEY,
    worker_id  uuid NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
    opened_at  timestamptz NOT NULL,
    ended_at   timestamptz,
    end_reason text NOT NULL DEFAULT ''
);
CREATE INDEX sessions_worker ON sessions (worker_id);
CREATE INDEX sessions_ended ON sessions (ended_at) WHERE ended_at IS NOT NULL;

-- When a rule of time has to be looked at. A hint: what is due is decided anew.
CREATE TABLE timers (
    execution_id uuid NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('START', 'DEADLINE', 'SCHEDULE_TO_START', 'SCHEDULE_TO_CLOSE')),
    step_id      uuid NOT NULL,           -- zero: of the execution itself
    fires_at     timestamptz NOT NULL,
    PRIMARY KEY (execution_id, kind, step_id)
);
CREATE INDEX timers_due ON timers (fires_at);

-- What happened and stands in no other row; the rest is derived in the view below.
CREATE TABLE timeline_entries (
    execution_id   uuid NOT NULL,
    sequence       bigint NOT NULL,
    milestone      text NOT NULL,
    stage          text NOT NULL,
    component      text NOT NULL,
    title          text NOT NULL,
    step_name      text NOT NULL DEFAULT '',
    attempt_number integer NOT NULL DEFAULT 0,
    lease_version  bigint NOT NULL DEFAULT 0,
    worker_id      uuid,
    at             timestamptz NOT NULL,
    count          integer NOT NULL DEFAULT 1,
    details        jsonb,
    PRIMARY KEY (execution_id, sequence),
    UNIQUE (execution_id, milestone)
);

CREATE VIEW timeline AS
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
FROM attempts a JOIN steps s ON s.id = a.step_id
UNION ALL
SELECT s.execution_id, a.end_entry, 'r' || a.round || '/step/' || s.name || '/attempt/' || a.number || '/ended',
       CASE WHEN a.state IN ('LOST', 'TIMED_OUT') THEN 'RECOVERY' ELSE 'EXECUTION' END,
       CASE WHEN a.outcome IS NULL THEN 'scheduler' ELSE 'worker' END,
       'Attempt ' || a.state, s.name, a.number,
       a.lease_version, a.worker_id, a.ended_at, 1,
       jsonb_strip_nulls(jsonb_build_object('reason', NULLIF(a.reason, ''), 'failure_type', a.failure ->> 'type',
                                            'failure_message', a.failure ->> 'message', 'next_attempt_time', a.next_due))
FROM attempts a JOIN steps s ON s.id = a.step_id WHERE a.end_entry > 0;

-- Committed facts to be published, at least once and in order of sequence within an aggregate.
CREATE TABLE outbox_events (
    id               uuid PRIMARY KEY,
    namespace        text NOT NULL,
    aggregate_id     uuid NOT NULL,
    event_type       text NOT NULL,
    sequence         bigint NOT NULL,
    payload          jsonb NOT NULL,
    status           text NOT NULL DEFAULT 'PENDING'
                     CHECK (status IN ('PENDING', 'PUBLISHING', 'PUBLISHED', 'FAILED', 'DEAD', 'SKIPPED')),
    available_at     timestamptz NOT NULL,
    attempts         integer NOT NULL DEFAULT 0,
    last_error       text NOT NULL DEFAULT '',
    claim_id         uuid,
    claim_expires_at timestamptz,
    created_at       timestamptz NOT NULL,
    published_at     timestamptz,
    UNIQUE (aggregate_id, sequence)
) WITH (fillfactor = 80);

-- One row per aggregate with unsettled events: only heads are claimed, so that a thousand
-- events behind a poison one cost nothing. Behind a DEAD event it is infinitely far.
CREATE TABLE outbox_heads (
    aggregate_id     uuid PRIMARY KEY,
    next_sequence    bigint NOT NULL,      -- of its first unsettled event
    available_at     timestamptz NOT NULL,
    claim_id         uuid,
    claim_expires_at timestamptz
) WITH (fillfactor = 70);
CREATE INDEX outbox_heads_due ON outbox_heads (available_at);

-- +goose Down
DROP VIEW timeline;
DROP TABLE outbox_heads, outbox_events, timeline_entries, timers, sessions, workers, lease_requests, leases,
    attempts, scheduling_requests, payloads, step_edges, steps, executions, capabilities, sweeps;
DROP SEQUENCE lease_versions;
