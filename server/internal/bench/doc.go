// Package bench runs the command `leasehold bench`: how fast the service is on this machine, for
// those who have to size one. Producers and workers in this process drive server processes over
// gRPC, each scenario on a database of its own, in which the outcome is checked in the end.
//
// It is a command: it may import everything, though it uses the server as others do, by its
// program and its gRPC interface. Nobody imports it.
//
//	catalogue.go   all scenarios, with a line and the defaults of each; p*.go is what they do
//	bench.go       the command: which scenarios run, one after the other
//	trial.go       one run of a scenario, and its comparisons with itself
//	stage.go       PostgreSQL; site.go a database on it, with servers
//	produce.go     producers; work.go workers; call.go calls that are repeated until they succeed
//	measure.go     what is measured while work is done: postgres.go by PostgreSQL, cpu.go by the kernel
//	latency.go     percentiles, and calls at a fixed rate
//	ledger.go      what clients were told; verdict.go compares it with the tables
//	result.go      what is reported; table.go how it is printed
package bench
