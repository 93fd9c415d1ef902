// Package execworker is what `leasehold worker` runs: a worker that starts a program for each
// attempt, so that a shell script can do steps. It is a client like any other, and imports
// nothing of the server's but the worker SDK.
//
//	stdin                    the step's input, byte for byte
//	stdout                   its output: JSON if it is one JSON value, else bytes; limited
//	stderr                   passed on; its tail stands in the failure
//	file descriptor 3        notes while it works, see below
//	exit 0                   succeeded
//	exit 75 (EX_TEMPFAIL)    handed back, does not count as a try
//	Config.PermanentExit     failed, not tried again
//	any other end            failed, tried again as the step's retry policy says
//
// The rest is in environment variables, see environment. EX_TEMPFAIL is that of sysexits.h.
//
// A line that the program writes to file descriptor 3 is a JSON object with any of checkpoint
// (any JSON: what the next attempt of the step finds in LEASEHOLD_CHECKPOINT if this one does
// not succeed), progress (0 to 1) and message. It travels with the next renewal, after about a
// third of the lease, or with the report of the attempt's end. A line that makes no sense is
// complained about on stderr.
//
// The program is the leader of a process group. When the execution is cancelled the group gets
// SIGTERM, and SIGKILL after Config.KillAfter. When the lease is lost, the attempt's deadline
// comes, or the worker's grace is over, SIGKILL follows at once, after a fifth of a second at
// most: then somebody else may have the step. What of the group outlives
// its leader is killed, too. On Linux the program also ends when the worker is killed; what it
// has started itself may go on, and is what the fencing token is for.
package execworker
