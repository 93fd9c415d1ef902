// Package testsink gives tests real sinks for events: a NATS server with JetStream in this
// process, and an HTTP server that takes webhooks. Both keep a Record of what arrived, which
// tells whether the order was kept. Only tests import it; it imports nothing of the server's.
package testsink
