-- name: InsertPayloads :exec
-- Stores the inputs of new steps, which have none: that is cheaper than to look for one. Locks the
-- new rows; primary key (step_id, role).
INSERT INTO payloads (step_id, role, is_json, content_type, body)
SELECT unnest(@step_ids::uuid[]), unnest(@roles::text[]), unnest(@is_json::boolean[]), unnest(@content_types::text[]), unnest(@bodies::bytea[]);

-- name: PutPayloads :exec
-- Stores inputs, outputs and checkpoints, replacing those of the same role. Locks the rows;
-- primary key (step_id, role).
INSERT INTO payloads (step_id, role, is_json, content_type, body)
SELECT unnest(@step_ids::uuid[]), unnest(@roles::text[]), unnest(@is_json::boolean[]), unnest(@content_types::text[]), unnest(@bodies::bytea[])
ON CONFLICT (step_id, role) DO UPDATE SET is_json = excluded.is_json, content_type = excluded.content_type, body = excluded.body;

-- name: Payloads :many
-- Payloads of steps in some roles. Takes no lock; primary key (step_id, role).
SELECT step_id, role, is_json, content_type, body FROM payloads
WHERE step_id = ANY(@step_ids::uuid[]) AND role = ANY(@roles::text[]);

-- name: ParentOutputs :many
-- The outputs of steps' parents, in the order of the parents' declaration. Takes no lock;
-- primary keys of step_edges, steps and payloads.
SELECT e.child_id, s.name, s.ordinal, p.is_json, p.content_type, p.body
FROM step_edges e
JOIN steps s ON s.id = e.parent_id
JOIN payloads p ON p.step_id = e.parent_id AND p.role = 'OUTPUT'
WHERE e.child_id = ANY(@step_ids::uuid[]) ORDER BY e.child_id, s.ordinal;

-- name: ParentOutputSizes :many
-- Which parents have outputs, and how large. Takes no lock; primary keys of step_edges, steps and payloads.
SELECT s.ordinal, s.name, octet_length(p.body)::integer AS bytes
FROM step_edges e
JOIN steps s ON s.id = e.parent_id
JOIN payloads p ON p.step_id = e.parent_id AND p.role = 'OUTPUT'
WHERE e.child_id = @step_id AND s.ordinal > @after::integer ORDER BY s.ordinal LIMIT 1001;

-- name: ParentOutputsBetween :many
-- Some parents' outputs of a step. Takes no lock; primary keys of step_edges, steps and payloads.
SELECT s.ordinal, s.name, p.is_json, p.content_type, p.body
FROM step_edges e
JOIN steps s ON s.id = e.parent_id
JOIN payloads p ON p.step_id = e.parent_id AND p.role = 'OUTPUT'
WHERE e.child_id = @step_id AND s.ordinal > @after::integer AND s.ordinal <= @last::integer ORDER BY s.ordinal;
