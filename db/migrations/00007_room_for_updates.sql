-- +goose Up

-- Rows that are changed once or twice and stay: each change finds room beside the old version, and
-- leaves the indexes alone (HOT). A batch changes all rows of a page in one transaction, before
-- which nothing of it can be tidied up, so as much room is needed as the rows take themselves.
-- Pages that are there already stay as they are.
ALTER TABLE executions SET (fillfactor = 45);
ALTER TABLE steps SET (fillfactor = 50);
ALTER TABLE attempts SET (fillfactor = 50);
ALTER TABLE scheduling_requests SET (fillfactor = 50);

-- +goose Down
ALTER TABLE executions SET (fillfactor = 70);
ALTER TABLE steps SET (fillfactor = 80);
ALTER TABLE attempts SET (fillfactor = 80);
ALTER TABLE scheduling_requests SET (fillfactor = 70);
