package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/task"
)

// gate is the executions that a transaction has locked, with what was read of them since.
type gate struct {
	t      *txn
	execs  map[uuid.UUID]*task.Execution
	rows   map[uuid.UUID]*dbsqlc.Execution
	stepOf map[uuid.UUID]uuid.UUID // step → execution, of the steps that were read
	paused set                     // steps that were read, whose capability is paused
	timed  set                     // executions that may have timers

	capabilities map[uuid.UUID]int32 // of the steps that were read
}

func (t *txn) newGate() *gate {
	return &gate{
		t: t, execs: map[uuid.UUID]*task.Execution{}, rows: map[uuid.UUID]*dbsqlc.Execution{},
		stepOf: map[uuid.UUID]uuid.UUID{}, paused: set{}, timed: set{}, capabilities: map[uuid.UUID]int32{},
	}
}

// lock locks executions in order of id. Those that another holds are left out, unless wait.
func (t *txn) lock(ctx context.Context, ids []uuid.UUID, wait bool) (*gate, error) {
	g := t.newGate()
	if len(ids) == 0 {
		return g, nil
	}
	if wait {
		defer t.locking(time.Now())
	}
	rows, err := lockExecutions(ctx, t.q, ids, wait)
	if err != nil {
		return nil, err
	}
	return g, g.hold(rows)
}

func lockExecutions(ctx context.Context, q *dbsqlc.Queries, ids []uuid.UUID, wait bool) ([]dbsqlc.Execution, error) {
	lock := q.LockExecutions
	if wait {
		lock = q.LockExecutionsWaiting
	}
	rows, err := lock(ctx, ids)
	return rows, wrap("lock executions", err)
}

// hold takes in the rows of executions that were locked.
func (g *gate) hold(rows []dbsqlc.Execution) error {
	for i := range rows {
		d, err := executionData(&rows[i])
		if err != nil {
			return err
		}
		g.execs[d.ID] = task.RestoreExecution(d)
		g.rows[d.ID] = &rows[i]
		if d.Deadline != nil || d.State == task.ExecutionCreated {
			g.timed[d.ID] = true
		}
	}
	return nil
}

// ids are the executions that are locked.
func (g *gate) ids() []uuid.UUID {
	list := make([]uuid.UUID, 0, len(g.execs))
	for id := range g.execs {
		list = append(list, id)
	}
	return list
}

// readSteps reads steps, with their live attempts, in a statement later than the lock.
func (g *gate) readSteps(ctx context.Context, ids []uuid.UUID) error {
	var missing []uuid.UUID
	for _, id := range ids {
		if _, read := g.stepOf[id]; !read {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	rows, err := g.t.q.StepsByID(ctx, missing)
	if err != nil {
		return fmt.Errorf("read steps: %w", err)
	}
	return g.take(rows)
}

// take takes in the rows of steps that were read after the lock.
func (g *gate) take(rows []dbsqlc.StepsByIDRow) error {
	for i := range rows {
		e := g.execs[rows[i].ExecutionID]
		if e == nil {
			continue // its execution is not locked: nothing may be decided on it
		}
		s, err := restoreStep(&rows[i])
		if err != nil {
			return err
		}
		if d := s.Data(); d.ScheduleToStart > 0 || d.ScheduleToClose > 0 {
			g.timed[rows[i].ExecutionID] = true
		}
		if rows[i].Paused {
			g.paused[rows[i].ID] = true
		}
		e.AddStep(s)
		g.stepOf[rows[i].ID] = rows[i].ExecutionID
		g.capabilities[rows[i].ID] = rows[i].CapabilityID
	}
	return nil
}

// readOpen reads every step of executions that is not terminal.
func (g *gate) readOpen(ctx context.Context, executions []uuid.UUID) error {
	if len(executions) == 0 {
		return nil
	}
	ids, err := g.t.q.OpenStepIDs(ctx, executions)
	if err != nil {
		return fmt.Errorf("read open steps: %w", err)
	}
	return g.readSteps(ctx, ids)
}

// of is the execution of a step that was read, or nil.
func (g *gate) of(step uuid.UUID) *task.Execution { return g.execs[g.stepOf[step]] }

// settle reads what of the graphs is needed, and lets the domain draw the consequences.
func (g *gate) settle(ctx context.Context, now time.Time) error {
	var parents, failed, open []uuid.UUID
	for id, e := range g.execs {
		f := e.Frontier()
		parents = append(parents, f.ChildrenOf...)
		failed = append(failed, f.DescendantsOf...)
		if f.AllOpen {
			open = append(open, id)
		}
	}
	edges, err := g.readChildren(ctx, parents)
	if err != nil {
		return err
	}
	descendants, err := g.readDescendants(ctx, failed)
	if err != nil {
		return err
	}
	if err := g.readOpen(ctx, open); err != nil {
		return err
	}
	for id, e := range g.execs {
		if err := e.Settle(now, edges[id], descendants[id]); err != nil {
			return fmt.Errorf("settle execution %s: %w", id, err)
		}
	}
	return nil
}

func (g *gate) readChildren(ctx context.Context, parents []uuid.UUID) (map[uuid.UUID][]task.Edge, error) {
	if len(parents) == 0 {
		return nil, nil //nolint:nilnil // no edges
	}
	rows, err := g.t.q.ChildEdges(ctx, parents)
	if err != nil {
		return nil, fmt.Errorf("read children: %w", err)
	}
	children := set{}
	edges := map[uuid.UUID][]task.Edge{}
	for _, r := range rows {
		children[r.ChildID] = true
		id := g.stepOf[r.ParentID]
		edges[id] = append(edges[id], task.Edge{Parent: r.ParentID, Child: r.ChildID})
	}
	return edges, g.readSteps(ctx, children.ids())
}

func (g *gate) readDescendants(ctx context.Context, failed []uuid.UUID) (map[uuid.UUID][]uuid.UUID, error) {
	if len(failed) == 0 {
		return nil, nil //nolint:nilnil // none
	}
	rows, err := g.t.q.BlockedDescendants(ctx, failed)
	if err != nil {
		return nil, fmt.Errorf("read descendants: %w", err)
	}
	byExecution := map[uuid.UUID][]uuid.UUID{}
	var ids []uuid.UUID
	for _, r := range rows {
		ids = append(ids, r.ID)
		byExecution[r.ExecutionID] = append(byExecution[r.ExecutionID], r.ID)
	}
	return byExecution, g.readSteps(ctx, ids)
}
