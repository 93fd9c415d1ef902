package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Check reads the tables and tells which invariants are broken, with the first rows that
// break each. It may run while the cluster works: everything is read in one snapshot.
func Check(ctx context.Context, url string) ([]string, error) {
	return check(ctx, url, slices.Concat(attemptRules(), stepRules(), storyRules()))
}

// CheckAtRest is Check, and what holds only when nothing is under way and a worker with free
// slots has polled for each capability since the last change.
func CheckAtRest(ctx context.Context, url string) ([]string, error) {
	return check(ctx, url, slices.Concat(attemptRules(), stepRules(), storyRules(), restRules()))
}

// Part is what CheckPart looks at.
type Part struct {
	Namespace string
	// ClockMoved says that PostgreSQL's clock was set meanwhile: what compares its instants is
	// then left out.
	ClockMoved bool
}

// CheckPart is CheckAtRest of what belongs to one namespace, in which nothing is under way.
func CheckPart(ctx context.Context, url string, part Part) ([]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := narrow(ctx, conn, part.Namespace); err != nil {
		return nil, err
	}
	list := slices.Concat(attemptRules(), stepRules(), storyRules(), restRules())
	if part.ClockMoved {
		list = slices.DeleteFunc(list, func(inv invariant) bool { return slices.Contains(rulesOfTime(), inv.rule) })
	}
	return checkOn(ctx, conn, list)
}

// narrow copies the rows of a namespace into tables of this session, which hide those of the
// same names: the queries of the invariants then see nothing else. Later ones stand on earlier
// ones. The timeline is a view that is cheap for one execution at a time.
func narrow(ctx context.Context, conn *pgx.Conn, namespace string) error {
	const (
		ofExecutions = "FROM %s WHERE %s IN (SELECT id FROM executions)"
		ofSteps      = "FROM %s WHERE %s IN (SELECT id FROM steps)"
	)
	ofNamespace := "FROM %s WHERE %s = '" + strings.ReplaceAll(namespace, "'", "''") + "'"
	for _, t := range []struct{ table, rows, by, indexes string }{
		{"executions", ofNamespace, "namespace", "id"},
		{"workers", ofNamespace, "namespace", "id"},
		{"outbox_events", ofNamespace, "namespace", "aggregate_id"},
		{"steps", ofExecutions, "execution_id", "id execution_id"},
		{"scheduling_requests", ofExecutions, "execution_id", "step_id execution_id"},
		{"leases", ofExecutions, "execution_id", "attempt_id step_id execution_id"},
		{"timers", ofExecutions, "execution_id", "execution_id"},
		{"timeline_entries", ofExecutions, "execution_id", "execution_id"},
		{"outbox_heads", ofExecutions, "aggregate_id", "aggregate_id"},
		{"attempts", ofSteps, "step_id", "id step_id"},
		{"payloads", ofSteps, "step_id", "step_id"},
		{"step_edges", ofSteps, "child_id", "child_id parent_id"},
		{"timeline", "FROM executions e CROSS JOIN LATERAL (SELECT * FROM %s t WHERE t.%s = e.id OFFSET 0) one", "execution_id", "execution_id"},
	} {
		columns := "*"
		if t.table == "timeline" {
			columns = "one.*"
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("CREATE TEMP TABLE %s AS SELECT %s ", t.table, columns)+fmt.Sprintf(t.rows, t.table, t.by))
		for _, column := range strings.Fields(t.indexes) {
			if err == nil { // The queries look rows up one by one: without an index a million takes for ever.
				_, err = conn.Exec(ctx, fmt.Sprintf("CREATE INDEX ON pg_temp.%s (%s)", t.table, column))
			}
		}
		if err == nil {
			_, err = conn.Exec(ctx, "ANALYZE pg_temp."+t.table)
		}
		if err != nil {
			return fmt.Errorf("look at namespace %s: %w", namespace, err)
		}
	}
	return nil
}

// invariant is a query for the rows that break a rule, each as one text.
type invariant struct{ rule, query string }

func check(ctx context.Context, url string, list []invariant) ([]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return checkOn(ctx, conn, list)
}

// checkOn reads everything in one snapshot.
func checkOn(ctx context.Context, conn *pgx.Conn, list []invariant) ([]string, error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	// The tables may just have been filled, without statistics: whole tables are joined here, and no
	// query looks rows up one by one.
	if _, err := tx.Exec(ctx, "SET LOCAL enable_nestloop = off"); err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	return brokenIn(ctx, tx, list)
}

// brokenIn tells what is broken as a transaction sees it.
func brokenIn(ctx context.Context, tx pgx.Tx, list []invariant) ([]string, error) {
	var broken []string
	for _, inv := range list {
		rows, err := tx.Query(ctx, "SELECT broken FROM ("+inv.query+") x (broken) LIMIT 5")
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", inv.rule, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", inv.rule, err)
		}
		for _, f := range found {
			broken = append(broken, inv.rule+": "+f)
		}
	}
	return broken, nil
}
