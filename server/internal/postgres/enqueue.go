package postgres

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
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
	known      map[capabilityKey]dbsqlc.FindExecutionsByKeyRow // keys that are taken, also by this batch
	busy       map[capabilityKey]bool                          // keys that other transactions hold
	mine       set                                             // committed by an earlier try
	rows       dbsqlc.InsertExecutionsParams
	steps      dbsqlc.InsertStepsParams
	edges      dbsqlc.InsertEdgesParams
	requests   dbsqlc.InsertFirstRequestsParams
	payloads   dbsqlc.PutPayloadsParams
	now        time.Time
}

func (e *enqueue) run(ctx context.Context, allOrNothing, wait bool) ([]scheduler.Result[scheduler.Enqueued], error) {
	if err := e.look(ctx, wait || allOrNothing); err != nil {
		return nil, err
	}
	if len(e.known) > 0 {
		e.t.vouch() // the answer rests on what an earlier commit wrote
	}
	w := &writes{expected: len(e.batch)}
	reserve(&e.rows, len(e.batch))
	reserve(&e.steps, len(e.batch))
	reserve(&e.requests, len(e.batch))
	reserve(&e.payloads, len(e.batch))
	e.accept(w)
	results := make([]scheduler.Result[scheduler.Enqueued], len(e.batch))
	for i := range e.batch {
		results[i] = e.answer(i)
		if err := results[i].Err; err != nil && allOrNothing {
			return nil, own(err)
		}
	}
	return results, e.insert(ctx, w)
}

// look takes the right to insert under the batch's keys, before anything else is locked; then, in
// a later statement, it looks which of them are taken. A key that is taken keeps its execution and
// its content: whoever waits for keys does not wait for those. After an unknown commit it waits: an
// earlier try that is still under way holds them.
func (e *enqueue) look(ctx context.Context, wait bool) error {
	e.known, e.mine = map[capabilityKey]dbsqlc.FindExecutionsByKeyRow{}, set{}
	e.busy = map[capabilityKey]bool{}
	wait = wait || e.t.again
	var list []call
	if !wait {
		list = e.tryKeys(ctx)
	}
	list = append(list, e.findExisting(ctx)...)
	list = append(list, func(q *dbsqlc.Queries) error {
		now, err := q.Now(ctx)
		e.now = now.Time.UTC()
		return err
	})
	list = append(list, e.findOwn(ctx)...)
	if err := e.t.together(ctx, list...); err != nil || !wait {
		return err
	}
	keys := slices.Collect(maps.Keys(e.keys()))
	if len(keys) == 0 {
		return nil
	}
	defer e.t.locking(time.Now())
	list = append([]call{func(q *dbsqlc.Queries) error {
		_, err := q.KeyLocks(ctx, keys)
		return wrap("lock keys", err)
	}}, e.findExisting(ctx)...)
	return e.t.together(ctx, append(list, e.findOwn(ctx)...)...)
}

// findOwn reads what an earlier try, whose commit was not answered, has committed.
func (e *enqueue) findOwn(ctx context.Context) []call {
	if !e.t.again {
		return nil
	}
	return []call{func(q *dbsqlc.Queries) error {
		found, err := q.ExistingExecutions(ctx, e.ids())
		e.mine = setOf(found)
		return wrap("find own executions", err)
	}}
}

// keys are the keys that are not taken, by what is locked for them.
func (e *enqueue) keys() map[int64]capabilityKey {
	of := map[int64]capabilityKey{}
	for i := range e.batch {
		if s := e.batch[i].Spec; s.IdempotencyKey != "" && !e.taken(s) {
			of[idempotencyKey(s.Namespace, s.IdempotencyKey)] = capabilityKey{s.Namespace, s.IdempotencyKey}
		}
	}
	return of
}

func (e *enqueue) tryKeys(ctx context.Context) []call {
	of := e.keys()
	if len(of) == 0 {
		return nil
	}
	return []call{func(q *dbsqlc.Queries) error {
		rows, err := q.TryLocks(ctx, slices.Collect(maps.Keys(of)))
		for _, r := range rows {
			if !r.Locked {
				e.busy[of[r.Key]] = true
			}
		}
		return wrap("try keys", err)
	}}
}

func (e *enqueue) ids() []uuid.UUID {
	ids := make([]uuid.UUID, len(e.batch))
	for i := range e.batch {
		ids[i] = e.batch[i].IDs.Execution
	}
	return ids
}

// accept prepares the rows of those whose keys are free, and of all without a key. After an unknown
// commit those that are there already count as created: by this very batch.
func (e *enqueue) accept(w *writes) {
	for i := range e.batch {
		n := &e.batch[i]
		key := capabilityKey{n.Spec.Namespace, n.Spec.IdempotencyKey}
		keyed := n.Spec.IdempotencyKey != ""
		mine := e.mine[n.IDs.Execution]
		if keyed && !mine && (e.busy[key] || e.taken(n.Spec)) {
			continue
		}
		exec, edges := task.NewExecution(n.Spec, n.IDs, e.now)
		e.executions[n.IDs.Execution] = exec
		e.created[n.IDs.Execution] = true
		if keyed { // The first one within the batch counts.
			e.known[key] = dbsqlc.FindExecutionsByKeyRow{ID: n.IDs.Execution, ContentHash: n.Hash}
		}
		if !mine {
			e.add(w, n, exec, edges)
		}
	}
}

func (e *enqueue) add(w *writes, n *scheduler.NewExecution, exec *task.Execution, edges []task.Edge) {
	p := &e.rows
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
		e.addRequest(&d, exec.Step(r.StepID).Data(), r)
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

func (e *enqueue) addRequest(d *task.ExecutionData, step task.StepData, r task.Request) {
	p := &e.requests
	p.StepIds = append(p.StepIds, step.ID)
	p.AttemptNumbers = append(p.AttemptNumbers, int32(r.Number))
	p.ExecutionIds = append(p.ExecutionIds, d.ID)
	p.Namespaces = append(p.Namespaces, d.Namespace)
	p.Capabilities = append(p.Capabilities, step.Capability)
	p.Nodes = append(p.Nodes, step.Node)
	p.Priorities = append(p.Priorities, int16(step.Priority))
	p.AvailableAts = append(p.AvailableAts, instant(r.Due))
	p.AnswerBytes = append(p.AnswerBytes, int32(r.AnswerBytes))
}

// taken tells whether a key has its execution.
func (e *enqueue) taken(s *task.ExecutionSpec) bool {
	_, found := e.known[capabilityKey{s.Namespace, s.IdempotencyKey}]
	return found
}

// findExisting reads what is there under the keys of which nothing is known yet.
func (e *enqueue) findExisting(ctx context.Context) []call {
	var p dbsqlc.FindExecutionsByKeyParams
	for _, k := range e.keys() {
		p.Namespaces = append(p.Namespaces, k.namespace)
		p.IdempotencyKeys = append(p.IdempotencyKeys, k.name)
	}
	if len(p.Namespaces) == 0 {
		return nil
	}
	return []call{func(q *dbsqlc.Queries) error {
		rows, err := q.FindExecutionsByKey(ctx, p)
		for _, r := range rows {
			e.known[capabilityKey{r.Namespace, r.IdempotencyKey.String}] = r
		}
		return wrap("find executions by key", err)
	}}
}

func (e *enqueue) answer(i int) scheduler.Result[scheduler.Enqueued] {
	n := &e.batch[i]
	if e.created[n.IDs.Execution] {
		return scheduler.Result[scheduler.Enqueued]{Value: scheduler.Enqueued{Execution: n.View(e.executions[n.IDs.Execution], e.now), Created: true}}
	}
	row, found := e.known[capabilityKey{n.Spec.Namespace, n.Spec.IdempotencyKey}]
	switch {
	case !found:
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

// insert writes everything and commits in one round trip.
func (e *enqueue) insert(ctx context.Context, w *writes) error {
	if len(e.rows.Ids) == 0 {
		return nil
	}
	list := []call{
		func(q *dbsqlc.Queries) error {
			return wrap("insert executions", q.InsertExecutions(ctx, e.rows))
		},
		func(q *dbsqlc.Queries) error {
			err := q.InsertSteps(ctx, e.steps)
			if lacksCapability(err) {
				return errCapabilityGone
			}
			return wrap("insert steps", err)
		},
	}
	if len(e.requests.StepIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("insert requests", q.InsertFirstRequests(ctx, e.requests)) })
	}
	if len(e.edges.Children) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("insert edges", q.InsertEdges(ctx, e.edges)) })
	}
	if len(e.payloads.StepIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error {
			return wrap("insert inputs", q.InsertPayloads(ctx, dbsqlc.InsertPayloadsParams(e.payloads)))
		})
	}
	return e.t.last(ctx, "enqueue", append(list, w.calls(ctx)...)...)
}
