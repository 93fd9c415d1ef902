// Package worker is the Go SDK for workers: a program that offers capabilities, leases
// attempts of steps from a Leasehold server, runs a handler for each, keeps the leases
// renewed and reports the outcome.
//
//	w := worker.New(worker.Config{Address: "127.0.0.1:50051", Slots: 4})
//	worker.Handle(w, "mail.send/v2", func(ctx context.Context, job *worker.Job[Mail]) (Receipt, error) {
//		return send(ctx, job.Input, job.LeaseVersion())
//	})
//	err := w.Run(ctx)
//
// It imports the generated stubs and nothing else of this module.
//
// # How an attempt runs
//
//	poll ─► lease ─► handler ─► report          at most Config.Slots at once, nothing is prefetched
//	          │         ▲
//	          └─ renewals, in batches, from a goroutine of their own that no handler can block
//
// # What holds
//
//   - A handler's context ends before its lease can be given to anybody else, as far as the
//     local monotonic clock can tell: a grant is counted from when the poll was sent plus the
//     time that the server held it, a renewal from when it was sent, and a twentieth (at most
//     half a second) is kept as a margin. No answer from any server is needed for that, so a
//     cut network ends the context too. [context.Cause] says why: [ErrLeaseLost],
//     [ErrCanceled], [ErrDeadline] or [ErrStopping].
//   - A context asks, it cannot force. A handler that ignores it, or a process that was
//     suspended (its monotonic clock may have stood still), can act after its lease ended.
//     Outside resources that must not see two owners are guarded with [Attempt.LeaseVersion], the
//     fencing token: refuse what bears a smaller one than was seen before.
//   - A report is repeated until it is answered or the lease is over. A repeat of a report
//     that was recorded changes nothing. A refusal (the attempt belongs to somebody else, or
//     has ended) is logged and the result is dropped: the server has moved on.
//   - No goroutine of this package outlives [Worker.Run], but for handlers that ignore their
//     context.
//
// # How a handler ends an attempt
//
//	returns nil                       succeeded with the output
//	returns an error                  failed; tried again as the step's retry policy says
//	returns Permanent(err)            failed; not tried again
//	returns RetryAfter(err, d)        failed; tried again after d
//	returns Release(reason, d)        handed back; does not count as a try
//	panics                            failed, type PANIC, with the stack in the details
//	returns an error of its context   after ErrCanceled: canceled; after ErrStopping: handed back; after
//	                                  ErrLeaseLost or ErrDeadline: nothing is reported, the server has
//	                                  ended the attempt or is about to
//
// An output that is not JSON ends the attempt with a failure of type INVALID_RESULT, one over
// the server's limits with RESULT_TOO_LARGE; neither is tried again.
//
// # Checkpoints
//
// A handler that takes long leaves checkpoints for the next attempt: [Attempt.SaveCheckpoint]
// returns when a server has one, [Attempt.SetCheckpoint] lets it travel with the next renewal
// or with the report, also when the worker stops and hands its attempts back. A checkpoint
// that is refused is an error for the handler, and costs no lease.
//
// # Servers
//
// With [Config.Addresses] a call that fails goes to another server at once, one that hangs is
// doubled: a renewal after a tenth of the lease, so that a lease survives when two of three
// servers freeze. Polls keep their request_id on their way from server to server, so
// that no work is granted twice. What failed is asked again after up to 30 s, when a connection
// stands. With all servers away a worker tries every 10 s at most.
//
// # What a host program sees
//
// [Worker.Health] and [Worker.Stats] for readiness and metrics; [Config.Interceptors] around
// handlers, and [Config.DialOptions] for what goes around calls. Package workertest runs
// handlers without a server.
package worker
