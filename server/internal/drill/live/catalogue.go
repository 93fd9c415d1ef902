package live

import (
	"context"
	"time"
)

// scene is what a stage is made of, beside replicas. Drills of one scene share a stage.
type scene struct {
	standby bool
	clock   bool // PostgreSQL's clock can be set
}

// drill is one thing that goes wrong, and what must hold all the same.
type drill struct {
	name string
	line string
	// ownPostgres: it kills, stops or moves the database itself, or needs a superuser.
	ownPostgres bool
	between     bool // it needs a way to the database on which one can stand
	scene       scene
	load        loadConfig
	run         func(ctx context.Context, x *exercise) error
	limit       time.Duration // of the drill; default drillLimit
	publish     time.Duration // until all events are published; default publishLimit
}

// catalogue is all drills, in the order in which they are told.
func catalogue() []drill {
	return []drill{
		{name: "claimers", line: "many claimers at once get every step just once", run: claimers, load: loadConfig{workers: -1}},
		{name: "slow", line: "a slow sink and a silent worker: no transaction and no row lock waits for them", run: slowOnes},
		{name: "sink-away", line: "the sink goes away and comes back: work goes on, events follow in order", run: sinkAway},
		{name: "publish-confirm", line: "a server is killed after its events were published, before it noted that", run: publishConfirm},
		{name: "server-kills", line: "servers are killed at random, many times", run: serverKills},
		{name: "worker-killed", line: "a worker is killed: others finish what it held", run: workerKilled, load: loadConfig{pace: holdingPace}},
		{name: "worker-frozen", line: "a worker is frozen past its lease: its late success is refused", run: workerFrozen},
		{name: "worker-cut", line: "a worker is cut from the network: others finish what it held", run: workerCut, load: loadConfig{pace: holdingPace}},
		{name: "postgres-restart", line: "PostgreSQL is restarted", ownPostgres: true, run: postgresRestart},
		{name: "postgres-killed", line: "PostgreSQL is killed", ownPostgres: true, run: postgresKilled},
		{name: "failover-sync", line: "failover to a synchronous standby: nothing is lost", ownPostgres: true, scene: scene{standby: true}, run: failoverSync},
		{name: "failover-async", line: "failover to an asynchronous standby: the last moments may be gone, no token comes twice", ownPostgres: true, scene: scene{standby: true}, run: failoverAsync},
		{name: "pool", line: "the servers' connection pools are exhausted", run: poolExhausted},
		{name: "listen", line: "the sessions that listen for hints are ended", run: listenKilled},
		{name: "hints-withheld", line: "the sessions that listen for hints stay open, and nothing comes through", between: true, run: hintsWithheld, load: loadConfig{apart: true}},
		{name: "open-transaction", line: "somebody's transaction is left open all the time", run: openTransaction},
		{name: "database-clock", line: "PostgreSQL's clock goes a minute ahead, then a minute behind", ownPostgres: true, scene: scene{clock: true}, run: databaseClock},
		{name: "replica-clock", line: "the servers' clocks are an hour off PostgreSQL's", ownPostgres: true, scene: scene{clock: true}, run: replicaClock},
		{name: "frozen-transaction", line: "a server is frozen inside a transaction: the others go on", ownPostgres: true, run: frozenTransaction},
		{name: "outage", line: "all servers are away for longer than the leases", run: outage},
		{name: "retry-limit", line: "a step fails until its retry limit: it ends, with a reason to read", run: retryLimit},
		{name: "mass-expiry", line: "5,000 leases run out at once, one row of them locked by somebody", run: massExpiry},
		{name: "migration", line: "a newer schema is migrated to while the servers work", ownPostgres: true, run: migration},
	}
}
