-- +goose Up

-- Lists in milliseconds however many executions there are: those that ended are in the order of
-- lists by how they ended, the live ones by themselves. outcome changes with the end only, so
-- that until then no update touches what an index holds (HOT).
--
-- The column rewrites the table under a lock that stops everything else: about a minute for ten
-- million rows. So do the indexes, which are built within the same transaction.
ALTER TABLE executions ADD COLUMN outcome text GENERATED ALWAYS AS (CASE WHEN ended_at IS NOT NULL THEN state END) STORED;
CREATE INDEX executions_ended ON executions (namespace, outcome, created_at DESC, id DESC) WHERE outcome IS NOT NULL;
CREATE INDEX executions_live ON executions (namespace, created_at DESC, id DESC) WHERE outcome IS NULL;
DROP INDEX executions_newest;

-- Heads of DEAD events, which are infinitely far, in the order of lists.
DROP INDEX outbox_heads_due;
CREATE INDEX outbox_heads_due ON outbox_heads (available_at, aggregate_id);

-- +goose Down
DROP INDEX outbox_heads_due;
CREATE INDEX outbox_heads_due ON outbox_heads (available_at);
DROP INDEX executions_ended, executions_live;
ALTER TABLE executions DROP COLUMN outcome;
CREATE INDEX executions_newest ON executions (namespace, created_at DESC, id DESC);
