package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// executionsLookedAt bounds what a page looks at for filters that no index has: names, labels,
// and where live executions stand.
const executionsLookedAt = 40_000

// ListExecutions reads a page, newest first. Those that ended in one way and the live ones are
// each in order by themselves, and are merged.
func (s *Store) ListExecutions(ctx context.Context, q scheduler.ListQuery) (scheduler.ExecutionPage, error) {
	now := time.Time{}
	var rows []dbsqlc.Execution
	var page scheduler.ExecutionPage
	err := s.snapshot(ctx, "list executions", func(db *dbsqlc.Queries) error {
		at, err := db.Now(ctx)
		if err != nil {
			return err
		}
		now = at.Time.UTC()
		p, filtered := listParams(q)
		frontier, bounded := dbsqlc.ListFrontierRow{}, false
		if filtered {
			if frontier, bounded, err = listFrontier(ctx, db, p); err != nil {
				return err
			}
		}
		if bounded {
			p.FromTime, p.FromID = frontier.CreatedAt, frontier.ID
		}
		if rows, err = db.ListExecutions(ctx, p); err != nil {
			return fmt.Errorf("read executions: %w", err)
		}
		switch n := len(rows); {
		case n == q.Limit:
			page.Next = &scheduler.ListPosition{CreatedAt: rows[n-1].CreatedAt.Time.UTC(), ID: rows[n-1].ID}
		case bounded: // what is older was not looked at
			page.Next = &scheduler.ListPosition{CreatedAt: frontier.CreatedAt.Time.UTC(), ID: frontier.ID}
		}
		return nil
	})
	if err != nil {
		return scheduler.ExecutionPage{}, err
	}
	page.Executions = make([]scheduler.ExecutionView, len(rows))
	for i := range rows {
		v, err := executionView(&rows[i], now)
		if err != nil {
			return scheduler.ExecutionPage{}, err
		}
		page.Executions[i] = *v
	}
	return page, nil
}

// listFrontier is how far down a page may look when it looks at rows that are not in it: what
// is above was looked at in every one of the ordered parts.
func listFrontier(ctx context.Context, q *dbsqlc.Queries, p dbsqlc.ListExecutionsParams) (at dbsqlc.ListFrontierRow, bounded bool, err error) {
	parts := len(p.Outcomes)
	if p.Live {
		parts++
	}
	at, err = q.ListFrontier(ctx, dbsqlc.ListFrontierParams{
		Namespace: p.Namespace, Outcomes: p.Outcomes, Live: p.Live, Passed: int32(executionsLookedAt/parts - 1),
		BeforeTime: p.BeforeTime, BeforeID: p.BeforeID, FromTime: p.FromTime, FromID: p.FromID,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return at, false, nil
	}
	return at, err == nil, wrap("find how far to look", err)
}

// listParams tells which of the ordered parts are asked for, between which keys; filtered tells
// that rows of them will be left out.
func listParams(q scheduler.ListQuery) (p dbsqlc.ListExecutionsParams, filtered bool) {
	p = dbsqlc.ListExecutionsParams{
		Namespace: q.Namespace, Name: q.Name, Labels: jsonMap(q.Labels), PageSize: int32(q.Limit), Outcomes: []string{}, LiveStates: []string{},
		BeforeTime: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		FromTime:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
	}
	if p.Labels == nil {
		p.Labels = []byte("{}")
	}
	if q.Before != nil {
		p.BeforeTime, p.BeforeID = instant(q.Before.CreatedAt), q.Before.ID
	} else if !q.CreatedBefore.IsZero() {
		p.BeforeTime, p.BeforeID = instant(q.CreatedBefore), uuid.Nil
	}
	if !q.CreatedAfter.IsZero() {
		p.FromTime = instant(q.CreatedAfter)
	}
	asked := func(s task.ExecutionState) bool { return len(q.States) == 0 || slices.Contains(q.States, s) }
	for _, s := range []task.ExecutionState{task.ExecutionSucceeded, task.ExecutionFailed, task.ExecutionCanceled} {
		if asked(s) {
			p.Outcomes = append(p.Outcomes, string(s))
		}
	}
	live := []task.ExecutionState{task.ExecutionCreated, task.ExecutionQueued, task.ExecutionRunning, task.ExecutionCanceling}
	for _, s := range live {
		if asked(s) {
			p.LiveStates = append(p.LiveStates, string(s))
		}
	}
	p.Live = len(p.LiveStates) > 0
	if len(p.LiveStates) == len(live) {
		p.LiveStates = []string{} // any of them
	}
	return p, q.Name != "" || len(q.Labels) > 0 || len(p.LiveStates) > 0
}
