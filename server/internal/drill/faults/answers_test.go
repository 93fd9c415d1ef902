package faults

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
)

// attemptRow is an attempt as the tables have it.
type attemptRow struct {
	Attempt   string
	Step      string
	Execution string
	Number    int32
	State     string
	Version   int64
	EndedAt   time.Time
}

// answers compares what the clients were told with the tables.
type answers struct {
	t        *testing.T
	attempts map[string]attemptRow
	calls    []call
	lease    time.Duration
}

// checkAnswers fails the test for every answer that the tables belie, or that should not be.
func checkAnswers(t *testing.T, l *load) {
	t.Helper()
	a := &answers{t: t, attempts: readAttempts(t, l.c), calls: l.rec.all(), lease: l.cfg.lease}
	a.codes()
	a.executions(l)
	a.grants()
	a.reports()
	a.owners()
	a.promises()
	a.summary(l)
}

func readAttempts(t *testing.T, c *cluster) map[string]attemptRow {
	t.Helper()
	rows, err := c.db.Query(t.Context(), `
		SELECT a.id::text, a.step_id::text, s.execution_id::text, a.number, a.state, a.lease_version, a.ended_at
		FROM attempts a JOIN steps s ON s.id = a.step_id`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[attemptRow])
	if err != nil {
		t.Fatal(err)
	}
	byID := make(map[string]attemptRow, len(list))
	for _, a := range list {
		byID[a.Attempt] = a
	}
	return byID
}

// codes: what a client may see of a fault is that a call has to be repeated, or that a lease
// is not its own any more. INTERNAL and UNKNOWN are bugs, and so is any word of SQL.
func (a *answers) codes() {
	for i := range a.calls {
		c := &a.calls[i]
		switch c.code {
		case codes.OK, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		case codes.FailedPrecondition:
			if c.kind != kindReport && c.kind != kindRenew && c.kind != kindCancel {
				a.t.Errorf("%s was refused: %s: %s", c.kind, c.reason, c.message)
			}
		default:
			a.t.Errorf("%s was answered %s %s: %s", c.kind, c.code, c.reason, c.message)
		}
		for _, bad := range []string{"SQLSTATE", "40P01", "40001", "deadlock"} {
			if strings.Contains(c.message, bad) {
				a.t.Errorf("%s was told %q: %s", c.kind, bad, c.message)
			}
		}
	}
}

// executions: each that was answered OK exists once, with the id that was answered; one whose
// cancel was answered OK ended CANCELED.
func (a *answers) executions(l *load) {
	rows, err := l.c.db.Query(a.t.Context(), `SELECT idempotency_key, id::text, state FROM executions WHERE name = 'load'`)
	if err != nil {
		a.t.Fatal(err)
	}
	stored, states := map[string]string{}, map[string]string{}
	var key, id, state string
	if _, err := pgx.ForEachRow(rows, []any{&key, &id, &state}, func() error {
		stored[key], states[id] = id, state
		return nil
	}); err != nil {
		a.t.Fatal(err)
	}
	answered := 0
	for i := range a.calls {
		c := &a.calls[i]
		if c.kind == kindCancel && c.code == codes.OK && states[c.execution] != "CANCELED" {
			a.t.Errorf("the cancel of execution %s was answered OK, and it ended %s", c.execution, states[c.execution])
		}
		if c.kind != kindEnqueue || c.code != codes.OK {
			continue
		}
		answered++
		if stored[c.key] != c.execution {
			a.t.Errorf("execution %s was answered OK for key %s; the tables have %q", c.execution, c.key, stored[c.key])
		}
	}
	if len(stored) != answered {
		a.t.Errorf("%d executions in the tables, %d were answered OK", len(stored), answered)
	}
}

// grants: each is in the tables as it was answered; one that a worker was told of was not
// handed back as undelivered.
func (a *answers) grants() {
	for i := range a.calls {
		c := &a.calls[i]
		if c.kind != kindGrant {
			continue
		}
		row, found := a.attempts[c.attempt]
		switch {
		case !found:
			a.t.Errorf("attempt %s was granted and is not in the tables", c.attempt)
		case row.Number != c.number || row.Version != c.version || row.Step != c.step || row.Execution != c.execution:
			a.t.Errorf("attempt %s was granted as %d with version %d of %s; the tables have %+v", c.attempt, c.number, c.version, c.step, row)
		case row.State == "RELEASED":
			a.t.Errorf("attempt %s was granted to a worker, and was handed back all the same", c.attempt)
		}
	}
}

// reports: one that was answered OK is in the tables with its outcome; one that was refused
// left no such outcome; one that came when the attempt was over was refused.
func (a *answers) reports() {
	for i := range a.calls {
		c := &a.calls[i]
		if c.kind != kindReport {
			continue
		}
		row := a.attempts[c.attempt]
		switch {
		case c.code == codes.OK && row.State != c.outcome:
			a.t.Errorf("attempt %s: %s was answered OK; the tables have %s", c.attempt, c.outcome, row.State)
		case c.code == codes.OK && c.late:
			a.t.Errorf("attempt %s: a report after its end was answered OK", c.attempt)
		case c.code == codes.FailedPrecondition && row.State == c.outcome:
			a.t.Errorf("attempt %s: %s was refused (%s), and is in the tables", c.attempt, c.outcome, c.reason)
		case c.code == codes.FailedPrecondition && row.State != "LOST" && row.State != "TIMED_OUT" && row.State != "CANCELED":
			a.t.Errorf("attempt %s: %s was refused (%s); the tables have %s", c.attempt, c.outcome, c.reason, row.State)
		}
	}
}

// owners: once somebody was told of a later attempt of a step, nobody else renews or ends an
// earlier one. And the lease versions that were answered grow.
func (a *answers) owners() {
	granted := map[string][]*call{} // by step, each attempt when it was first answered
	seen := map[string]bool{}
	for i := range a.calls {
		c := &a.calls[i]
		if c.kind == kindGrant && !seen[c.attempt] {
			seen[c.attempt] = true
			granted[c.step] = append(granted[c.step], c)
		}
	}
	for i := range a.calls {
		c := &a.calls[i]
		acts := c.kind == kindRenew || c.kind == kindReport && !c.replayed
		for _, g := range granted[c.step] {
			if g.number > c.number && g.version <= c.version {
				a.t.Errorf("step %s: attempt %d has version %d, attempt %d has %d", c.step, c.number, c.version, g.number, g.version)
			}
			if acts && c.code == codes.OK && g.number > c.number && c.sent.After(g.got) {
				a.t.Errorf("step %s: %s of attempt %d was answered OK %s after attempt %d was granted",
					c.step, c.kind, c.number, c.sent.Sub(g.got), g.number)
			}
		}
	}
}

// promises: no lease is called lost before it is over. A renewal that was answered OK promises
// the lease's length from when it was sent. All clocks here are one.
func (a *answers) promises() {
	const clockSteps = 50 * time.Millisecond // the wall clock may be set meanwhile
	for i := range a.calls {
		c := &a.calls[i]
		if c.kind != kindRenew || c.code != codes.OK {
			continue
		}
		row := a.attempts[c.attempt]
		until := c.sent.Round(0).Add(a.lease)
		if row.State == "LOST" && row.EndedAt.Before(until.Add(-clockSteps)) {
			a.t.Errorf("attempt %s was LOST at %s; a renewal promised it until %s", c.attempt, row.EndedAt, until)
		}
	}
}

// summary says how much there was, so that an empty test does not pass for a good one.
func (a *answers) summary(l *load) {
	counts := map[string]int{}
	slowest := map[string]time.Duration{}
	late := 0
	for i := range a.calls {
		c := &a.calls[i]
		counts[c.kind+" "+c.code.String()]++
		if c.code == codes.OK {
			slowest[c.kind] = max(slowest[c.kind], c.got.Sub(c.sent).Round(time.Millisecond))
		}
		if c.late && c.code == codes.FailedPrecondition {
			late++
		}
	}
	a.t.Logf("%d attempts, %d late reports refused, watched %d times, deadlocks in PostgreSQL's log: %d\ncalls: %v\nslowest answered OK: %v",
		len(a.attempts), late, l.watch.looks, deadlocks(l.c), counts, slowest)
	if late == 0 && !l.cfg.tame || counts[kindReport+" OK"] == 0 || l.watch.looks == 0 {
		a.t.Errorf("too little happened for this to prove anything")
	}
}

// deadlocks counts those that PostgreSQL found; they are retried inside. -1: not known.
func deadlocks(c *cluster) int {
	if c.pg == nil {
		return -1
	}
	log, err := os.ReadFile(c.pg.LogFile())
	if err != nil {
		return -1
	}
	return strings.Count(string(log), "deadlock detected")
}
