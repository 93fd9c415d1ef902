package broken

// fault is a line of the server that is changed, and who must notice.
type fault struct {
	name     string
	breaks   string // what does not hold any more
	file     string // from the module's folder
	old, new string // old stands there exactly once
	drills   string // that are run, with commas: each of them must fail
}

const (
	postgres  = "server/internal/postgres/"
	statement = postgres + "internal/dbsqlc/"
)

// faults are what the drills are tried with. Each was a bug of some queue or other.
func faults() []fault {
	return []fault{
		{
			"late-success-taken", "a report that comes after its lease is over is refused",
			postgres + "report.go", `		if l.Replayed() {`, `		if true {`, "worker-frozen",
		},
		{
			"events-forgotten", "every change is written as an event, with it",
			postgres + "save.go", `	add("insert events", len(w.events.Ids),`, `	add("insert events", len(w.events.Ids)/2,`, "server-kills",
		},
		{
			"application-clock", "all times are PostgreSQL's",
			postgres + "attempt_dispatch.go", `			at = r.At.Time.UTC()`, `			at = time.Now().UTC()`, "replica-clock",
		},
		{
			"no-skip-locked", "a locked row keeps nobody from the others",
			statement + "leases.sql.go", `ORDER BY attempt_id FOR UPDATE SKIP LOCKED`, `ORDER BY attempt_id FOR UPDATE`, "mass-expiry",
		},
		{
			"hints-are-truth", "a hint that is withheld costs a second, not the work",
			"server/internal/scheduler/dispatcher.go", `	lookAtLeast    = time.Second `, `	lookAtLeast    = time.Hour `, "hints-withheld",
		},
		{
			"told-too-long", "a lease lasts as long as its holder was told",
			"server/internal/grpcapi/encode_worker.go", `LeaseDuration: span(v.Remaining), RenewAfter: renewAfter(v.Remaining),`,
			`LeaseDuration: span(10 * v.Remaining), RenewAfter: renewAfter(10 * v.Remaining),`, "worker-killed",
		},
		{
			"publish-unconfirmed", "an event counts as published only when its sink has it",
			"server/internal/outbox/relay.go", `		cut, err := r.try(ctx, &run.Events[i])`, `		cut, _ := r.try(ctx, &run.Events[i]); err := error(nil)`, "sink-away",
		},
		{
			"answers-before-disk", "what was answered OK outlives a crash of PostgreSQL",
			postgres + "store.go", `		"jit":                                 "off",`, `		"jit": "off", "synchronous_commit": "off",`, "postgres-killed",
		},
		{
			"tries-not-counted", "a step ends at its retry limit",
			"server/internal/task/step.go", `		s.d.Counted++`, `		s.d.Counted = min(s.d.Counted, 1)`, "retry-limit",
		},
		{
			"token-without-timeline", "a fencing token is never given twice, over failovers too",
			statement + "leases.sql.go", `pg_walfile_name(pg_current_wal_lsn())`, `'000000010000000000000001'::text`, "failover-async",
		},
		{
			"keys-forgotten", "an idempotency key is one execution, whoever asks how often",
			postgres + "enqueue.go", `n.Spec.IdempotencyKey)
	p.ContentHashes`, `"")
	p.ContentHashes`, "server-kills",
		},
		{
			"frozen-keeps-locks", "a server that is frozen inside a transaction holds its locks for seconds only",
			postgres + "store.go", `		"idle_in_transaction_session_timeout": "5s",`, `		"idle_in_transaction_session_timeout": "0",`, "frozen-transaction",
		},
		{
			"parents-not-awaited", "a step starts after its parents have succeeded",
			"server/internal/task/enqueue.go", `		if s.d.WaitingParents == 0 {`, `		if s.d.WaitingParents >= 0 {`, "worker-killed",
		},
	}
}
