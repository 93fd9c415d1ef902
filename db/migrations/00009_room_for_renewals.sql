-- +goose Up

-- A batch renews all leases of a page in one transaction: as much room is needed as they take
-- themselves, or renewals leave the page, and every index gets an entry. Pages that are there
-- already stay as they are.
ALTER TABLE leases SET (fillfactor = 45);

-- +goose Down
ALTER TABLE leases SET (fillfactor = 60);
