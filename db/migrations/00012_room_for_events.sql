-- +goose Up

-- An event is written three times: with its change, when it is claimed and when it is published; a head
-- is claimed once. All rows of a page change together, so that half of it has to be free for them to
-- stay there: no index then gets an entry, and the log only what differs. Pages that are there already
-- stay as they are.
ALTER TABLE outbox_events SET (fillfactor = 45);
ALTER TABLE outbox_heads SET (fillfactor = 45);

-- +goose Down
ALTER TABLE outbox_events SET (fillfactor = 80);
ALTER TABLE outbox_heads SET (fillfactor = 70);
