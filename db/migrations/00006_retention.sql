-- +goose Up

-- Events by age, for those that were published or skipped long ago. What changes of an event is
-- not in it (HOT); building it locks the table against writers.
CREATE INDEX outbox_events_age ON outbox_events (created_at, id);

-- Which replica has the right to remove what is old: one at a time, so that many of them slow
-- down the work no more than one does.
CREATE TABLE purges (
    id      integer PRIMARY KEY CHECK (id = 1),
    holder  uuid,
    held_at timestamptz
);
INSERT INTO purges (id) VALUES (1);

-- +goose Down
DROP TABLE purges;
DROP INDEX outbox_events_age;
