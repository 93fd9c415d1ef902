package memstore

import (
	"bytes"
	"context"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Enqueue accepts a batch in one transaction. Nobody else holds a key, whatever wait says.
func (s *Store) Enqueue(ctx context.Context, batch []scheduler.NewExecution, allOrNothing, _ bool) ([]scheduler.Result[scheduler.Enqueued], error) {
	results := make([]scheduler.Result[scheduler.Enqueued], len(batch))
	err := s.tx(ctx, "enqueue", func(t *txn) error {
		for i := range batch {
			r := t.enqueue(i, &batch[i])
			if r.Err != nil && allOrNothing {
				return r.Err
			}
			results[i] = r
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

func (t *txn) enqueue(i int, n *scheduler.NewExecution) (r scheduler.Result[scheduler.Enqueued]) {
	key := keyOf{n.Spec.Namespace, n.Spec.IdempotencyKey}
	if id, taken := t.keys[key]; taken {
		if existing := t.executions[id]; !bytes.Equal(existing.hash, n.Hash) {
			r.Err = &scheduler.KeyReusedError{Namespace: key.namespace, Key: key.key, ExistingID: id.String(), Index: i}
			return r
		}
		q := scheduler.ExecutionQuery{ID: id, AfterOrdinal: -1, StepLimit: scheduler.MaxStepsAnswered, Brief: true}
		if len(n.Spec.Steps) > scheduler.MaxStepsAnswered {
			q.StepLimit = 0
		}
		r.Value.Execution, _, r.Err = t.getExecution(q)
		return r
	}
	e, edges := task.NewExecution(n.Spec, n.IDs, t.at)
	if r.Err = t.insert(n, e, edges); r.Err == nil {
		r.Value = scheduler.Enqueued{Execution: n.View(e, t.at), Created: true}
	}
	return r
}

func (t *txn) insert(n *scheduler.NewExecution, e *task.Execution, edges []task.Edge) error {
	c := e.TakeChanges(t.selects)
	d := e.Data()
	put(t, t.executions, d.ID, execution{
		ExecutionData: d, key: n.Spec.IdempotencyKey, hash: n.Hash, priority: n.Spec.Priority, labels: n.Spec.Labels,
		trace: n.Spec.TraceContext, steps: n.IDs.Steps, edges: edges,
	})
	if n.Spec.IdempotencyKey != "" {
		put(t, t.keys, keyOf{d.Namespace, n.Spec.IdempotencyKey}, d.ID)
	}
	for i, s := range c.Steps {
		t.knowCapability(d.Namespace, s.Data().Capability)
		put(t, t.steps, s.Data().ID, step{StepData: s.Data(), execution: d.ID, input: n.Spec.Steps[i].Input})
	}
	return t.writeChanges(&d, &c)
}

// knowCapability makes the row of a capability, so that it can be paused.
func (t *txn) knowCapability(namespace, name string) {
	k := scheduler.CapabilityKey{Namespace: namespace, Name: name}
	if _, known := t.capabilities[k]; !known {
		put(t, t.capabilities, k, capability{})
	}
}
