// Package grpcapi is the inbound adapter that speaks gRPC: it decodes requests into commands of
// the application, calls it, and encodes its views. It imports scheduler, task and the stubs of
// ours, never another adapter.
//
//	call ─► logging ─► recovery ─► errors ─► validation ─► handler: decode, call, encode
//
// Invariants: errors.go is the one place that knows gRPC codes, and handlers just return
// errors; what the validation lets through decodes without failing; no text of a driver or of
// a cause reaches a client; an answer stays below the message limit, by fewer items in a page;
// text of workers is cleaned, never refused, so that it cannot keep an attempt alive; in a
// batch of renewals or reports one bad item is that item's matter only; a stream that is ended
// while its caller is there says from where to go on.
package grpcapi
