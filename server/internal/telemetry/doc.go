// Package telemetry is the adapter through which operators look at a replica: the metrics, the
// HTTP port that serves them, whether the replica lives and is ready, and traces. It implements
// the observers and tracers that the application and the store own, and asks them for what has to
// be read; it imports scheduler, outbox and task only. METRICS.md has the table of all metrics.
//
// Invariants: what is observed costs no allocation and no wait, for it is observed on the path of
// the work; what is read from the database is bounded, read at most every few seconds however
// often it is asked for, and left out when it cannot be read: no old number is shown as if it were
// new. The number of series is bounded too, whatever callers send as names. Ages come from
// PostgreSQL's clock, or from this process's own stopwatch. Traces leave the process only if the
// environment names a receiver; nobody waits for it, and what it does not take is lost.
//
// To add a metric:
//
//  1. Let the package that knows it tell of it: by a method of an observer that it owns (an
//     interface of at most five methods; a further one beside it if need be), or by a function
//     that is asked at each look (Sources). Numbers that are in the database go into
//     db/queries/metrics.sql, counted up to a bound.
//  2. Make it in the file here that is named for that package, with help and, for a histogram,
//     explicit buckets. Series whose labels are known are made at the start, so that they are 0
//     before the first event. A label's values must be few, whatever callers send.
//  3. Add its row to METRICS.md, and to the scenario in server/metrics_test.go what makes it
//     move. That test compares the table with what a running server shows, both ways.
package telemetry
