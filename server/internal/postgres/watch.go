package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Moved tells which executions are not at the revision that is known of them. It is asked often,
// and so is one statement without a transaction around it.
func (s *Store) Moved(ctx context.Context, known []scheduler.Revision) ([]scheduler.Revision, error) {
	var p dbsqlc.MovedExecutionsParams
	p.Ids, p.Revisions = columnsOf(known)
	rows, err := s.reads.MovedExecutions(ctx, p)
	if err != nil {
		return nil, outwardOrNil(ctx, "moved executions", err)
	}
	moved := make([]scheduler.Revision, len(rows))
	for i, r := range rows {
		moved[i] = scheduler.Revision{ID: r.ID, Revision: r.Revision}
	}
	return moved, nil
}

func columnsOf(list []scheduler.Revision) (ids []uuid.UUID, revisions []int64) {
	ids, revisions = make([]uuid.UUID, len(list)), make([]int64, len(list))
	for i, r := range list {
		ids[i], revisions[i] = r.ID, r.Revision
	}
	return ids, revisions
}

// Changes reads executions with their entries after a revision, all in one snapshot, so that the
// entries reach just to what the execution shows. It waits for no place among callers' reads: few
// of it run at once, and each is for many.
func (s *Store) Changes(ctx context.Context, after []scheduler.Revision, limit int) ([]scheduler.Changes, error) {
	var list []scheduler.Changes
	err := s.readOnly(ctx, "changes", func(q *dbsqlc.Queries) error {
		r := changesRead{at: map[uuid.UUID]int{}}
		if err := r.readExecutions(ctx, q, after); err != nil {
			return err
		}
		if err := r.readEntries(ctx, q, after, limit); err != nil {
			return err
		}
		if err := r.readSteps(ctx, q); err != nil {
			return err
		}
		list = r.list
		return nil
	})
	return list, err
}

// changesRead gathers the changes of several executions.
type changesRead struct {
	list []scheduler.Changes
	at   map[uuid.UUID]int // execution → its position in list
}

func (r *changesRead) readExecutions(ctx context.Context, q *dbsqlc.Queries, after []scheduler.Revision) error {
	now, err := q.Now(ctx)
	if err != nil {
		return err
	}
	ids, _ := columnsOf(after)
	rows, err := q.ExecutionsByID(ctx, ids)
	if err != nil {
		return fmt.Errorf("read executions: %w", err)
	}
	for i := range rows {
		view, err := executionView(&rows[i], now.Time.UTC())
		if err != nil {
			return err
		}
		r.at[view.ID] = len(r.list)
		r.list = append(r.list, scheduler.Changes{Execution: view})
	}
	return nil
}

func (r *changesRead) readEntries(ctx context.Context, q *dbsqlc.Queries, after []scheduler.Revision, limit int) error {
	p := dbsqlc.ListTimelineParams{PageSize: int32(limit)}
	p.Ids, p.Afters = columnsOf(after)
	rows, err := q.ListTimeline(ctx, p)
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	for i := range rows {
		entry, err := entryView(&rows[i])
		if err != nil {
			return err
		}
		if at, there := r.at[rows[i].ExecutionID]; there {
			r.list[at].Entries = append(r.list[at].Entries, scheduler.ChangeView{EntryView: entry})
		}
	}
	return nil
}

// stepKey names a step.
type stepKey struct {
	execution uuid.UUID
	name      string
}

// readSteps reads the steps that the entries are about, each once.
func (r *changesRead) readSteps(ctx context.Context, q *dbsqlc.Queries) error {
	var p dbsqlc.StepsByNameParams
	steps := map[stepKey]*scheduler.StepView{}
	for _, c := range r.list {
		for _, e := range c.Entries {
			key := stepKey{c.Execution.ID, e.StepName}
			if _, known := steps[key]; known || e.StepName == "" {
				continue
			}
			steps[key] = nil
			p.ExecutionIds, p.Names = append(p.ExecutionIds, key.execution), append(p.Names, key.name)
		}
	}
	if len(p.Names) == 0 {
		return nil
	}
	rows, err := q.StepsByName(ctx, p)
	if err != nil {
		return fmt.Errorf("read steps: %w", err)
	}
	at := make(map[uuid.UUID]*scheduler.StepView, len(rows))
	ids := make([]uuid.UUID, len(rows))
	for i := range rows {
		row := dbsqlc.ListStepsRow(rows[i])
		view, err := stepView(&row)
		if err != nil {
			return err
		}
		dropDetails(view.Failure)
		ids[i], at[view.ID] = view.ID, &view
		steps[stepKey{row.ExecutionID, row.Name}] = &view
	}
	for _, c := range r.list {
		for i := range c.Entries {
			c.Entries[i].Step = steps[stepKey{c.Execution.ID, c.Entries[i].StepName}]
		}
	}
	return readAttempts(ctx, q, ids, at, scheduler.ExecutionQuery{LastAttempt: true})
}

// dropDetails leaves out what of a failure may be large.
func dropDetails(f *task.Failure) {
	if f != nil {
		f.Details = nil
	}
}
