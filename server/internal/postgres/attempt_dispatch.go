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
	asked    map[int32]bool                              // capabilities whose pause waits for us
	gone     set                                         // executions that are not there any more
	g        *gate
	workers  map[uuid.UUID]dbsqlc.LockWorkersRow
	standing map[uuid.UUID]task.Standing // as counted, and the grants of this dispatch
	answered map[scheduler.PollKey]bool

	granted []scheduler.DispatchItem
	finish  dbsqlc.DeleteRequestsParams // requests that are dispatched or not needed any more
}

func (d *dispatch) run(ctx context.Context) error {
	items, err := d.tryKeys(ctx)
	if err != nil || len(items) == 0 {
		return err
	}
	if err := d.lockRequests(ctx, items); err != nil {
		return err
	}
	if err := d.lockExecutions(ctx); err != nil {
		return err
	}
	if err := d.lockWorkers(ctx, items); err != nil {
		return err
	}
	for _, it := range items {
		d.decide(it)
	}
	if err := d.grant(ctx); err != nil {
		return err
	}
	if len(d.finish.StepIds) == 0 {
		return nil
	}
	if _, err := d.t.q.DeleteRequests(ctx, d.finish); err != nil {
		return fmt.Errorf("delete requests: %w", err)
	}
	return nil
}

// tryKeys takes the advisory locks of (step, number); those that are not free are left.
func (d *dispatch) tryKeys(ctx context.Context) ([]scheduler.DispatchItem, error) {
	keys := make([]int64, len(d.c.Items))
	for i, it := range d.c.Items {
		keys[i] = dispatchKey(it.StepID, it.Number)
	}
	rows, err := d.t.q.TryLocks(ctx, keys)
	if err != nil {
		return nil, fmt.Errorf("advisory locks: %w", err)
	}
	locked := make(map[int64]bool, len(rows))
	for _, r := range rows {
		locked[r.Key] = r.Locked
	}
	var items []scheduler.DispatchItem
	for i, it := range d.c.Items {
		if locked[keys[i]] {
			items = append(items, it)
		}
	}
	return items, nil
}

// lockRequests locks the requests that are still ours, then looks which attempts exist.
func (d *dispatch) lockRequests(ctx context.Context, items []scheduler.DispatchItem) error {
	var p dbsqlc.AttemptsOfNumberParams
	for _, it := range items {
		p.StepIds = append(p.StepIds, it.StepID)
		p.Numbers = append(p.Numbers, int32(it.Number))
	}
	rows, err := d.t.q.LockClaimedRequests(ctx, dbsqlc.LockClaimedRequestsParams{StepIds: p.StepIds, ClaimID: d.c.ClaimID})
	if err != nil {
		return fmt.Errorf("lock requests: %w", err)
	}
	d.ours = make(map[uuid.UUID]dbsqlc.LockClaimedRequestsRow, len(rows))
	for _, r := range rows {
		d.ours[r.StepID] = r
	}
	made, err := d.t.q.AttemptsOfNumber(ctx, p)
	if err != nil {
		return fmt.Errorf("read attempts: %w", err)
	}
	d.made = make(map[uuid.UUID]dbsqlc.AttemptsOfNumberRow, len(made))
	for _, r := range made {
		d.made[r.StepID] = r
	}
	return nil
}

// lockExecutions locks the capabilities, so that a pause waits for us, and the executions,
// and reads the steps under them, and whether they are paused.
func (d *dispatch) lockExecutions(ctx context.Context) error {
	var capabilities []int32
	executions, steps := set{}, make([]uuid.UUID, 0, len(d.ours))
	for _, r := range d.ours {
		executions[r.ExecutionID] = true
		steps = append(steps, r.StepID)
		if !slices.Contains(capabilities, r.CapabilityID) {
			capabilities = append(capabilities, r.CapabilityID)
		}
	}
	rows, err := d.t.q.LockCapabilities(ctx, capabilities)
	if err != nil {
		return fmt.Errorf("lock capabilities: %w", err)
	}
	d.asked = make(map[int32]bool, len(rows))
	for _, id := range rows {
		d.asked[id] = true
	}
	if d.g, err = d.t.lock(ctx, executions.ids(), false); err != nil {
		return err
	}
	if err := d.findGone(ctx, executions); err != nil {
		return err
	}
	return d.g.readSteps(ctx, steps)
}

func (d *dispatch) findGone(ctx context.Context, executions set) error {
	d.gone = set{}
	if len(d.g.execs) == len(executions) {
		return nil
	}
	there, err := d.t.q.ExistingExecutions(ctx, executions.ids())
	if err != nil {
		return fmt.Errorf("find executions: %w", err)
	}
	exists := setOf(there)
	for id := range executions {
		if !exists[id] {
			d.gone[id] = true
		}
	}
	return nil
}

// lockWorkers locks the workers, then counts their leases, and looks which are drained and which
// polls were answered.
func (d *dispatch) lockWorkers(ctx context.Context, items []scheduler.DispatchItem) error {
	ids := set{}
	var p dbsqlc.AnsweredRequestsParams
	for _, it := range items {
		ids[it.WorkerID] = true
		if it.RequestID != "" {
			p.SessionIds = append(p.SessionIds, it.SessionID)
			p.RequestIds = append(p.RequestIds, it.RequestID)
		}
	}
	rows, err := d.t.q.LockWorkers(ctx, ids.ids())
	if err != nil {
		return fmt.Errorf("lock workers: %w", err)
	}
	loads, err := d.t.q.WorkerLoads(ctx, ids.ids())
	if err != nil {
		return fmt.Errorf("read loads: %w", err)
	}
	d.workers = make(map[uuid.UUID]dbsqlc.LockWorkersRow, len(rows))
	d.standing = make(map[uuid.UUID]task.Standing, len(rows))
	for _, w := range loads {
		d.standing[w.ID] = task.Standing{Drained: w.Drained, Live: int(w.Live)}
	}
	for _, w := range rows {
		d.workers[w.ID] = w
		st := d.standing[w.ID]
		st.Present, st.Slots = w.SessionID.Valid, int(w.Slots)
		d.standing[w.ID] = st
	}
	d.answered = map[scheduler.PollKey]bool{}
	if len(p.SessionIds) == 0 {
		return nil
	}
	answered, err := d.t.q.AnsweredRequests(ctx, p)
	if err != nil {
		return fmt.Errorf("read answered polls: %w", err)
	}
	for _, a := range answered {
		d.answered[scheduler.PollKey{SessionID: a.SessionID, RequestID: a.RequestID}] = true
	}
	return nil
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

// grant draws clock and fencing tokens after the last lock, and writes attempts and leases.
func (d *dispatch) grant(ctx context.Context) error {
	if len(d.granted) == 0 {
		return nil
	}
	versions, at, err := d.t.drawVersions(ctx, len(d.granted))
	if err != nil {
		return err
	}
	var attempts dbsqlc.InsertAttemptsParams
	var leases dbsqlc.InsertLeasesParams
	var polls dbsqlc.InsertAnsweredRequestsParams
	for i, it := range d.granted {
		w := d.workers[it.WorkerID]
		e := d.g.of(it.StepID)
		a, l, err := e.Lease(at, it.StepID, task.Grant{
			AttemptID: it.AttemptID, Number: it.Number, WorkerID: it.WorkerID, SessionID: it.SessionID,
			WorkerName: w.Name, Node: w.Node, LeaseVersion: versions[i], Duration: it.Duration,
		})
		var late *task.TransitionError
		if errors.As(err, &late) { // a deadline has come since it was claimed: its timer ends the step
			d.done.Dropped++
			continue
		}
		if err != nil {
			return fmt.Errorf("lease step %s: %w", it.StepID, err)
		}
		addAttempt(&attempts, a.Data())
		addLease(&leases, a.Data(), l, it, e.Data().ID, d.c.ClaimID)
		if it.RequestID != "" {
			polls.SessionIds = append(polls.SessionIds, it.SessionID)
			polls.RequestIds = append(polls.RequestIds, it.RequestID)
		}
		d.done.Granted[it.AttemptID] = true
		d.done.Waited = append(d.done.Waited, max(at.Sub(d.ours[it.StepID].AvailableAt.Time), 0))
	}
	if err := d.g.save(ctx); err != nil {
		return err
	}
	if len(attempts.Ids) == 0 {
		return nil
	}
	if err := d.t.q.InsertAttempts(ctx, attempts); err != nil {
		return fmt.Errorf("insert attempts: %w", err)
	}
	if err := d.t.q.InsertLeases(ctx, leases); err != nil {
		return fmt.Errorf("insert leases: %w", err)
	}
	if len(polls.SessionIds) == 0 {
		return nil
	}
	if err := d.t.q.InsertAnsweredRequests(ctx, polls); err != nil {
		return fmt.Errorf("remember polls: %w", err)
	}
	return nil
}

// drawVersions draws the clock and n lease versions in growing order.
func (t *txn) drawVersions(ctx context.Context, n int) ([]int64, time.Time, error) {
	var rows []dbsqlc.DrawLeaseVersionsRow
	var err error
	if t.s.epoch > 0 {
		var own []dbsqlc.DrawLeaseVersionsOfEpochRow
		own, err = t.q.DrawLeaseVersionsOfEpoch(ctx, dbsqlc.DrawLeaseVersionsOfEpochParams{Epoch: t.s.epoch, N: int32(n)})
		for _, r := range own {
			rows = append(rows, dbsqlc.DrawLeaseVersionsRow(r))
		}
	} else {
		rows, err = t.q.DrawLeaseVersions(ctx, int32(n))
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
