// Package demo runs the command `leasehold demo`: a campaign of coupons on a whole
// installation, in which processes are killed and frozen, and a verdict on what came of it.
// It is a command: it may import everything, though it uses the server as others do, by its
// program, its gRPC interface and its events. Nobody imports it.
//
// Read it as the tutorial, in this order:
//
//	produce.go   a producer: enqueues each coupon under its own idempotency key
//	work.go      a worker: sends a coupon, guarded by its lease version
//	mailbox.go   the mail provider that workers send to: the fence
//	consume.go   a consumer of events: issues a coupon once, by the inbox
//	demo.go      the story: who is killed and frozen, and when
//	verdict.go   how it is judged, from tables that know nothing of the server's claims
//
// The rest is stagecraft: stage.go starts the parts, dial.go the connections.
package demo
