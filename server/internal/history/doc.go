// Package history decides whether the service kept its promises: from every call of every client
// with its times, and from the tables as they are at the end. It stands outside of the service:
// of this module it imports only the generated stubs.
//
// # How to use it
//
// A Recorder in each process that has clients (workers, producers, operators, consumers of
// events) notes what they ask and what they are answered. At the end Load reads the tables, and
// CheckFinished (all work done, all events published) or Check (cut off in the middle) lists what
// was broken. Rules tells what is looked at, a sentence for each.
//
//	recorder := history.NewLog(file) // or &history.Recorder{} in the checker's own process
//	conn, err := grpc.NewClient(address, grpc.WithChainUnaryInterceptor(recorder.Unary("worker 1"), ...))
//	...
//	h, err := history.Read(file) // and history.Merge, of several
//	c, err := history.Load(ctx, pg, "default")
//	for _, v := range history.CheckFinished(h, c) { ... }
//
// What makes the verdict sound:
//
//   - Each connection of each client is recorded, with the recorder's interceptor before all
//     others. A change that no recorded client asked for counts as broken, where it can be seen.
//   - Load comes after the last answer. To look while the run goes on: Now, then Load, then
//     Check of History.Until that instant.
//   - Nothing is removed by retention meanwhile, and no operator settles events by hand unless
//     that shows in the tables as SKIPPED.
//   - Committed.EventTypes has the types that are written, unless these are all.
//   - Deliveries are checked when there are some, or a recorder was told that it Consumes.
//
// # Times
//
// An op has two instants: Begin was read before the call was sent, End after its answer had come.
// What it did, it did between the two, so a process that is slow or frozen only makes the interval
// longer, and less is known. A call of unknown outcome (no answer, UNAVAILABLE, any error that is
// not the service's own refusal) has no End that counts: it may have been done, or be done at any
// time later, or never. Only where the tables show its effect it is known.
//
// Instants are of the machine's monotonic clock (CLOCK_MONOTONIC), which all processes of one
// machine share and nobody sets. So histories of several processes are put together as they are,
// without any alignment; each names its boot of its machine, and Merge refuses to mix. Processes
// in other time namespaces, or on other machines, have no clock in common and cannot be merged.
// Where there is no such clock, the time of day stands for it, and must not be set.
//
// Instants of PostgreSQL's clock in the tables are compared with each other only. The order of
// what happened to an execution is that of its timeline numbers, which are given out under its
// lock.
//
// # What is kept, and what it costs
//
// Of payloads and texts only eight bytes of a hash are kept. A call in memory takes about 350
// bytes. A log has two lines for a call, each written by itself, so that a process that is killed
// leaves all that it began. Load streams rows of fixed small sizes, about a kilobyte for an attempt
// with its step, its execution and all their events. All in all, with indexes and garbage, a run
// needs some 8 KiB for an attempt; the test of many attempts tells what was seen.
//
// # The lease of a step as a model
//
// Beside the rules on single calls, all calls on a step's lease are given to a checker of
// linearizability (porcupine), each step by itself: a lease is granted while there is none, with
// a version above all before; its holder renews it or ends it; late calls find that it is not
// live. What the tables say that happened without a call (an expiry, a grant whose answer was
// lost) may have happened at any time. If no order of the calls, each within its interval, fits
// that model, then some answers contradict each other.
package history
