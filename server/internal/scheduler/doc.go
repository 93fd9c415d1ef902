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
// What keeps it cheap: calls of one kind share a transaction (batch.go), and those who were in one flush
// are given the time to come again for the next; thirty-two producers, one call at a time each, then
// cost a tenth less processor time. A round offers few polls first and more only if those were too few
// (round.go), and asks nothing of each parked poll (polls.go): with 10,000 of them the first lease came
// after 38 ms, and comes after 6, as it does with four.
//
// Invariants: nothing here holds a transaction while it waits; time comes from the store, and
// the process's own clock is used as a stopwatch only; a hint never is the truth: every loop
// also looks by itself, within a bound.
package scheduler
