package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// firstDelivery is the number of the delivery that a dispatch makes. A replay's is what it has
// raised it to; none is read later, when another replay may have raised it again.
const firstDelivery = 1

// Contents reads what workers get with live leases. Payloads never change while a lease
// lives, so no transaction holds the statements together.
func (s *Store) Contents(ctx context.Context, attempts []uuid.UUID) ([]scheduler.LeaseView, error) {
	views, err := s.contents(ctx, attempts)
	return views, outwardOrNil(ctx, "read leases", err)
}

func (s *Store) contents(ctx context.Context, attempts []uuid.UUID) ([]scheduler.LeaseView, error) {
	rows, err := s.reads.LeaseContents(ctx, attempts)
	if err != nil {
		return nil, err
	}
	views := make([]scheduler.LeaseView, len(rows))
	for i := range rows {
		if views[i], err = leaseView(&rows[i]); err != nil {
			return nil, err
		}
	}
	return views, s.fill(ctx, views)
}

// Fill adds payloads to leases whose rows are known: what a dispatch has just written is not read again.
func (s *Store) Fill(ctx context.Context, leases []scheduler.LeaseView) error {
	return outwardOrNil(ctx, "read payloads", s.fill(ctx, leases))
}

func (s *Store) fill(ctx context.Context, leases []scheduler.LeaseView) error {
	for _, c := range fill(ctx, leases) {
		if err := c(s.reads); err != nil {
			return err
		}
	}
	return nil
}

// fill adds their payloads to leases.
func fill(ctx context.Context, leases []scheduler.LeaseView) []call {
	if len(leases) == 0 {
		return nil
	}
	at := make(map[uuid.UUID]*scheduler.LeaseView, len(leases))
	steps := make([]uuid.UUID, len(leases))
	var parents []uuid.UUID
	for i := range leases {
		v := &leases[i]
		steps[i], at[v.StepID] = v.StepID, v
		if v.ParentBytes > 0 && !v.ParentOutputsOmitted {
			parents = append(parents, v.StepID)
		}
	}
	list := []call{func(q *dbsqlc.Queries) error {
		payloads, err := readPayloads(ctx, q, steps, roleInput, roleCheckpoint)
		for id, v := range at {
			v.Input, v.Checkpoint = payloads[payloadKey{id, roleInput}], payloads[payloadKey{id, roleCheckpoint}]
		}
		return err
	}}
	if len(parents) == 0 {
		return list
	}
	return append(list, func(q *dbsqlc.Queries) error {
		rows, err := q.ParentOutputs(ctx, parents)
		for _, r := range rows {
			v := at[r.ChildID]
			if v.ParentOutputs == nil {
				v.ParentOutputs = map[string]*task.Payload{}
			}
			v.ParentOutputs[r.Name] = &task.Payload{JSON: r.IsJson, Body: r.Body, ContentType: r.ContentType}
		}
		return wrap("read parents' outputs", err)
	})
}

func leaseView(r *dbsqlc.LeaseContentsRow) (scheduler.LeaseView, error) {
	failure, err := fromJSON[task.Failure](r.Failure)
	if err != nil {
		return scheduler.LeaseView{}, err
	}
	labels, err := fromJSONMap(r.Labels)
	if err != nil {
		return scheduler.LeaseView{}, err
	}
	trace, err := fromJSONMap(r.TraceContext)
	if err != nil {
		return scheduler.LeaseView{}, err
	}
	return scheduler.LeaseView{
		ExecutionID: r.ExecutionID, ExecutionName: r.ExecutionName, StepID: r.StepID, StepName: r.StepName,
		Capability: r.Capability, AttemptID: r.AttemptID, AttemptNumber: int(r.Number), LeaseVersion: r.LeaseVersion,
		ExpiresAt: r.ExpiresAt.Time.UTC(), Remaining: fromInterval(r.Remaining),
		StartToCloseAt: r.StartToCloseAt.Time.UTC(), StartToCloseRemaining: fromInterval(r.StartToCloseRemaining),
		ParentBytes: int(r.ParentBytes), ParentOutputsOmitted: int(r.ParentBytes) > task.MaxParentBytes, PreviousFailure: failure, Labels: labels,
		TraceContext: trace, WorkerID: r.WorkerID, RequestID: r.RequestID, Delivery: firstDelivery,
	}, nil
}

// Lookup tells how polls stand. It decides nothing: dispatch looks again.
func (s *Store) Lookup(ctx context.Context, keys []scheduler.PollKey) ([]scheduler.PollState, error) {
	var states []scheduler.PollState
	err := s.readOnly(ctx, "look up polls", func(q *dbsqlc.Queries) error {
		var err error
		states, err = lookup(ctx, q, keys)
		return err
	})
	return states, err
}

func lookup(ctx context.Context, q *dbsqlc.Queries, keys []scheduler.PollKey) ([]scheduler.PollState, error) {
	workers, err := workerStates(ctx, q, keys)
	if err != nil {
		return nil, err
	}
	live, answered, err := requestStates(ctx, q, keys)
	if err != nil {
		return nil, err
	}
	states := make([]scheduler.PollState, len(keys))
	var strangers []uuid.UUID // sessions that are not their worker's
	for i, k := range keys {
		st := scheduler.PollState{Worker: workers[k.WorkerID]}
		if _, found := workers[k.WorkerID]; !found {
			st.Err = &scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: k.WorkerID.String()}
		} else if st.Worker.SessionID != k.SessionID {
			strangers = append(strangers, k.SessionID)
		}
		asked := scheduler.PollKey{SessionID: k.SessionID, RequestID: k.RequestID}
		st.Live, st.Answered = live[asked], answered[asked]
		states[i] = st
	}
	if len(strangers) == 0 {
		return states, nil
	}
	ended, err := sessionsByID(ctx, q, strangers)
	if err != nil {
		return nil, err
	}
	for i, k := range keys {
		if states[i].Err == nil && states[i].Worker.SessionID != k.SessionID {
			states[i].Err = strangerError(k.WorkerID, k.SessionID, ended)
		}
	}
	return states, nil
}

func workerStates(ctx context.Context, q *dbsqlc.Queries, keys []scheduler.PollKey) (map[uuid.UUID]scheduler.WorkerState, error) {
	ids := set{}
	for _, k := range keys {
		ids[k.WorkerID] = true
	}
	rows, err := q.FindWorkers(ctx, ids.ids())
	if err != nil {
		return nil, fmt.Errorf("find workers: %w", err)
	}
	states := make(map[uuid.UUID]scheduler.WorkerState, len(rows))
	for i := range rows {
		states[rows[i].ID] = workerState(&rows[i])
	}
	return states, nil
}

func workerState(w *dbsqlc.FindWorkersRow) scheduler.WorkerState {
	return scheduler.WorkerState{
		SessionID: w.SessionID.UUID, Namespace: w.Namespace, Node: w.Node, Slots: int(w.Slots),
		Capabilities: w.Capabilities, Draining: w.Drained,
	}
}

func requestStates(ctx context.Context, q *dbsqlc.Queries, keys []scheduler.PollKey) (map[scheduler.PollKey][]uuid.UUID, map[scheduler.PollKey]bool, error) {
	var p dbsqlc.LeasesOfRequestsParams
	for _, k := range keys {
		if k.RequestID != "" {
			p.WorkerIds = append(p.WorkerIds, k.WorkerID)
			p.SessionIds = append(p.SessionIds, k.SessionID)
			p.RequestIds = append(p.RequestIds, k.RequestID)
		}
	}
	if len(p.WorkerIds) == 0 {
		return nil, nil, nil
	}
	rows, err := q.AnsweredRequests(ctx, dbsqlc.AnsweredRequestsParams{SessionIds: p.SessionIds, RequestIds: p.RequestIds})
	if err != nil {
		return nil, nil, fmt.Errorf("read answered polls: %w", err)
	}
	answered := make(map[scheduler.PollKey]bool, len(rows))
	for _, r := range rows {
		answered[scheduler.PollKey{SessionID: r.SessionID, RequestID: r.RequestID}] = true
	}
	if len(answered) == 0 {
		return nil, answered, nil
	}
	leases, err := q.LeasesOfRequests(ctx, p)
	if err != nil {
		return nil, nil, fmt.Errorf("read polls' leases: %w", err)
	}
	live := map[scheduler.PollKey][]uuid.UUID{}
	for _, r := range leases {
		k := scheduler.PollKey{SessionID: r.SessionID, RequestID: r.RequestID}
		live[k] = append(live[k], r.AttemptID)
	}
	return live, answered, nil
}

// Replay raises the delivery of live leases, so that an earlier one cannot hand them back,
// and returns them.
func (s *Store) Replay(ctx context.Context, attempts []uuid.UUID) ([]scheduler.LeaseView, error) {
	var raised []dbsqlc.RaiseDeliveriesRow
	err := s.tx(ctx, "replay", func(ctx context.Context, t *txn) error {
		var err error
		raised, err = t.q.RaiseDeliveries(ctx, attempts)
		return err
	})
	if err != nil {
		return nil, err
	}
	delivery := make(map[uuid.UUID]int, len(raised))
	live := make([]uuid.UUID, len(raised))
	for i, r := range raised {
		delivery[r.AttemptID], live[i] = int(r.Delivery), r.AttemptID
	}
	views, err := s.Contents(ctx, live)
	for i := range views {
		views[i].Delivery = delivery[views[i].AttemptID]
	}
	return views, err
}

// Return hands back grants that reached nobody: RELEASED, as if they had never been made.
func (s *Store) Return(ctx context.Context, grants []scheduler.Undelivered) error {
	return s.tx(ctx, "return grants", func(ctx context.Context, t *txn) error {
		var p dbsqlc.DeleteUndeliveredLeasesParams
		for _, g := range grants {
			p.AttemptIds = append(p.AttemptIds, g.AttemptID)
			p.LeaseVersions = append(p.LeaseVersions, g.LeaseVersion)
			p.Deliveries = append(p.Deliveries, int32(g.Delivery))
		}
		g, where, err := t.lockAttempts(ctx, p.AttemptIds)
		if err != nil {
			return err
		}
		if _, err := t.q.LockLeasesWaiting(ctx, p.AttemptIds); err != nil {
			return fmt.Errorf("lock leases: %w", err)
		}
		returned, err := t.q.DeleteUndeliveredLeases(ctx, p)
		if err != nil {
			return fmt.Errorf("delete undelivered leases: %w", err)
		}
		now, err := t.q.Now(ctx)
		if err != nil {
			return err
		}
		for _, id := range returned {
			step := where[id]
			if err := g.of(step).ReturnLease(now.Time.UTC(), step, rand.Float64()); err != nil {
				return fmt.Errorf("return attempt %s: %w", id, err)
			}
		}
		return g.finish(ctx, now.Time.UTC())
	})
}

// lockAttempts locks the executions of attempts, waiting, and reads their steps.
func (t *txn) lockAttempts(ctx context.Context, attempts []uuid.UUID) (*gate, map[uuid.UUID]uuid.UUID, error) {
	rows, err := t.q.FindAttempts(ctx, attempts)
	if err != nil {
		return nil, nil, fmt.Errorf("find attempts: %w", err)
	}
	executions, steps := set{}, []uuid.UUID{}
	where := make(map[uuid.UUID]uuid.UUID, len(rows))
	for _, r := range rows {
		executions[r.ExecutionID] = true
		steps = append(steps, r.StepID)
		where[r.ID] = r.StepID
	}
	g, err := t.lock(ctx, executions.ids(), true)
	if err != nil {
		return nil, nil, err
	}
	return g, where, g.readSteps(ctx, steps)
}

// finish settles and saves.
func (g *gate) finish(ctx context.Context, now time.Time) error {
	if err := g.settle(ctx, now); err != nil {
		return err
	}
	return g.save(ctx)
}

// Touch writes signs of life, and tells how the workers stand.
func (s *Store) Touch(ctx context.Context, workers []uuid.UUID) (map[uuid.UUID]scheduler.WorkerState, error) {
	if err := s.reads.TouchWorkers(ctx, workers); err != nil {
		return nil, outwardOrNil(ctx, "touch workers", err)
	}
	rows, err := s.reads.FindWorkers(ctx, workers)
	states := make(map[uuid.UUID]scheduler.WorkerState, len(rows))
	for i := range rows {
		states[rows[i].ID] = workerState(&rows[i])
	}
	return states, outwardOrNil(ctx, "find workers", err)
}
