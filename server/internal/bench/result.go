package bench

// Result is what one run of a scenario measured. --json prints it as one line for each run; a
// field that does not apply to the scenario, or could not be measured there, is left out.
type Result struct {
	// Scenario is its name, such as P2.
	Scenario string `json:"scenario"`
	// Side is who did the work: always "leasehold" here. Others that print the same have names of
	// their own.
	Side string `json:"side"`
	// Count is how much work was measured, in what Unit counts; Seconds how long that took.
	Count   int64   `json:"count"`
	Seconds float64 `json:"seconds"`
	// Rate is Count by Seconds. Of a scenario with points it is that of the last one.
	Rate float64 `json:"rate"`
	// Unit of Rate, such as executions/s.
	Unit string `json:"unit"`
	// Latency is how long what LatencyOf names took, in milliseconds.
	Latency   *Latency `json:"latency_ms,omitempty"`
	LatencyOf string   `json:"latency_of,omitempty"`
	// Errors counts calls that were not answered OK; the clients repeat them.
	Errors int64 `json:"errors"`
	// Lost counts what was answered OK and is not as it should be in the tables in the end:
	// executions that are not there or did not succeed, steps that succeeded though nobody ran
	// them, leases that were taken away, events that did not arrive.
	Lost int64 `json:"lost"`
	// Doubled counts what happened more than once: steps whose handler ran again, attempts beyond
	// the first one that may have run, executions that nobody asked for.
	Doubled int64 `json:"doubled"`
	// Postgres is what the database did for it.
	Postgres *Postgres `json:"postgres,omitempty"`
	// CPU is in seconds for 1,000 units of Count.
	CPU *CPU `json:"cpu_seconds_per_1000,omitempty"`
	// Points are the parts of a scenario that compares with itself; the first one is what the
	// others are compared with. Where there are several pairs, they are those of the last pair.
	Points []Point `json:"points,omitempty"`
	// Ratio compares the last point with the first one.
	Ratio *Ratio `json:"ratio,omitempty"`
	// Figures are what this scenario alone tells, such as kib_per_poll of P7.
	Figures map[string]float64 `json:"figures,omitempty"`
	// Notes are for people: settings that make the figures worth less, for instance.
	Notes []string `json:"notes,omitempty"`
}

// Latency has percentiles in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Postgres is what PostgreSQL did meanwhile, for everything that counts as Count together.
type Postgres struct {
	// Commits are transactions, from pg_stat_database.
	Commits int64 `json:"commits"`
	// WALBytes are those written for one unit of Count.
	WALBytes float64 `json:"wal_bytes_per_execution"`
	// HOTShare is the part of all updates that changed no index, 0 to 1; 0 too without updates.
	HOTShare float64 `json:"hot_share"`
	// DeadTuples are those that wait for vacuum in the end.
	DeadTuples int64 `json:"dead_tuples"`
	// Queries are the statements for one unit of Count, BEGIN and COMMIT among them, from
	// pg_stat_statements; left out where it is not loaded.
	Queries *float64 `json:"queries_per_execution,omitempty"`
}

// CPU is seconds of processor time for 1,000 units of Count.
type CPU struct {
	// Server is that of all server processes together.
	Server float64 `json:"server"`
	// Postgres is that of all PostgreSQL's processes; left out where it runs on another machine.
	Postgres *float64 `json:"postgres,omitempty"`
	// Load is that of this process: producers, workers, and NATS where there is one.
	Load float64 `json:"load"`
}

// Point is one part of a scenario.
type Point struct {
	// Name tells it from the others, such as 1M.
	Name string `json:"name"`
	// Count, Seconds and Rate are as in Result.
	Count   int64   `json:"count"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
	// Latency is as in Result.
	Latency *Latency `json:"latency_ms,omitempty"`
	// Ratio is to the first point: of the rates, or in P5 of the p99 of the latencies. 1 for the first one.
	Ratio float64 `json:"ratio"`
	// Postgres and CPU are as in Result.
	Postgres *Postgres `json:"postgres,omitempty"`
	CPU      *CPU      `json:"cpu_seconds_per_1000,omitempty"`
	// Figures are what this point alone tells.
	Figures map[string]float64 `json:"figures,omitempty"`
}

// Ratio is the median over pairs, with the smallest and the largest.
type Ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Pairs  int     `json:"pairs"`
}
