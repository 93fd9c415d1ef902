package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// NextDue is how long until something is due, of each of the groups of which something waits.
func (s *Store) NextDue(ctx context.Context, groups []scheduler.Group) ([]scheduler.DueGroup, error) {
	var p dbsqlc.NextRequestsDueParams
	for _, g := range groups {
		p.Namespaces = append(p.Namespaces, g.Namespace)
		p.Capabilities = append(p.Capabilities, g.Capability)
		p.Nodes = append(p.Nodes, g.Node)
	}
	rows, err := s.reads.NextRequestsDue(ctx, p)
	due := make([]scheduler.DueGroup, len(rows))
	for i, r := range rows {
		due[i] = scheduler.DueGroup{Group: scheduler.Group{Namespace: r.Namespace, Capability: r.Capability, Node: r.Node}, In: fromInterval(r.Remaining)}
	}
	return due, outwardOrNil(ctx, "next due", err)
}

// Claim counts the workers' free slots, then claims what their polls can take. Nothing is
// decided for good: dispatch counts again under the workers' locks. A claim that a crash of
// PostgreSQL takes away has only kept others from claiming the same, so that its commit need not
// wait for the disk; a dispatch's does, and the claim lies before it.
func (s *Store) Claim(ctx context.Context, c scheduler.ClaimCommand) (scheduler.Claimed, error) {
	var claimed scheduler.Claimed
	err := s.tx(ctx, "claim", func(ctx context.Context, t *txn) error {
		free, err := t.freeSlots(ctx, c.Offers, commitLater(ctx))
		if err != nil {
			return err
		}
		claimed = scheduler.Claimed{Free: free}
		rooms, total := c.Rooms(free)
		if total == 0 {
			return nil
		}
		p := dbsqlc.ClaimRequestsParams{ClaimID: c.ClaimID, ClaimDuration: interval(c.Expires), Batch: int32(min(total, c.Limit))}
		for g, room := range rooms {
			p.Namespaces = append(p.Namespaces, g.Namespace)
			p.Capabilities = append(p.Capabilities, g.Capability)
			p.Nodes = append(p.Nodes, g.Node)
			p.Rooms = append(p.Rooms, int32(room))
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

// freeSlots counts the slots of the offers' workers that are free, for the current sessions. before
// goes the same way.
func (t *txn) freeSlots(ctx context.Context, offers []task.Offer, before call) (map[uuid.UUID]int, error) {
	ids := set{}
	for i := range offers {
		ids[offers[i].WorkerID] = true
	}
	var workers []dbsqlc.FindWorkersRow
	var live map[uuid.UUID]int
	err := t.together(ctx,
		before,
		func(q *dbsqlc.Queries) (err error) {
			workers, err = q.FindWorkers(ctx, ids.ids())
			return wrap("find workers", err)
		},
		func(q *dbsqlc.Queries) (err error) {
			live, err = countLeases(ctx, q, ids.ids())
			return err
		})
	if err != nil {
		return nil, err
	}
	free := make(map[uuid.UUID]int, len(workers))
	for _, w := range workers {
		free[w.ID] = task.Standing{Present: w.SessionID.Valid, Drained: w.Drained, Slots: int(w.Slots), Live: live[w.ID]}.Free()
	}
	return free, nil
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
