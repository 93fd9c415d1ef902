// Package task is the domain: what an execution, a step and an attempt are, and every rule
// by which their states change. It is pure: no I/O, no context, no clock, no randomness of
// its own; time and chance arrive as arguments. It imports the standard library and uuid only.
//
//	Execution  CREATED → QUEUED → RUNNING → SUCCEEDED | FAILED
//	           CREATED | QUEUED | RUNNING → CANCELING → CANCELED
//	           CREATED | QUEUED → RUNNING | FAILED | CANCELED
//	           FAILED | CANCELED → QUEUED                        (a new round)
//	Step       BLOCKED → READY → RUNNING → SUCCEEDED | FAILED | CANCELED
//	           RUNNING → READY                                   (retry, lost, released)
//	           READY → FAILED | CANCELED,  BLOCKED → SKIPPED | CANCELED
//	           FAILED | SKIPPED | CANCELED → BLOCKED | READY     (a new round)
//	Attempt    LEASED → SUCCEEDED | FAILED | TIMED_OUT | LOST | RELEASED | CANCELED
//
// Each arrow is one method, named for its event; what may not happen is a *TransitionError.
// An Execution is the root: it is changed under one lock, together with those of its steps
// that were read with it, and it collects what has to be written and told (Changes).
// testdata/transitions.golden is the complete table of state × event.
package task
