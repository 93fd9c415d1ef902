package bench

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// verdict is what is wrong in the tables in the end.
type verdict struct{ lost, doubled int64 }

// filler names executions that nobody was told of: a backlog that was written by SQL.
const filler = "filler"

// verdict compares the tables with what clients were told. If nothing was to be worked on, it is
// enough that what was accepted waits.
func (s *site) verdict(ctx context.Context, drained bool) (v verdict, err error) {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	for _, look := range []func(context.Context, bool) (verdict, error){s.judgeExecutions, s.judgeSteps} {
		found, err := look(ctx, drained)
		if err != nil {
			return v, fmt.Errorf("compare what was answered with the tables: %w", err)
		}
		v = v.and(found)
	}
	return v, nil
}

func (v verdict) and(w verdict) verdict { return verdict{v.lost + w.lost, v.doubled + w.doubled} }

// judgeExecutions: each one that was accepted is there, once, and as it should be, and no other is.
// An OK for which there is no execution of its own is lost too.
func (s *site) judgeExecutions(ctx context.Context, drained bool) (v verdict, err error) {
	rows, err := s.db.Query(ctx, `SELECT e.id, CASE WHEN $2 THEN e.state = 'SUCCEEDED'
			ELSE e.ended_at IS NULL AND EXISTS (SELECT FROM scheduling_requests r WHERE r.execution_id = e.id) END
		FROM executions e WHERE e.name <> $1`, filler, drained)
	if err != nil {
		return v, err
	}
	var found, surplus int64
	var id uuid.UUID
	var good bool
	_, err = pgx.ForEachRow(rows, []any{&id, &good}, func() error {
		if _, accepted := s.ledger.accepted[id]; !accepted {
			surplus++
			return nil
		}
		found++
		if !good {
			v.lost++
		}
		return nil
	})
	v.lost += int64(len(s.ledger.accepted)) - found + s.ledger.merged
	v.doubled = max(surplus-s.ledger.unsure, 0) + s.ledger.split
	return v, err
}

// judgeSteps: each step that succeeded was run once, in one attempt; each success that was
// answered OK is there. A backlog's steps, whose executions nobody judges, were all reported once
// they were leased.
func (s *site) judgeSteps(ctx context.Context, _ bool) (v verdict, err error) {
	// An attempt that was handed back before anybody got it does not count.
	rows, err := s.db.Query(ctx, `SELECT s.id, s.state = 'SUCCEEDED', COALESCE(a.counted, 0), COALESCE(a.succeeded, 0), COALESCE(e.name = $1, false)
		FROM steps s LEFT JOIN executions e ON e.id = s.execution_id LEFT JOIN (
			SELECT t.step_id, count(*) FILTER (WHERE t.state <> 'RELEASED') AS counted, count(*) FILTER (WHERE t.state = 'SUCCEEDED') AS succeeded
			FROM attempts t GROUP BY t.step_id) a ON a.step_id = s.id
		WHERE s.state = 'SUCCEEDED' OR a.step_id IS NOT NULL`, filler)
	if err != nil {
		return v, err
	}
	seen := make(map[uuid.UUID]bool, len(s.ledger.steps))
	var id uuid.UUID
	var success, copied bool
	var counted, succeeded int64
	_, err = pgx.ForEachRow(rows, []any{&id, &success, &counted, &succeeded, &copied}, func() error {
		told := s.ledger.steps[id]
		seen[id] = true
		if told.reported > 0 && (!success || succeeded == 0) {
			v.lost++
		}
		if success && (told.runs == 0 || succeeded == 0) {
			v.lost++ // Nobody did it.
		}
		if copied && told.runs > 0 && told.reported == 0 {
			v.lost++ // It was taken away.
		}
		v.doubled += max(counted, succeeded, int64(told.runs), 1) - 1
		return nil
	})
	for id, told := range s.ledger.steps {
		if !seen[id] { // No table knows of the lease.
			v.lost++
			v.doubled += int64(max(told.runs, 1)) - 1
		}
	}
	return v, err
}
