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
//     Outside resources that must not see two owners are guarded with [Job.LeaseVersion], the
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
// # What is not there yet
//
// Saving checkpoints and progress (those of earlier attempts can be read), reports gathered
// into batches, several addresses, counters and health for the host program, interceptors,
// and a helper for tests of handlers without a server.
package worker
