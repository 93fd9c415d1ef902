package postgres

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// NextDue is how long until something is due, of each of the groups of which something waits.
// Those that look empty are looked at again in full, if that was not done for a second: see
// frontiers.
func (s *Store) NextDue(ctx context.Context, groups []scheduler.Group) ([]scheduler.DueGroup, error) {
	in := map[scheduler.Group]time.Duration{}
	if err := s.survey(ctx, groups, in); err != nil {
		return nil, outward(ctx, fmt.Errorf("next due: %w", err))
	}
	if doubtful := s.frontiers.doubtful(groups); len(doubtful) > 0 {
		if err := s.survey(ctx, doubtful, in); err != nil {
			return nil, outward(ctx, fmt.Errorf("next due: %w", err))
		}
	}
	due := make([]scheduler.DueGroup, 0, len(in))
	for g, wait := range in {
		due = append(due, scheduler.DueGroup{Group: g, In: wait})
	}
	return due, nil
}

// survey looks when something of groups is due.
func (s *Store) survey(ctx context.Context, groups []scheduler.Group, in map[scheduler.Group]time.Duration) error {
	v := s.frontiers.begin(groups, true)
	rows, err := s.reads.SurveyRequests(ctx, v.params)
	if err != nil {
		s.frontiers.failed(v, err)
		return err
	}
	for _, g := range groups {
		delete(in, g)
	}
	for _, l := range s.frontiers.learn(v, rows) {
		if wait, found := in[l.group]; !found || l.due < wait {
			in[l.group] = l.due
		}
	}
	return nil
}

// Claim counts the workers' free slots and looks what waits, then claims what their polls can
// take. Nothing is decided for good: dispatch counts again under the workers' locks. A claim that a
// crash of PostgreSQL takes away has only kept others from claiming the same, so that its commit need
// not wait for the disk; a dispatch's does, and the claim lies before it.
func (s *Store) Claim(ctx context.Context, c scheduler.ClaimCommand) (scheduler.Claimed, error) {
	var claimed scheduler.Claimed
	err := s.tx(ctx, "claim", func(ctx context.Context, t *txn) error {
		free, levels, err := t.lookAround(ctx, c)
		if err != nil {
			return err
		}
		claimed = scheduler.Claimed{Free: free}
		rooms, total := c.Rooms(free)
		if total == 0 {
			return nil
		}
		p := dbsqlc.ClaimRequestsParams{ClaimID: c.ClaimID, ClaimDuration: interval(c.Expires), Batch: int32(min(total, c.Limit))}
		for _, l := range levels {
			if rooms[l.group] == 0 {
				continue
			}
			p.CapabilityIds = append(p.CapabilityIds, l.capabilityID)
			p.Nodes = append(p.Nodes, l.group.Node)
			p.Priorities = append(p.Priorities, l.priority)
			p.Sinces = append(p.Sinces, fromBeginning(l.since))
			p.Rooms = append(p.Rooms, int32(rooms[l.group]))
		}
		if len(p.Rooms) == 0 {
			return nil
		}
		var rows []dbsqlc.ClaimRequestsRow
		err = t.last(ctx, "claim", func(q *dbsqlc.Queries) (err error) {
			rows, err = q.ClaimRequests(ctx, p)
			return wrap("claim requests", err)
		})
		if err != nil {
			return err
		}
		slices.SortFunc(rows, byUrgency)
		for _, r := range rows {
			claimed.Requests = append(claimed.Requests, task.Waiting{
				StepID: r.StepID, Number: int(r.AttemptNumber), ExecutionID: r.ExecutionID, Namespace: r.Namespace, Capability: r.Capability,
				Node: r.Node, AnswerBytes: int(r.AnswerBytes),
			})
		}
		return nil
	})
	return claimed, err
}

func byUrgency(a, b dbsqlc.ClaimRequestsRow) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.AvailableAt.Time.Compare(b.AvailableAt.Time), slices.Compare(a.StepID[:], b.StepID[:]))
}

// commitLater makes the commit one that nobody waits for.
func commitLater(ctx context.Context) call {
	return func(q *dbsqlc.Queries) error { return wrap("commit later", q.CommitLater(ctx)) }
}

// lookAround counts the slots of the offers' workers that are free, for the current sessions, and
// looks at what waits that they can run.
func (t *txn) lookAround(ctx context.Context, c scheduler.ClaimCommand) (map[uuid.UUID]int, []level, error) {
	ids := set{}
	for i := range c.Offers {
		ids[c.Offers[i].WorkerID] = true
	}
	var workers []dbsqlc.FindWorkersRow
	var live map[uuid.UUID]int
	var rows []dbsqlc.SurveyRequestsRow
	v := t.s.frontiers.begin(reached(c), false)
	err := t.together(ctx,
		commitLater(ctx),
		func(q *dbsqlc.Queries) (err error) {
			workers, err = q.FindWorkers(ctx, ids.ids())
			return wrap("find workers", err)
		},
		func(q *dbsqlc.Queries) (err error) {
			live, err = countLeases(ctx, q, ids.ids())
			return err
		},
		func(q *dbsqlc.Queries) (err error) {
			rows, err = q.SurveyRequests(ctx, v.params)
			return wrap("look at requests", err)
		})
	if err != nil {
		return nil, nil, err
	}
	free := make(map[uuid.UUID]int, len(workers))
	for _, w := range workers {
		free[w.ID] = task.Standing{Present: w.SessionID.Valid, Drained: w.Drained, Slots: int(w.Slots), Live: live[w.ID]}.Free()
	}
	return free, t.s.frontiers.learn(v, rows), nil
}

// reached are the groups that offers can serve, if their workers have room.
func reached(c scheduler.ClaimCommand) []scheduler.Group {
	free := map[uuid.UUID]int{}
	for i := range c.Offers {
		free[c.Offers[i].WorkerID] += c.Offers[i].Room
	}
	rooms, _ := c.Rooms(free)
	return slices.Collect(maps.Keys(rooms))
}

func countLeases(ctx context.Context, q *dbsqlc.Queries, workers []uuid.UUID) (map[uuid.UUID]int, error) {
	counts, err := q.CountLeases(ctx, workers)
	if err != nil {
		return nil, fmt.Errorf("count leases: %w", err)
	}
	live := make(map[uuid.UUID]int, len(counts))
	for _, c := range counts {
		live[c.WorkerID] = int(c.Live)
	}
	return live, nil
}

// Free gives claimed requests back.
func (s *Store) Free(ctx context.Context, claim uuid.UUID, steps []uuid.UUID) error {
	return s.tx(ctx, "free claims", func(ctx context.Context, t *txn) error {
		return t.last(ctx, "free claims",
			commitLater(ctx),
			func(q *dbsqlc.Queries) error {
				_, err := q.FreeRequests(ctx, dbsqlc.FreeRequestsParams{ClaimID: claim, StepIds: steps})
				return wrap("free requests", err)
			})
	})
}
