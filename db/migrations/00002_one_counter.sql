-- +goose Up

-- Each committed change leaves at least one entry in the timeline, so the number of the last
-- one tells how far an execution has come: it is the revision.
ALTER TABLE executions DROP COLUMN revision;
ALTER TABLE executions RENAME COLUMN entries TO revision;
COMMENT ON COLUMN executions.revision IS 'number of the last timeline entry; grows with each committed change';

-- +goose Down
ALTER TABLE executions RENAME COLUMN revision TO entries;
ALTER TABLE executions ADD COLUMN revision bigint NOT NULL DEFAULT 1;
ALTER TABLE executions ALTER COLUMN revision DROP DEFAULT;
