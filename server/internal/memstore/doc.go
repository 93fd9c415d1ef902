// Package memstore is the outbound adapter that keeps everything in memory, for simulation: the
// ports of scheduler and outbox on maps under one mutex. It may import scheduler, outbox and
// task. Package storetest holds it to what package postgres does.
//
// A transaction holds the mutex from its beginning to its end and changes all that it changes or
// nothing, so that no two are ever under way: nothing here is locked by another, and ErrBusy is
// answered for doubles within a batch only. The store's clock is the only one, and stands still
// within a transaction. What is decided, the domain decides, as in the adapter for PostgreSQL.
//
// Nothing depends on chance but what Config.Chance gives: the same calls make the same changes.
// Config.Fault makes a commit fail as a crash would, before it or after it.
//
// TestSimulation, in this package, drives the ports on it from one goroutine against a model, with
// crashes, lost answers, parked calls and jumps of the clock, 20,000 steps by default:
//
//	LEASEHOLD_STEPS=1000000 go test ./server/internal/memstore -run TestSimulation
//
// A failure names its seed, and a file with a shorter history. Either replays it exactly:
//
//	go test ./server/internal/memstore -run TestSimulation_Agrees -rapid.seed=N
//	go test ./server/internal/memstore -run TestSimulation_Agrees -rapid.failfile=testdata/rapid/...
//
// It leaves out what operators look at (scheduler.FleetStore, outbox.EventStore, the list of
// executions, a page of step inputs): scheduler.New does without. Retention removes nothing:
// nobody gets the right to it.
package memstore
