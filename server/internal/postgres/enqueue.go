package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Enqueue accepts a batch in one transaction. An item whose key an unfinished transaction
// holds is answered ErrBusy, unless wait.
func (s *Store) Enqueue(ctx context.Context, batch []scheduler.NewExecution, allOrNothing, wait bool) ([]scheduler.Result[scheduler.Enqueued], error) {
	for {
		wanted, err := s.wantedCapabilities(ctx, batch, allOrNothing)
		if err != nil {
			return nil, err
		}
		if err := s.makeCapabilities(ctx, wanted); err != nil {
			return nil, err
		}
		results, err := s.enqueue(ctx, batch, allOrNothing, wait)
		if !errors.Is(err, errCapabilityGone) {
			return results, err
		}
		s.capabilities.Clear() // the database is not the one that it was: a failover, or a restore
	}
}

// errCapabilityGone says that a capability which was seen before has no row.
var errCapabilityGone = errors.New("a capability has no row")

func (s *Store) enqueue(ctx context.Context, batch []scheduler.NewExecution, allOrNothing, wait bool) ([]scheduler.Result[scheduler.Enqueued], error) {
	var results []scheduler.Result[scheduler.Enqueued]
	err := s.tx(ctx, "enqueue", func(ctx context.Context, t *txn) error {
		e := &enqueue{t: t, batch: batch, created: set{}, executions: map[uuid.UUID]*task.Execution{}}
		var err error
		results, err = e.run(ctx, allOrNothing, wait)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.readExisting(ctx, batch, results)
	return results, nil
}

// enqueue is one try of accepting a batch.
type enqueue struct {
	t          *txn
	batch      []scheduler.NewExecution
	executions map[uuid.UUID]*task.Execution // by id, as they would be
	created    set
	known      map[capabilityKey]dbsqlc.FindExecutionsByKeyRow // keys that were taken before
	busy       map[capabilityKey]bool                          // keys that other transactions hold
	steps      dbsqlc.InsertStepsParams
	edges      dbsqlc.InsertEdgesParams
	payloads   dbsqlc.PutPayloadsParams
	now        time.Time
}

func (e *enqueue) run(ctx context.Context, allOrNothing, wait bool) ([]scheduler.Result[scheduler.Enqueued], error) {
	// A key that is taken keeps its execution and its content: repeats do not queue for it.
	var err error
	if e.known, err = e.findExisting(ctx); err != nil {
		return nil, err
	}
	if err := e.lockKeys(ctx, wait || allOrNothing); err != nil {
		return nil, err
	}
	now, err := e.t.q.Now(ctx)
	if err != nil {
		return nil, err
	}
	e.now = now.Time.UTC()
	w := &writes{}
	if err := e.insertExecutions(ctx, w); err != nil {
		return nil, err
	}
	existing, err := e.findExisting(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(existing, e.known)
	if len(existing) > 0 {
		e.t.vouch() // the answer rests on what an earlier commit wrote
	}
	results := make([]scheduler.Result[scheduler.Enqueued], len(e.batch))
	for i := range e.batch {
		results[i] = e.answer(i, existing)
		if err := results[i].Err; err != nil && allOrNothing {
			return nil, own(err)
		}
	}
	return results, e.insertGraphs(ctx, w)
}

// lockKeys takes the right to insert under the batch's keys, before anything else is locked.
func (e *enqueue) lockKeys(ctx context.Context, wait bool) error {
	of := map[int64]capabilityKey{}
	var keys []int64
	for i := range e.batch {
		s := e.batch[i].Spec
		if s.IdempotencyKey == "" || e.taken(s) {
			continue
		}
		k := idempotencyKey(s.Namespace, s.IdempotencyKey)
		if _, twice := of[k]; !twice {
			keys = append(keys, k)
		}
		of[k] = capabilityKey{s.Namespace, s.IdempotencyKey}
	}
	e.busy = map[capabilityKey]bool{}
	if len(keys) == 0 {
		return nil
	}
	if wait {
		defer e.t.locking(time.Now())
		_, err := e.t.q.KeyLocks(ctx, keys)
		return wrap("lock keys", err)
	}
	rows, err := e.t.q.TryLocks(ctx, keys)
	for _, r := range rows {
		if !r.Locked {
			e.busy[of[r.Key]] = true
		}
	}
	return wrap("try keys", err)
}

// insertExecutions inserts the rows of those whose keys are free, and of all without a key.
// After an unknown commit those that are there already count as created: by this very batch.
func (e *enqueue) insertExecutions(ctx context.Context, w *writes) error {
	var p dbsqlc.InsertExecutionsParams
	mine, err := e.committedBefore(ctx)
	if err != nil {
		return err
	}
	seen := map[capabilityKey]bool{} // keys within the batch: the first one counts
	for i := range e.batch {
		n := &e.batch[i]
		key := capabilityKey{n.Spec.Namespace, n.Spec.IdempotencyKey}
		exec, edges := task.NewExecution(n.Spec, n.IDs, e.now)
		e.executions[n.IDs.Execution] = exec
		if mine[n.IDs.Execution] {
			e.created[n.IDs.Execution] = true
			continue
		}
		if n.Spec.IdempotencyKey != "" && (seen[key] || e.busy[key] || e.taken(n.Spec)) {
			continue
		}
		seen[key] = true
		e.add(&p, w, n, exec, edges)
	}
	if len(p.Ids) == 0 {
		return nil
	}
	ids, err := e.t.q.InsertExecutions(ctx, p)
	if err != nil {
		return fmt.Errorf("insert executions: %w", err)
	}
	fresh := setOf(ids)
	for id := range fresh {
		e.created[id] = true
	}
	e.keepOnly(fresh, w)
	return nil
}

func (e *enqueue) committedBefore(ctx context.Context) (set, error) {
	if !e.t.again {
		return set{}, nil
	}
	ids := make([]uuid.UUID, len(e.batch))
	for i := range e.batch {
		ids[i] = e.batch[i].IDs.Execution
	}
	found, err := e.t.q.ExistingExecutions(ctx, ids)
	return setOf(found), err
}

func (e *enqueue) add(p *dbsqlc.InsertExecutionsParams, w *writes, n *scheduler.NewExecution, exec *task.Execution, edges []task.Edge) {
	c := exec.TakeChanges(e.t.s.selects)
	d := exec.Data()
	p.Ids = append(p.Ids, d.ID)
	p.Namespaces = append(p.Namespaces, d.Namespace)
	p.Names = append(p.Names, d.Name)
	p.IdempotencyKeys = append(p.IdempotencyKeys, n.Spec.IdempotencyKey)
	p.ContentHashes = append(p.ContentHashes, n.Hash)
	p.States = append(p.States, string(d.State))
	p.Priorities = append(p.Priorities, int16(n.Spec.Priority))
	p.FailFasts = append(p.FailFasts, d.FailFast)
	p.DueAts = append(p.DueAts, instant(d.DueAt))
	p.Timeouts = append(p.Timeouts, maybeInterval(d.Timeout))
	p.CancelGraces = append(p.CancelGraces, interval(d.CancelGrace))
	p.Deadlines = append(p.Deadlines, maybeInstant(d.Deadline))
	p.Revisions = append(p.Revisions, d.Revision)
	p.Sequences = append(p.Sequences, d.Sequence)
	p.StepCounts = append(p.StepCounts, int32(d.StepCount))
	p.Labels = append(p.Labels, jsonMap(n.Spec.Labels))
	p.TraceContexts = append(p.TraceContexts, jsonMap(n.Spec.TraceContext))
	for i, s := range c.Steps {
		e.addStep(d.ID, n.Spec, &n.Spec.Steps[i], s.Data())
	}
	for _, edge := range edges {
		e.edges.Children = append(e.edges.Children, edge.Child)
		e.edges.Parents = append(e.edges.Parents, edge.Parent)
	}
	for _, r := range c.Requests {
		w.request(r)
	}
	for _, timer := range c.Timers {
		w.timer(d.ID, timer)
	}
	for i := range c.Events {
		w.event(&d, &c.Events[i])
	}
}

func (e *enqueue) addStep(execution uuid.UUID, spec *task.ExecutionSpec, step *task.StepSpec, d task.StepData) {
	p := &e.steps
	p.Ids = append(p.Ids, d.ID)
	p.ExecutionIds = append(p.ExecutionIds, execution)
	p.Ordinals = append(p.Ordinals, int32(d.Ordinal))
	p.Names = append(p.Names, d.Name)
	p.Namespaces = append(p.Namespaces, spec.Namespace)
	p.Capabilities = append(p.Capabilities, d.Capability)
	p.Nodes = append(p.Nodes, d.Node)
	p.Priorities = append(p.Priorities, int16(d.Priority))
	p.States = append(p.States, storedState(d.State))
	p.RetryPolicies = append(p.RetryPolicies, retryPolicy(d.Retry))
	p.ScheduleToStarts = append(p.ScheduleToStarts, maybeInterval(d.ScheduleToStart))
	p.StartToCloses = append(p.StartToCloses, interval(d.StartToClose))
	p.ScheduleToCloses = append(p.ScheduleToCloses, maybeInterval(d.ScheduleToClose))
	p.StartDelays = append(p.StartDelays, maybeInterval(d.StartDelay))
	p.HasChildren = append(p.HasChildren, d.HasChildren)
	p.WaitingParents = append(p.WaitingParents, int32(d.WaitingParents))
	p.OpenedAts = append(p.OpenedAts, maybeInstant(d.OpenedAt))
	p.InputBytes = append(p.InputBytes, int32(d.InputBytes))
	if step.Input != nil {
		addPayload(&e.payloads, d.ID, roleInput, step.Input)
	}
}

// keepOnly takes back what was prepared for executions whose key turned out to be taken.
func (e *enqueue) keepOnly(fresh set, w *writes) {
	all := true
	for i := range e.steps.ExecutionIds {
		all = all && fresh[e.steps.ExecutionIds[i]]
	}
	if all {
		return
	}
	batch := e.batch
	e.steps, e.edges, e.payloads = dbsqlc.InsertStepsParams{}, dbsqlc.InsertEdgesParams{}, dbsqlc.PutPayloadsParams{}
	*w = writes{}
	for i := range batch {
		if n := &batch[i]; fresh[n.IDs.Execution] {
			exec, edges := task.NewExecution(n.Spec, n.IDs, e.now)
			e.add(&dbsqlc.InsertExecutionsParams{}, w, n, exec, edges)
			e.executions[n.IDs.Execution] = exec
		}
	}
}

// taken tells whether a key was taken before this transaction looked for the first time.
func (e *enqueue) taken(s *task.ExecutionSpec) bool {
	_, found := e.known[capabilityKey{s.Namespace, s.IdempotencyKey}]
	return found
}

// findExisting reads what is there under keys: at first under all, then, in a statement later
// than the insert that waited for them, under those that were not free.
func (e *enqueue) findExisting(ctx context.Context) (map[capabilityKey]dbsqlc.FindExecutionsByKeyRow, error) {
	var p dbsqlc.FindExecutionsByKeyParams
	for i := range e.batch {
		n := &e.batch[i]
		key := capabilityKey{n.Spec.Namespace, n.Spec.IdempotencyKey}
		if n.Spec.IdempotencyKey != "" && !e.created[n.IDs.Execution] && !e.busy[key] && !e.taken(n.Spec) {
			p.Namespaces = append(p.Namespaces, n.Spec.Namespace)
			p.IdempotencyKeys = append(p.IdempotencyKeys, n.Spec.IdempotencyKey)
		}
	}
	found := map[capabilityKey]dbsqlc.FindExecutionsByKeyRow{}
	if len(p.Namespaces) == 0 {
		return found, nil
	}
	rows, err := e.t.q.FindExecutionsByKey(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("find executions by key: %w", err)
	}
	for _, r := range rows {
		found[capabilityKey{r.Namespace, r.IdempotencyKey.String}] = r
	}
	return found, nil
}

func (e *enqueue) answer(i int, existing map[capabilityKey]dbsqlc.FindExecutionsByKeyRow) scheduler.Result[scheduler.Enqueued] {
	n := &e.batch[i]
	if e.created[n.IDs.Execution] {
		return scheduler.Result[scheduler.Enqueued]{Value: scheduler.Enqueued{Execution: n.View(e.executions[n.IDs.Execution], e.now), Created: true}}
	}
	key := capabilityKey{n.Spec.Namespace, n.Spec.IdempotencyKey}
	row, found := existing[key]
	switch {
	case e.busy[key]:
		return scheduler.Result[scheduler.Enqueued]{Err: scheduler.ErrBusy}
	case !found: // it was there a moment ago: retention has taken it
		return scheduler.Result[scheduler.Enqueued]{Err: scheduler.ErrBusy}
	case !bytes.Equal(row.ContentHash, n.Hash):
		return scheduler.Result[scheduler.Enqueued]{Err: &scheduler.KeyReusedError{
			Namespace: n.Spec.Namespace, Key: n.Spec.IdempotencyKey, ExistingID: row.ID.String(), Index: i,
		}}
	default:
		view := &scheduler.ExecutionView{}
		view.ID = row.ID
		return scheduler.Result[scheduler.Enqueued]{Value: scheduler.Enqueued{Execution: view}}
	}
}

// readExisting fills in the executions that were there before, each read once. The transaction
// is over: nobody waits for its keys meanwhile, and what cannot be read fails nobody else.
func (s *Store) readExisting(ctx context.Context, batch []scheduler.NewExecution, results []scheduler.Result[scheduler.Enqueued]) {
	views := map[uuid.UUID]*scheduler.ExecutionView{}
	for i := range results {
		r := &results[i]
		if r.Err != nil || r.Value.Created {
			continue
		}
		id := r.Value.Execution.ID
		if views[id] == nil {
			q := scheduler.ExecutionQuery{ID: id, AfterOrdinal: -1, StepLimit: scheduler.MaxStepsAnswered, Brief: true}
			if len(batch[i].Spec.Steps) > scheduler.MaxStepsAnswered {
				q.StepLimit = 0
			}
			r.Err = s.readOnly(ctx, "read existing execution", func(db *dbsqlc.Queries) error {
				var err error
				views[id], _, err = getExecution(ctx, db, q)
				return err
			})
		}
		var gone *scheduler.NotFoundError
		switch {
		case r.Err == nil:
			r.Value.Execution = views[id]
		case errors.As(r.Err, &gone): // retention has taken it since: the key is free again
			r.Err = scheduler.ErrBusy
		}
	}
}

func (e *enqueue) insertGraphs(ctx context.Context, w *writes) error {
	var list []call
	if len(e.steps.Ids) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error {
			n, err := q.InsertSteps(ctx, e.steps)
			if err == nil && int(n) != len(e.steps.Ids) {
				return errCapabilityGone
			}
			return wrap("insert steps", err)
		})
	}
	if len(e.edges.Children) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("insert edges", q.InsertEdges(ctx, e.edges)) })
	}
	if len(e.payloads.StepIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("insert inputs", q.PutPayloads(ctx, e.payloads)) })
	}
	return e.t.together(ctx, append(list, w.calls(ctx)...)...)
}
