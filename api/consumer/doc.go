// Package consumer is for programs that receive Leasehold's events or write to resources that
// workers share. It imports pgx and the CloudEvents SDK, and nothing of the server.
//
//   - [ParseEvent] reads an event as NATS and webhooks carry it.
//   - [Inbox] handles each event exactly once, in a transaction of your PostgreSQL.
//   - [Fence] and [Guard] refuse writes with a lease version that is not the newest any more.
//
// # Exactly once
//
// Events are delivered at least once: after a crash between a delivery and its
// acknowledgement, on either side, the same event comes again with the same id. So the effect
// and the memory of the id must commit together:
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		_, err := inbox.Handle(ctx, tx, event, func(ctx context.Context, tx pgx.Tx) error {
//			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + $2 WHERE id = $1`, account, amount)
//			return err
//		})
//		return err
//	})
//	// Only now, and only if err is nil: acknowledge the delivery (msg.Ack, or status 2xx).
//
// This covers what commits in that transaction, and nothing else: a mail that fn sends is sent
// again if the commit fails. Write down in the transaction that it is to be sent, and let an
// execution with a stable key send it.
//
// Where the business state itself tells whether an event was applied, no inbox is needed: see
// the example of a conditional update.
//
// # Order
//
// Within an execution, sequence counts the event types that the server was told to publish,
// without gaps, and the first delivery of an event never begins before the one before it was
// acknowledged. Repeats may come late, and a consumer that handles several deliveries at once
// may overtake itself. [Inbox.Order] says what to make of that. Sequence has holes for you if
// you receive only some of the types, if you started after others were published, or if an
// operator has skipped an event.
//
// # How long the inbox remembers
//
// A row must be kept longer than its event can come again, which is the longest of
//
//   - how long the stream keeps messages (a consumer made anew reads them all again),
//   - how long your broker goes on redelivering (acknowledgement wait × deliveries),
//   - how long the server keeps an event that it could not get confirmed: until it is
//     published, or for 30 days once it is DEAD, since an operator may redrive it;
//
// and, with [Gapless], how long the server keeps a finished execution, since an operator may
// reopen it. Add a margin for the time in which you do not look. If one of these has no end,
// as the age of messages in a stream has none by default, keep the rows for ever or use a
// conditional update. [Inbox.Purge] deletes what is older.
//
// # Isolation
//
// Everything here is correct in READ COMMITTED, PostgreSQL's default. In REPEATABLE READ and
// SERIALIZABLE it is too, but there a conflict with a transaction that committed meanwhile is
// SQLSTATE 40001 instead of a wait and an answer: roll back and try again from the start, as
// always at those levels. A transaction that handles several events, or fences several
// resources, can meet another one in a deadlock (40P01) unless both take them in the same
// order; try that again, too. A redelivery is such a try.
//
// # Fences
//
// A worker that was suspended may act after its lease went to somebody else; it cannot know.
// Only the resource can refuse it: each write brings the lease version, the resource remembers
// the greatest it has seen, and refuses smaller ones. For tables in PostgreSQL take [Fence], or
// keep the version in the row itself:
//
//	UPDATE documents SET body = $2, lease_version = $3 WHERE id = $1 AND lease_version <= $3
//
// No row updated means refused. An equal version is the same owner again and passes; so a
// fence keeps late owners out, not repeats of the owner itself.
//
// Lease versions are also comparable between steps: a lease that was granted after another was
// answered has the greater one. Where two steps write to one resource at the same time, the
// later grant wins and the earlier one is refused, though its lease is live. If both may write,
// name the resource for each step.
//
// # Webhooks
//
// The server signs webhooks as Standard Webhooks say. Verify the signature before ParseEvent,
// over the body as it came, by their library
// (github.com/standard-webhooks/standard-webhooks/libraries/go). Answer 2xx after the commit.
package consumer
