package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// newTestSite is a site on the tests' PostgreSQL, with a server.
func newTestSite(t *testing.T) *site {
	t.Helper()
	cfg := tiny(t)
	cfg.DatabaseURL = shared.databases.New(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	st, err := newStage(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.tearDown(); err != nil {
			t.Error(err)
		}
	})
	s, err := st.newSite(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// copyOf is a site on a copy of the tables, with a copy of what clients were told.
func (s *site) copyOf(t *testing.T, i int) *site {
	t.Helper()
	ctx := context.Background()
	c := &site{stage: s.stage, database: fmt.Sprintf("%s_copy_%d", s.database, i), ledger: newLedger()}
	if err := s.admin(ctx, "CREATE DATABASE "+c.database+" TEMPLATE "+s.database); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.url, err = withDatabase(s.stage.url, c.database); err != nil {
		t.Fatal(err)
	}
	if c.db, err = pgxpool.New(ctx, c.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	maps.Copy(c.ledger.accepted, s.ledger.accepted)
	maps.Copy(c.ledger.asked, s.ledger.asked)
	maps.Copy(c.ledger.steps, s.ledger.steps)
	return c
}

// again adds an attempt of some state to one step.
func again(state string) string {
	return `CREATE TEMPORARY TABLE another AS SELECT * FROM attempts LIMIT 1;
		UPDATE another SET id = gen_random_uuid(), number = 2, state = '` + state + `';
		INSERT INTO attempts SELECT * FROM another`
}

// TestVerdict_FindsWhatIsWrong: after a run that is good, what was kept of it is tampered with.
func TestVerdict_FindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newTestSite(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	tr := &trial{stage: s.stage}
	if _, err := tr.drain(ctx, s, 20, oneStep); err != nil {
		t.Fatal(err)
	}
	if v, err := s.verdict(ctx, true); err != nil || v != (verdict{}) {
		t.Fatalf("a good run: %+v, %v", v, err)
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(s.ledger.steps)), func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
	var copied uuid.UUID
	if err := s.db.QueryRow(ctx, `SELECT execution_id FROM steps WHERE id = $1`, first).Scan(&copied); err != nil {
		t.Fatal(err)
	}
	s.db.Close() // A database can be copied when nobody uses it.
	s.db = nil
	// The execution of one step becomes a copy in a backlog, and the step's only lease was taken away.
	const firstStep = `(SELECT min(id::text)::uuid FROM steps)`
	const backlog = `UPDATE executions SET name = 'filler' WHERE id = (SELECT execution_id FROM steps WHERE id = ` + firstStep + `);
		UPDATE steps SET state = 'READY' WHERE id = ` + firstStep + `; UPDATE attempts SET state = 'LOST' WHERE step_id = ` + firstStep
	taken := func(l *ledger, runs int32) {
		delete(l.asked, l.accepted[copied])
		delete(l.accepted, copied)
		l.steps[first] = tally{runs: runs}
	}
	anyOf := func(steps map[uuid.UUID]tally) uuid.UUID {
		for id := range steps {
			return id
		}
		return uuid.Nil
	}
	for i, tt := range []struct {
		what     string
		sql      string
		told     func(l *ledger)
		unfinish bool // what was accepted should wait
		want     verdict
	}{
		{what: "nothing"},
		{what: "an execution is gone", sql: `DELETE FROM executions WHERE id = (SELECT min(id::text)::uuid FROM executions)`, want: verdict{lost: 1}},
		{what: "an execution failed", sql: `UPDATE executions SET state = 'FAILED' WHERE id = (SELECT min(id::text)::uuid FROM executions)`, want: verdict{lost: 1}},
		{what: "a step is open again", sql: `UPDATE steps SET state = 'READY' WHERE id = (SELECT min(id::text)::uuid FROM steps)`, want: verdict{lost: 1}},
		{what: "an attempt is gone", sql: `DELETE FROM attempts WHERE id = (SELECT min(id::text)::uuid FROM attempts)`, want: verdict{lost: 2}},
		{what: "an attempt was lost, and there was another", sql: again("LOST"), want: verdict{doubled: 1}},
		{what: "two attempts succeeded", sql: again("SUCCEEDED"), want: verdict{doubled: 1}},
		{what: "an attempt was handed back: nobody had it", sql: again("RELEASED")},
		{what: "an execution that nobody asked for", told: func(l *ledger) {
			for id := range l.accepted {
				delete(l.accepted, id)
				return
			}
		}, want: verdict{doubled: 1}},
		{what: "an execution of which nobody knows", told: func(l *ledger) {
			for id := range l.accepted {
				delete(l.accepted, id)
				break
			}
			l.doubt(1)
		}},
		{what: "a handler ran twice", told: func(l *ledger) { l.run(anyOf(l.steps).String()) }, want: verdict{doubled: 1}},
		{what: "a step succeeded that nobody ran", told: func(l *ledger) { delete(l.steps, anyOf(l.steps)) }, want: verdict{lost: 1}},
		{what: "an execution was accepted that never was", told: func(l *ledger) { l.accept("another", uuid.NewString()) }, want: verdict{lost: 1}},
		{what: "a key was answered with another key's execution", told: func(l *ledger) { l.accept("another", l.asked["7"].String()) }, want: verdict{lost: 1}},
		{what: "a key was answered with two executions", told: func(l *ledger) { l.accept("7", l.asked["8"].String()) }, want: verdict{doubled: 1}},
		{what: "a call was repeated", told: func(l *ledger) { l.accept("7", l.asked["7"].String()) }},
		{what: "a lease of a backlog was taken away", sql: backlog, told: func(l *ledger) { taken(l, 1) }, want: verdict{lost: 1}},
		{what: "a lease of a backlog was given twice, and no attempt of it counts", sql: backlog + `; UPDATE attempts SET state = 'RELEASED' WHERE step_id = ` + firstStep,
			told: func(l *ledger) { taken(l, 2) }, want: verdict{lost: 1, doubled: 1}},
		{what: "a lease of which no table knows", told: func(l *ledger) { l.run(uuid.NewString()) }, want: verdict{lost: 1}},
		{what: "what should wait is over", unfinish: true, want: verdict{lost: 20}},
	} {
		c := s.copyOf(t, i)
		if _, err := c.db.Exec(ctx, tt.sql); err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		if tt.told != nil {
			tt.told(c.ledger)
		}
		if got, err := c.verdict(ctx, !tt.unfinish); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", tt.what, got, err, tt.want)
		}
	}
}
