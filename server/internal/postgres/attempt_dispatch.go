package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Dispatch makes attempts and leases of the assignments whose every condition holds under the
// locks. It never waits for a lock: what another transaction holds is left for a later round.
func (s *Store) Dispatch(ctx context.Context, c scheduler.DispatchCommand) (scheduler.Dispatched, error) {
	var done scheduler.Dispatched
	err := s.tx(ctx, "dispatch", func(ctx context.Context, t *txn) error {
		d := &dispatch{t: t, c: c, done: scheduler.Dispatched{Granted: map[uuid.UUID]bool{}}}
		if err := d.run(ctx); err != nil {
			return err
		}
		done = d.done
		return nil
	})
	return done, err
}

// dispatch is one try of a dispatch.
type dispatch struct {
	t    *txn
	c    scheduler.DispatchCommand
	done scheduler.Dispatched

	// What is looked at, each by a statement later than the lock over it.
	ours     map[uuid.UUID]dbsqlc.LockClaimedRequestsRow // by step: the claim is still ours
	made     map[uuid.UUID]dbsqlc.AttemptsOfNumberRow    // by step: the attempt exists
	free     map[int64]bool                              // advisory keys that are ours
	asked    map[int32]bool                              // capabilities whose pause waits for us
	g        *gate
	gone     set // executions that are not there any more
	workers  map[uuid.UUID]dbsqlc.LockWorkersRow
	standing map[uuid.UUID]task.Standing // as counted, and the grants of this dispatch
	loads    map[uuid.UUID]dbsqlc.WorkerLoadsRow
	answered map[scheduler.PollKey]bool
	versions []int64 // fencing tokens, growing
	at       time.Time

	executions set
	granted    []scheduler.DispatchItem
	finish     dbsqlc.DeleteRequestsParams // requests that are dispatched or not needed any more
}

func (d *dispatch) run(ctx context.Context) error {
	list := append(d.lockRequests(ctx), d.lockGates(ctx)...)
	list = append(list, d.lockWorkers(ctx)...)
	list = append(list, func(q *dbsqlc.Queries) (err error) { // after the last lock
		d.versions, d.at, err = d.t.drawVersions(ctx, q, len(d.c.Items))
		return err
	})
	if err := d.t.together(ctx, list...); err != nil {
		return err
	}
	if err := d.findGone(ctx); err != nil {
		return err
	}
	for _, it := range d.c.Items {
		if d.free[dispatchKey(it.StepID, it.Number)] {
			d.decide(it)
		}
	}
	return d.write(ctx)
}

// lockRequests takes the advisory locks of (step, number), those that are free, and locks the
// requests that are still ours; then it looks which attempts exist.
func (d *dispatch) lockRequests(ctx context.Context) []call {
	keys := make([]int64, len(d.c.Items))
	var p dbsqlc.AttemptsOfNumberParams
	for i, it := range d.c.Items {
		keys[i] = dispatchKey(it.StepID, it.Number)
		p.StepIds = append(p.StepIds, it.StepID)
		p.Numbers = append(p.Numbers, int32(it.Number))
	}
	d.free = make(map[int64]bool, len(keys))
	d.ours = make(map[uuid.UUID]dbsqlc.LockClaimedRequestsRow, len(keys))
	d.made = map[uuid.UUID]dbsqlc.AttemptsOfNumberRow{}
	return []call{
		func(q *dbsqlc.Queries) error {
			if d.t.again { // an earlier try may be under way: it has them until it is committed
				rows, err := q.KeyLocks(ctx, keys)
				for _, r := range rows {
					d.free[r.Key] = true
				}
				return wrap("advisory locks", err)
			}
			rows, err := q.TryLocks(ctx, keys)
			for _, r := range rows {
				d.free[r.Key] = r.Locked
			}
			return wrap("advisory locks", err)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.LockClaimedRequests(ctx, dbsqlc.LockClaimedRequestsParams{StepIds: p.StepIds, ClaimID: d.c.ClaimID})
			for _, r := range rows {
				d.ours[r.StepID] = r
			}
			return wrap("lock requests", err)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.AttemptsOfNumber(ctx, p)
			for _, r := range rows {
				d.made[r.StepID] = r
			}
			return wrap("read attempts", err)
		},
	}
}

// lockGates locks the capabilities, so that a pause waits for us, and the executions; then it
// reads the steps, and whether they are paused.
func (d *dispatch) lockGates(ctx context.Context) []call {
	d.g, d.executions = d.t.newGate(), set{}
	steps := make([]uuid.UUID, len(d.c.Items))
	capabilities := map[capabilityKey]bool{}
	for i, it := range d.c.Items {
		steps[i] = it.StepID
		d.executions[it.ExecutionID] = true
		capabilities[capabilityKey{it.Namespace, it.Capability}] = true
	}
	var p dbsqlc.LockCapabilitiesParams
	for k := range capabilities {
		p.Namespaces = append(p.Namespaces, k.namespace)
		p.Names = append(p.Names, k.name)
	}
	return []call{
		func(q *dbsqlc.Queries) error {
			rows, err := q.LockCapabilities(ctx, p)
			d.asked = make(map[int32]bool, len(rows))
			for _, id := range rows {
				d.asked[id] = true
			}
			return wrap("lock capabilities", err)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := lockExecutions(ctx, q, d.executions.ids(), false)
			if err != nil {
				return err
			}
			return d.g.hold(rows)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.StepsByID(ctx, steps)
			if err != nil {
				return fmt.Errorf("read steps: %w", err)
			}
			return d.g.take(rows)
		},
	}
}

// findGone tells executions that are not there from those that another transaction holds.
func (d *dispatch) findGone(ctx context.Context) error {
	d.gone = set{}
	if len(d.g.execs) == len(d.executions) {
		return nil
	}
	there, err := d.t.q.ExistingExecutions(ctx, d.executions.ids())
	if err != nil {
		return fmt.Errorf("find executions: %w", err)
	}
	exists := setOf(there)
	for id := range d.executions {
		if !exists[id] {
			d.gone[id] = true
		}
	}
	return nil
}

// lockWorkers locks the workers, then counts their leases, and looks which are drained and which
// polls were answered.
func (d *dispatch) lockWorkers(ctx context.Context) []call {
	workers := set{}
	for _, it := range d.c.Items {
		workers[it.WorkerID] = true
	}
	ids := workers.ids()
	d.answered = map[scheduler.PollKey]bool{}
	d.workers = make(map[uuid.UUID]dbsqlc.LockWorkersRow, len(ids))
	d.standing = make(map[uuid.UUID]task.Standing, len(ids))
	d.loads = make(map[uuid.UUID]dbsqlc.WorkerLoadsRow, len(ids))
	list := []call{
		func(q *dbsqlc.Queries) error {
			rows, err := q.LockWorkers(ctx, ids)
			for _, w := range rows {
				d.workers[w.ID] = w
				d.standing[w.ID] = task.Standing{Present: w.SessionID.Valid, Slots: int(w.Slots)}
			}
			return wrap("lock workers", err)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.WorkerLoads(ctx, ids)
			for _, w := range rows {
				st := d.standing[w.ID]
				st.Drained, st.Live = w.Drained, int(w.Live)
				d.standing[w.ID], d.loads[w.ID] = st, w
			}
			return wrap("read loads", err)
		},
	}
	var p dbsqlc.AnsweredRequestsParams
	for key := range pollsOf(d.c.Items) {
		p.SessionIds = append(p.SessionIds, key.SessionID)
		p.RequestIds = append(p.RequestIds, key.RequestID)
	}
	if len(p.SessionIds) == 0 {
		return list
	}
	return append(list, func(q *dbsqlc.Queries) error {
		rows, err := q.AnsweredRequests(ctx, p)
		for _, a := range rows {
			d.answered[scheduler.PollKey{SessionID: a.SessionID, RequestID: a.RequestID}] = true
		}
		return wrap("read answered polls", err)
	})
}

// pollsOf are the polls of items that bear a request id.
func pollsOf(items []scheduler.DispatchItem) map[scheduler.PollKey]bool {
	polls := map[scheduler.PollKey]bool{}
	for _, it := range items {
		if it.RequestID != "" {
			polls[scheduler.PollKey{SessionID: it.SessionID, RequestID: it.RequestID}] = true
		}
	}
	return polls
}

// decide looks at one assignment: it is granted, or its request is dropped since nothing
// needs it, or it is left.
func (d *dispatch) decide(it scheduler.DispatchItem) {
	if a, exists := d.made[it.StepID]; exists {
		if a.ClaimID == d.c.ClaimID && a.ID == it.AttemptID {
			d.done.Granted[it.AttemptID] = true // our own commit, whose answer was lost
		}
		d.drop(it)
		return
	}
	r, ours := d.ours[it.StepID]
	if !ours || int(r.AttemptNumber) != it.Number {
		return
	}
	if d.gone[r.ExecutionID] {
		d.drop(it)
		return
	}
	e := d.g.execs[r.ExecutionID]
	if e == nil || !d.asked[r.CapabilityID] || d.g.paused[it.StepID] {
		return
	}
	if !e.Leasable(it.StepID, it.Number) {
		d.drop(it)
		return
	}
	if !d.hasRoom(it) {
		return
	}
	st := d.standing[it.WorkerID]
	st.Live++
	d.standing[it.WorkerID] = st
	d.granted = append(d.granted, it)
	d.finished(it)
}

// hasRoom tells whether the worker may get one more, for this session and this poll.
func (d *dispatch) hasRoom(it scheduler.DispatchItem) bool {
	st := d.standing[it.WorkerID]
	st.Present = st.Present && d.workers[it.WorkerID].SessionID.UUID == it.SessionID
	if st.Hinders() != task.NotHindered {
		return false
	}
	key := scheduler.PollKey{SessionID: it.SessionID, RequestID: it.RequestID}
	if it.RequestID != "" && d.answered[key] {
		key.WorkerID = it.WorkerID
		if !slices.Contains(d.done.Answered, key) {
			d.done.Answered = append(d.done.Answered, key)
		}
		return false
	}
	return true
}

func (d *dispatch) drop(it scheduler.DispatchItem) {
	d.done.Dropped++
	d.finished(it)
}

func (d *dispatch) finished(it scheduler.DispatchItem) {
	d.finish.StepIds = append(d.finish.StepIds, it.StepID)
	d.finish.AttemptNumbers = append(d.finish.AttemptNumbers, int32(it.Number))
}

// write writes the grants, deletes the requests that nothing needs any more, reads what the workers
// get with it unless that is much, and commits, in one round trip.
func (d *dispatch) write(ctx context.Context) error {
	list, err := d.grants(ctx)
	if err != nil {
		return err
	}
	if len(d.finish.StepIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error {
			_, err := q.DeleteRequests(ctx, d.finish)
			return wrap("delete requests", err)
		})
	}
	if d.answerBytes() <= smallAnswers {
		list = append(list, fill(ctx, d.done.Leases)...)
		d.done.Filled = true
	}
	return d.t.last(ctx, "dispatch", list...)
}

// smallAnswers are payloads that delay a commit by less than a round trip of their own.
const smallAnswers = 64 << 10 // bytes

// answerBytes is what the answers for what was granted weigh at most.
func (d *dispatch) answerBytes() (n int) {
	for _, it := range d.granted {
		n += it.AnswerBytes
	}
	return n
}

// grants are the attempts and leases of what was granted.
func (d *dispatch) grants(ctx context.Context) ([]call, error) {
	var attempts dbsqlc.InsertAttemptsParams
	var leases dbsqlc.InsertLeasesParams
	reserve(&attempts, len(d.granted))
	reserve(&leases, len(d.granted))
	answered := make([]scheduler.DispatchItem, 0, len(d.granted))
	d.done.Leases = make([]scheduler.LeaseView, 0, len(d.granted))
	for i, it := range d.granted {
		w := d.workers[it.WorkerID]
		e := d.g.of(it.StepID)
		a, l, err := e.Lease(d.at, it.StepID, task.Grant{
			AttemptID: it.AttemptID, Number: it.Number, WorkerID: it.WorkerID, SessionID: it.SessionID,
			WorkerName: w.Name, Node: w.Node, LeaseVersion: d.versions[i], Duration: it.Duration,
		})
		var late *task.TransitionError
		if errors.As(err, &late) { // a deadline has come since it was claimed: its timer ends the step
			d.done.Dropped++
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lease step %s: %w", it.StepID, err)
		}
		addAttempt(&attempts, a.Data())
		addLease(&leases, a.Data(), l, it, e.Data().ID, d.c.ClaimID)
		view, err := d.view(e, a.Data(), l, it)
		if err != nil {
			return nil, err
		}
		d.done.Leases = append(d.done.Leases, view)
		answered = append(answered, it)
		d.done.Granted[it.AttemptID] = true
		d.done.Waited = append(d.done.Waited, max(d.at.Sub(d.ours[it.StepID].AvailableAt.Time), 0))
	}
	list := d.g.writes().calls(ctx)
	if len(attempts.Ids) == 0 {
		return list, nil
	}
	list = append(list,
		func(q *dbsqlc.Queries) error { return wrap("insert attempts", q.InsertAttempts(ctx, attempts)) },
		func(q *dbsqlc.Queries) error { return wrap("insert leases", q.InsertLeases(ctx, leases)) })
	list = append(list, d.moveFloors(ctx)...)
	var polls dbsqlc.InsertAnsweredRequestsParams
	for key := range pollsOf(answered) {
		polls.SessionIds = append(polls.SessionIds, key.SessionID)
		polls.RequestIds = append(polls.RequestIds, key.RequestID)
	}
	if len(polls.SessionIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("remember polls", q.InsertAnsweredRequests(ctx, polls)) })
	}
	return list, nil
}

// view is what the worker gets: all of it is known here but the payloads.
func (d *dispatch) view(e *task.Execution, a task.AttemptData, l task.LeaseData, it scheduler.DispatchItem) (scheduler.LeaseView, error) {
	x, s, row := e.Data(), e.Step(it.StepID), d.g.rows[d.g.stepOf[it.StepID]]
	labels, err := fromJSONMap(row.Labels)
	if err != nil {
		return scheduler.LeaseView{}, err
	}
	trace, err := fromJSONMap(row.TraceContext)
	if err != nil {
		return scheduler.LeaseView{}, err
	}
	data := s.Data()
	return scheduler.LeaseView{
		ExecutionID: x.ID, ExecutionName: x.Name, StepID: data.ID, StepName: data.Name, Capability: data.Capability,
		AttemptID: a.ID, AttemptNumber: a.Number, LeaseVersion: a.LeaseVersion, ExpiresAt: l.ExpiresAt, Remaining: l.ExpiresAt.Sub(d.at),
		StartToCloseAt: a.StartToCloseAt, StartToCloseRemaining: a.StartToCloseAt.Sub(d.at), ParentBytes: data.ParentBytes,
		ParentOutputsOmitted: s.OmitsParents(), PreviousFailure: data.Failure, Labels: labels, TraceContext: trace,
		WorkerID: it.WorkerID, RequestID: it.RequestID, Delivery: firstDelivery,
	}, nil
}

// drawVersions draws the clock and n lease versions in growing order.
func (t *txn) drawVersions(ctx context.Context, q *dbsqlc.Queries, n int) ([]int64, time.Time, error) {
	var rows []dbsqlc.DrawLeaseVersionsRow
	var err error
	if t.s.epoch > 0 {
		var own []dbsqlc.DrawLeaseVersionsOfEpochRow
		own, err = q.DrawLeaseVersionsOfEpoch(ctx, dbsqlc.DrawLeaseVersionsOfEpochParams{Epoch: t.s.epoch, N: int32(n)})
		for _, r := range own {
			rows = append(rows, dbsqlc.DrawLeaseVersionsRow(r))
		}
	} else {
		rows, err = q.DrawLeaseVersions(ctx, int32(n))
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("draw lease versions: %w", err)
	}
	versions := make([]int64, len(rows))
	at := time.Time{}
	for i, r := range rows {
		versions[i] = r.LeaseVersion
		if r.At.Time.After(at) {
			at = r.At.Time.UTC()
		}
	}
	slices.Sort(versions)
	return versions, at, nil
}

func addAttempt(p *dbsqlc.InsertAttemptsParams, d task.AttemptData) {
	p.Ids = append(p.Ids, d.ID)
	p.StepIds = append(p.StepIds, d.StepID)
	p.Numbers = append(p.Numbers, int32(d.Number))
	p.Rounds = append(p.Rounds, int32(d.Round))
	p.WorkerIds = append(p.WorkerIds, d.WorkerID)
	p.SessionIds = append(p.SessionIds, d.SessionID)
	p.WorkerNames = append(p.WorkerNames, d.WorkerName)
	p.Nodes = append(p.Nodes, d.Node)
	p.LeaseVersions = append(p.LeaseVersions, d.LeaseVersion)
	p.LeasedAts = append(p.LeasedAts, instant(d.LeasedAt))
	p.StartToCloseAts = append(p.StartToCloseAts, instant(d.StartToCloseAt))
	p.LeaseEntries = append(p.LeaseEntries, d.LeaseEntry)
}

func addLease(p *dbsqlc.InsertLeasesParams, d task.AttemptData, l task.LeaseData, it scheduler.DispatchItem, execution, claim uuid.UUID) {
	p.AttemptIds = append(p.AttemptIds, d.ID)
	p.StepIds = append(p.StepIds, d.StepID)
	p.ExecutionIds = append(p.ExecutionIds, execution)
	p.WorkerIds = append(p.WorkerIds, d.WorkerID)
	p.SessionIds = append(p.SessionIds, d.SessionID)
	p.ClaimIds = append(p.ClaimIds, claim)
	p.RequestIds = append(p.RequestIds, it.RequestID)
	p.LeaseVersions = append(p.LeaseVersions, d.LeaseVersion)
	p.ExpiresAts = append(p.ExpiresAts, instant(l.ExpiresAt))
	p.CapAts = append(p.CapAts, instant(l.CapAt))
	p.Durations = append(p.Durations, interval(it.Duration))
}
