// Package postgres is the outbound adapter that keeps everything in PostgreSQL: transactions,
// locks, and the statements of db/queries. It implements the ports of scheduler; no rule is
// decided here: rows are locked, read into the domain (task), changed by its methods, and
// written back. It imports scheduler and task; its rows (internal/dbsqlc) nobody else can see.
//
// Invariants:
//
//   - One place opens transactions (tx.go). Inside nothing but PostgreSQL is touched: no
//     network call, no wait, no user code.
//   - READ COMMITTED, and lock, then look, in two statements: a statement's snapshot is older
//     than the lock that it waits for, so what is decided under a lock is read by a later one.
//   - The execution's row is the gate (gate.go): whoever changes a step, an attempt or a
//     request of it holds that row.
//   - The lease row decides: it exists exactly while its attempt is live; whatever ends an
//     attempt deletes the row first, by its version, and writes the rest only if that deleted it.
//   - The order of locks stands in locks.go.
//   - Every instant is PostgreSQL's: clock_timestamp() after the last lock for grants, now()
//     elsewhere.
//
// What keeps it cheap, with what it brought where it was tried, in processor time per execution of a
// drain (a worker's slots full, reports in batches):
//
//   - Statements take arrays: a transaction serves many callers.
//   - Ids travel as bytes, one row is remembered per poll and not per lease, statistics of ends come
//     from what the transaction knows, and tables whose rows are changed leave room for it on the
//     page (HOT): PostgreSQL's part fell by a seventh, that of the server and its clients by a quarter.
//   - Statements that do not wait for each other's answers are sent together (together.go): a
//     dispatch is five round trips instead of seventeen.
package postgres
