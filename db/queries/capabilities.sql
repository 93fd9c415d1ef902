-- name: InsertCapabilities :exec
-- Makes rows for capabilities that are new, in order of name. Locks the new rows; unique
-- index (namespace, name).
INSERT INTO capabilities (namespace, name)
SELECT u.namespace, u.name FROM (SELECT unnest(@namespaces::text[]) AS namespace, unnest(@names::text[]) AS name) u
ORDER BY u.namespace, u.name
ON CONFLICT (namespace, name) DO NOTHING;

-- name: NewCapabilities :many
-- For namespaces, how many of the named capabilities have no row, and how many others there are, up
-- to a bound. Takes no lock; unique index (namespace, name).
SELECT u.namespace::text AS namespace, count(*)::integer AS added,
    (SELECT count(*) FROM (SELECT FROM capabilities k WHERE k.namespace = u.namespace LIMIT @most::integer) x)::integer AS existing
FROM (SELECT unnest(@namespaces::text[]) AS namespace, unnest(@names::text[]) AS name) u
WHERE NOT EXISTS (SELECT FROM capabilities c WHERE c.namespace = u.namespace AND c.name = u.name)
GROUP BY u.namespace ORDER BY u.namespace;

-- name: LockCapabilities :many
-- A pause waits for the dispatches under way, once it is committed: it takes FOR UPDATE then.
-- The weaker lock does not keep it from being written, or dispatches that overlap would put it
-- off for ever. Whether it is paused is read by a later statement. Locks FOR KEY SHARE in order
-- of id, leaving out those whose pause waits; unique index (namespace, name), then the primary key.
SELECT k.id FROM capabilities k WHERE k.id = ANY(ARRAY(
    SELECT c.id FROM (SELECT unnest(@namespaces::text[]) AS namespace, unnest(@names::text[]) AS name) u
    CROSS JOIN LATERAL (SELECT t.id FROM capabilities t WHERE t.namespace = u.namespace AND t.name = u.name OFFSET 0) c))
ORDER BY k.id FOR KEY SHARE SKIP LOCKED;

-- name: PauseCapability :exec
-- Pauses, and makes the row if it is new; one that is paused stays as it is. Locks the row FOR
-- NO KEY UPDATE, which no dispatch keeps waiting; unique index (namespace, name).
INSERT INTO capabilities (namespace, name, paused, pause_reason, paused_at) VALUES (@namespace, @name, true, @reason, now())
ON CONFLICT (namespace, name) DO UPDATE SET paused = true, pause_reason = excluded.pause_reason, paused_at = excluded.paused_at
WHERE NOT capabilities.paused;

-- name: AwaitDispatchesOfCapability :exec
-- Waits for the dispatches of a capability that are under way. Locks the row FOR UPDATE; unique
-- index (namespace, name).
SELECT id FROM capabilities WHERE namespace = @namespace AND name = @name FOR UPDATE;

-- name: ResumeCapability :execrows
-- Ends a pause; one that is not paused is found too. Locks the row FOR NO KEY UPDATE; unique
-- index (namespace, name).
UPDATE capabilities SET paused = false, pause_reason = '', paused_at = NULL WHERE namespace = @namespace AND name = @name;

-- name: ListCapabilities :many
-- A page in order of name, or one by its name. Takes no lock; unique index (namespace, name).
SELECT id, name, paused, pause_reason, paused_at FROM capabilities
WHERE namespace = @namespace AND name > @after::text AND (@wanted::text = '' OR name = @wanted::text)
ORDER BY name LIMIT @page_size::integer;

-- name: PauseOfCapability :one
-- Takes no lock; primary key.
SELECT paused, pause_reason, paused_at FROM capabilities WHERE id = @id;
