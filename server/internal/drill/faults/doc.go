// Package faults is the drill of real processes: its tests run several `serve` processes on one
// PostgreSQL, put load on them through the plain gRPC stubs, kill, freeze, stop and cut off
// every part, and then compare what every client was answered with what the tables say.
//
// It may import anything of ours, and nobody imports it. The support stands in test files too:
//
//	processes_test.go    builds the server once, runs, kills, freezes and stops replicas
//	cluster_test.go      a PostgreSQL and the replicas on it
//	proxy_test.go        a proxy of package netfault, which delays, holds back, cuts or drops
//	calls_test.go        clients that fail over between replicas and record each answer
//	load_test.go         producers; worker_test.go: workers, a third of whose attempts fail or lapse
//	hand_test.go         workers led by hand, and client processes that can be killed
//	packaged_test.go     programs of others, such as PgBouncer (pgbouncer_stack_test.go)
//	relay_test.go        replicas that publish to a sink, and die at it
//	tables_test.go       what must hold in the tables, while it runs and at the end
//	answers_test.go      what must hold between the answers and the tables
//
// The counts are small by default; LEASEHOLD_FULL=1 runs them in full. LEASEHOLD_FAULTS_LOGS
// names a folder that takes the logs of all replicas.
package faults
