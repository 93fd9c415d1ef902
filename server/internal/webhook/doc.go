// Package webhook is the outbound adapter that publishes events by HTTP POST. It imports the
// application's port (outbox) and libraries only.
//
// An event travels as one request, a CloudEvent in structured mode (its JSON form, content type
// application/cloudevents+json), signed as Standard Webhooks has it
// (https://www.standardwebhooks.com): webhook-id is the event's id and the same at each try,
// webhook-timestamp the time of the try in seconds, webhook-signature has one v1 signature for
// each secret, so that secrets can be changed without a gap.
//
// A receiver that cannot be connected to is away: refused, no answer to the dial, no such host,
// no trust in its certificate. That is no event's fault and does not count as a try. Once there
// was a connection, whatever goes wrong counts, also one that breaks without an answer: nobody
// knows whether the receiver had the event, and one that brings its receiver down has to end
// DEAD some day.
//
// Invariants: an event counts as published only after a complete answer with a status of 2xx;
// redirects are not followed, proxies of the environment not used; one timeout bounds all of a
// call, also a slow answer; at most 64 KiB of an answer are read; neither logs nor errors name
// a secret, the credentials, the path or the query of the URL.
package webhook
