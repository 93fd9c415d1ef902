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

// CheckPart is CheckAtRest of what belongs to one namespace.
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

// narrow hides the tables behind views of the same names, for this session: the queries of the
// invariants then see one namespace only. Later views stand on earlier ones.
func narrow(ctx context.Context, conn *pgx.Conn, namespace string) error {
	const (
		ofNamespace  = "namespace = '%s'"
		ofExecutions = "%s IN (SELECT id FROM executions)"
		ofSteps      = "%s IN (SELECT id FROM steps)"
	)
	quoted := strings.ReplaceAll(namespace, "'", "''")
	for _, v := range []struct{ table, where string }{
		{"executions", fmt.Sprintf(ofNamespace, quoted)},
		{"workers", fmt.Sprintf(ofNamespace, quoted)},
		{"outbox_events", fmt.Sprintf(ofNamespace, quoted)},
		{"steps", fmt.Sprintf(ofExecutions, "execution_id")},
		{"scheduling_requests", fmt.Sprintf(ofExecutions, "execution_id")},
		{"leases", fmt.Sprintf(ofExecutions, "execution_id")},
		{"timers", fmt.Sprintf(ofExecutions, "execution_id")},
		{"timeline", fmt.Sprintf(ofExecutions, "execution_id")},
		{"timeline_entries", fmt.Sprintf(ofExecutions, "execution_id")},
		{"outbox_heads", fmt.Sprintf(ofExecutions, "aggregate_id")},
		{"attempts", fmt.Sprintf(ofSteps, "step_id")},
		{"payloads", fmt.Sprintf(ofSteps, "step_id")},
		{"step_edges", fmt.Sprintf(ofSteps, "child_id")},
	} {
		if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE TEMP VIEW %s AS SELECT * FROM %s WHERE %s", v.table, v.table, v.where)); err != nil {
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
	// The tables may just have been filled, without statistics: whole tables are joined here.
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
