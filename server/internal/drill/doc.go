// Package drill is a command's package: it runs several replicas of the service in one
// process, over real gRPC on loopback and one real PostgreSQL, drives them as producers and
// workers would, and checks from the tables that every promise held.
//
// Its parts: Cluster (replicas that can be stopped, or cut off as by a kill), Client and
// Worker (what a producer and a worker call), Watch (the codes that clients got), Check (the
// invariants, by SQL). It may import everything of the server's; nobody imports it.
package drill
