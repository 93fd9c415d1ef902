// Package scheduler is the application: one use case per file, the dispatcher, the group
// commit and the sweeper. It imports the domain (task) only; what it needs of the outside
// stands in ports.go as small interfaces, which adapters implement.
//
// How an attempt travels:
//
//	Enqueue ─► group commit ─► executions, steps, scheduling requests
//	              │ wake
//	Lease ─► parks a poll (no connection) ─► the replica's one dispatcher, in rounds:
//	    claim     short transaction   requests that parked polls can serve
//	    place     no transaction      task.Place
//	    dispatch  short transaction   everything is looked at anew, under locks
//	    deliver   no transaction      answer the polls
//	Renew, Report ─► group commit ─► by lease row
//	Sweeper  leases that are over, timers, sessions
//	Watch ─► waits (no connection) ─► the replica's one hub reads what happened, for all that watch
//
// Invariants: nothing here holds a transaction while it waits; time comes from the store, and
// the process's own clock is used as a stopwatch only; a hint never is the truth: every loop
// also looks by itself, within a bound.
package scheduler
