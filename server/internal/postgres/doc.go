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
// What keeps it cheap, with what it brought where it was tried. Processor time is per execution of a
// drain (a worker's slots full, reports in batches), PostgreSQL's and that of the server with its
// clients:
//
//   - Statements take arrays: a transaction serves many callers.
//   - Statements that do not wait for each other's answers are sent together (together.go), BEGIN with
//     the first ones, COMMIT with the last ones: a dispatch was seventeen round trips and is two, a report
//     was twelve and is three, an enqueue was six and is two, a claim was four and is two. That is what
//     the latency of an idle server consists of. Where COMMIT goes along, nobody can look at the number of
//     changed rows before it: the statements themselves fail unless it is the right one (exactly, a
//     function in the database).
//   - Plans are made once a session (store.go): PostgreSQL's time for one execution alone fell by half,
//     in a drain by a twentieth.
//   - Ids travel as bytes (ids.go), one row is remembered per poll and not per lease, statistics of ends
//     come from what the transaction knows, and tables whose rows are changed leave room for it on
//     the page (HOT): PostgreSQL's part fell by a seventh, the other by a quarter.
//   - A dispatch tells what its leases bring (attempt_dispatch.go): their rows are not read again. What is
//     inserted under locks, or belongs to what is new, is inserted plainly: WAL per execution fell by a
//     fifth, PostgreSQL's part of an enqueue by a tenth.
//   - Lists of parameters have their room at once (reserve.go): the server's part fell by a fourteenth.
//   - Claims commit without a wait for the disk (claim.go): nobody is told of them.
//   - Walks begin where something can be left (frontier.go, lease_floor.go, timer_frontier.go): dead rows,
//     which somebody's old snapshot keeps, cost nothing. With 45,000 of them a claim read 29,429 buffers,
//     and reads 1,032.
package postgres
