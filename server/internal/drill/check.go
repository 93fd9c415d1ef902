package drill

import (
	"context"
	"fmt"
	"slices"

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

// invariant is a query for the rows that break a rule, each as one text.
type invariant struct{ rule, query string }

func check(ctx context.Context, url string, list []invariant) ([]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
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
