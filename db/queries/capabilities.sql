-- name: InsertCapabilities :exec
-- Makes rows for capabilities that are new, in order of name. Locks the new rows; unique
-- index (namespace, name).
INSERT INTO capabilities (namespace, name)
SELECT u.namespace, u.name FROM (SELECT unnest(@namespaces::text[]) AS namespace, unnest(@names::text[]) AS name) u
ORDER BY u.namespace, u.name
ON CONFLICT (namespace, name) DO NOTHING;

-- name: LockCapabilities :many
-- A pause waits for the dispatches under way, and no later one passes it. Locks FOR SHARE in
-- order of id, leaving out those being changed; primary key.
SELECT id, paused FROM capabilities WHERE id = ANY(@ids::integer[]) ORDER BY id FOR SHARE SKIP LOCKED;
