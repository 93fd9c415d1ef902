// Package natspub is the outbound adapter that publishes events to NATS JetStream by the
// official client. It imports the application's port (outbox) and libraries only.
//
// An event travels as one message, a CloudEvent in structured mode: the body is its JSON form
// and the header content-type is application/cloudevents+json, as the CloudEvents NATS protocol
// binding has it. The header Nats-Msg-Id is the event's id, by which the stream drops repeats
// within its window of deduplication (2 minutes unless the stream says otherwise); consumers
// that need more compare the id themselves.
//
// No connection means that the sink is away, which does not count as a try of an event. A server
// that is there counts, also one without a stream for the subject: that may be so for this one
// event, whose subject nobody takes.
//
// Invariants: an event counts as published only after the stream's own acknowledgement; nothing
// is buffered while no server is connected, so what failed here is sent later by the caller
// alone; the connection is tried again for ever, also after refused credentials; a stream is
// made only if asked for, and one that exists is never changed; neither logs nor errors name
// the user or the password of a server.
package natspub
