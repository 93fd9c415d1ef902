-- name: InsertTallies :exec
-- How attempts ended in this transaction, a row for each capability and state. Locks the new rows;
-- both indexes.
INSERT INTO attempt_tallies (capability_id, at, state, n)
SELECT unnest(@capability_ids::integer[]), now(), unnest(@states::text[]), unnest(@counts::integer[]);

-- name: OutcomesOfCapabilities :many
-- How attempts ended in the last minute and hour; the hour is counted by whole minutes. Takes
-- no lock; index attempt_tallies_capability.
SELECT t.capability_id, t.state, sum(t.n)::bigint AS last_hour,
    COALESCE(sum(t.n) FILTER (WHERE t.at > now() - interval '1 minute'), 0)::bigint AS last_minute
FROM (SELECT unnest(@ids::integer[]) AS id) c
CROSS JOIN LATERAL (
    SELECT x.capability_id, x.state, x.n, x.at FROM attempt_tallies x
    WHERE x.capability_id = c.id AND x.at > now() - interval '1 hour' OFFSET 0) t
GROUP BY t.capability_id, t.state;

-- name: SumTallies :one
-- Sums up minutes that are over, some rows at a time. Locks and deletes the rows, leaving out
-- locked ones, and inserts their sums; index attempt_tallies_age.
WITH old AS (
    DELETE FROM attempt_tallies t WHERE t.ctid = ANY(ARRAY(
        SELECT x.ctid FROM attempt_tallies x
        WHERE x.at > now() - interval '10 minutes' AND x.at <= now() - interval '2 minutes' AND NOT x.summed AND x.n > 0
        ORDER BY x.at LIMIT @batch::integer FOR UPDATE SKIP LOCKED))
    RETURNING t.capability_id, t.at, t.state, t.n
), sums AS (
    INSERT INTO attempt_tallies (capability_id, at, state, n, summed)
    SELECT o.capability_id, date_trunc('minute', o.at), o.state, sum(o.n)::integer, true FROM old o GROUP BY 1, 2, 3
)
SELECT count(*) AS summed FROM old;

-- name: DeleteOldTallies :execrows
-- Forgets what no count looks at any more, some at a time. Locks and deletes the rows, leaving
-- out locked ones; index attempt_tallies_age.
DELETE FROM attempt_tallies WHERE ctid = ANY(ARRAY(
    SELECT t.ctid FROM attempt_tallies t WHERE t.at < now() - interval '61 minutes' AND t.n > 0
    ORDER BY t.at LIMIT @batch::integer FOR UPDATE SKIP LOCKED));
