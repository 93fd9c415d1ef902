// Package live runs the command `leasehold drill`: a whole installation of real processes, in
// which one thing after the other is killed, frozen, cut off or set wrong, while producers and
// workers are at work. What every client was told is recorded and compared with the tables.
//
// It is a command: it may import everything, though it uses the server as others do, by its
// program and its gRPC interface. Nobody imports it.
//
//	catalogue.go   all drills, with a line for each; drills_*.go is what they do
//	live.go        the command: which drills run, one after the other, and what is reported
//	stage.go       PostgreSQL, NATS, proxies and replicas on which drills run
//	replica.go     a server process; workers.go worker processes; work.go what these do
//	load.go        producers, and how long it takes until work goes on
//	exercise.go    one run of a drill
//	judge.go       the verdict on it: by history.CheckFinished and by drill.CheckPart
//	table.go       what is printed
package live
