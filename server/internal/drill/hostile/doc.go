// Package hostile is the drill of bad input: fuzz targets that send whatever bytes they are given
// to a real server, through its interceptors, on a real PostgreSQL.
//
// It may import anything of ours, and nobody imports it. The support stands in test files too:
//
//	script_test.go     reads an input as a script of calls
//	wire_test.go       makes a message of a type from any bytes, mostly a good one
//	values_test.go     good and bad values for fields, by their names
//	pool_test.go       ids, tokens and versions that exist, gathered from answers
//	world_test.go      the server, what is there at first, and the log of what it calls a bug
//	judge_test.go      what may be answered, and that a refused call changes nothing
//
// The targets take their seeds as ordinary tests; `make fuzz` lets them run for longer.
package hostile
