package live

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// rowsOf counts the rows of each table, but for what there is one of for all. Of tallies, which are summed
// up, it is what they count.
func rowsOf(t *testing.T, db *pgxpool.Pool) map[string]int64 {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'
		AND tablename NOT IN ('sweeps', 'purges', 'goose_db_version')`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	counts := map[string]int64{}
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			t.Fatal(err)
		}
		counts[table] = 0
	}
	for table := range counts {
		what := "count(*)"
		if table == "attempt_tallies" {
			what = "COALESCE(sum(n), 0)"
		}
		var n int64
		if err := db.QueryRow(t.Context(), "SELECT "+what+" FROM "+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		counts[table] = n
	}
	return counts
}

// TestRemoveTraces_OfTheDrillOnly: of a database that is the user's own nothing of the drill stays, and
// all that was there before does. Broken once: without the statements for requests and tallies.
func TestRemoveTraces_OfTheDrillOnly(t *testing.T) {
	t.Parallel()
	x, client := newExercise(t)
	theirs := *x
	theirs.namespace = "theirs"
	theirs.load = &load{x: &theirs}
	finishOne(t, &theirs, client)
	before := rowsOf(t, x.db)
	finishOne(t, x, client)
	if err := x.removeTraces(context.WithoutCancel(t.Context()), []*exercise{x}); err != nil {
		t.Fatal(err)
	}
	for table, n := range rowsOf(t, x.db) {
		if n != before[table] {
			t.Errorf("%s: %d after the drill, %d before it", table, n, before[table])
		}
		if before[table] == 0 {
			t.Logf("%s: nothing was in it", table)
		}
	}
}

// TestUsersDatabase_AtWorkIsNotTouched: it is refused before its schema is changed.
// Broken once: migrated first.
func TestUsersDatabase_AtWorkIsNotTouched(t *testing.T) {
	t.Parallel()
	url := database.New(t)
	x := &stage{cfg: Config{DatabaseURL: url}, url: url}
	admin, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	// As a server of another version leaves it: with work, and without what came later.
	if _, err := admin.Exec(t.Context(), `DROP SCHEMA public CASCADE; CREATE SCHEMA public;
		CREATE TABLE executions (ended_at timestamptz); CREATE TABLE outbox_events (status text); INSERT INTO executions VALUES (NULL)`); err != nil {
		t.Fatal(err)
	}
	err = x.prepareDatabase(t.Context())
	x.db.Close()
	if err == nil || !strings.Contains(err.Error(), "have not ended") {
		t.Errorf("%v, want a refusal", err)
	}
	if tables := rowsOf(t, admin); len(tables) != 2 {
		t.Errorf("tables %v: the schema was changed", tables)
	}
}
