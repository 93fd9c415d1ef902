// Package outbox is the application's relay: it brings committed events to other systems, at
// least once and in order within an execution. It owns Event, Source (where events wait) and
// Publisher (where they go). It imports the domain (task) only.
//
//	PENDING → PUBLISHING → PUBLISHED
//	PUBLISHING → FAILED (due again) → PUBLISHING
//	PUBLISHING → PENDING (released, claim over, or untried behind a failed one)
//	FAILED | PUBLISHING → DEAD (limit reached, or refused for good; the reason is kept)
//	DEAD | FAILED | PENDING → SKIPPED,  DEAD → PENDING (redriven)
//
// In order means: the first delivery of event n+1 of an execution never begins before event n
// was acknowledged or skipped. A repeat may come late, so consumers compare sequence.
//
// A try counts once the sink was reached: it said no, or nobody knows what it did with the
// event. After the limit of such tries the event is DEAD. A sink that cannot be reached
// (AwayError) is no event's fault: those tries do not count, and while it lasts the relay does
// not turn its backlog over, but tries with one head every few seconds.
//
// A relay that stops waits some seconds for what is in flight. What is acknowledged by then is
// PUBLISHED; the rest goes back to PENDING, and that try does not count either.
//
// Invariants: nothing is published inside a transaction; an event is PUBLISHED only after the
// sink's own acknowledgement; what a claim lost is never written over; one execution's poison
// event or slow sink holds up nobody else's.
package outbox
