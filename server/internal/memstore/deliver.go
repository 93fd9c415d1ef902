package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// firstDelivery is the number of the delivery that a dispatch makes; each replay raises it.
const firstDelivery = 1

// Contents reads what workers get with live leases.
func (s *Store) Contents(_ context.Context, attempts []uuid.UUID) (views []scheduler.LeaseView, err error) {
	s.read(func(t *txn) { views = t.contents(attempts) })
	return views, nil
}

// Fill adds the payloads to leases as a dispatch told them.
func (s *Store) Fill(_ context.Context, leases []scheduler.LeaseView) error {
	s.read(func(t *txn) {
		for i := range leases {
			t.fill(&leases[i])
		}
	})
	return nil
}

func (t *txn) contents(attempts []uuid.UUID) []scheduler.LeaseView {
	views := []scheduler.LeaseView{}
	for _, id := range attempts {
		if l, live := t.leases[id]; live {
			views = append(views, t.leaseView(l))
		}
	}
	slices.SortFunc(views, func(a, b scheduler.LeaseView) int {
		return cmp.Or(cmp.Compare(t.steps[b.StepID].Priority, t.steps[a.StepID].Priority), cmp.Compare(a.LeaseVersion, b.LeaseVersion))
	})
	return views
}

func (t *txn) leaseView(l lease) scheduler.LeaseView {
	s, e, a := t.steps[l.step], t.executions[l.execution], t.attempts[l.attempt]
	v := scheduler.LeaseView{
		ExecutionID: e.ID, ExecutionName: e.Name, StepID: s.ID, StepName: s.Name, Capability: s.Capability, AttemptID: a.ID,
		AttemptNumber: a.Number, LeaseVersion: l.version, ExpiresAt: l.expiresAt, Remaining: l.expiresAt.Sub(t.at),
		StartToCloseAt: a.StartToCloseAt, StartToCloseRemaining: a.StartToCloseAt.Sub(t.at), ParentBytes: s.ParentBytes,
		ParentOutputsOmitted: task.RestoreStep(s.StepData, nil).OmitsParents(),
		PreviousFailure:      s.Failure, Labels: e.labels, TraceContext: e.trace, WorkerID: l.worker, RequestID: l.requestID,
		Delivery: firstDelivery,
	}
	t.fill(&v)
	return v
}

func (t *txn) fill(v *scheduler.LeaseView) {
	s := t.steps[v.StepID]
	v.Input, v.Checkpoint = s.input, s.checkpoint
	if v.ParentOutputsOmitted {
		return
	}
	e := t.executions[v.ExecutionID]
	for _, edge := range e.edges {
		if p := t.steps[edge.Parent]; edge.Child == s.ID && p.output != nil {
			if v.ParentOutputs == nil {
				v.ParentOutputs = map[string]*task.Payload{}
			}
			v.ParentOutputs[p.Name] = p.output
		}
	}
}

// Lookup tells how polls stand. It decides nothing: dispatch looks again.
func (s *Store) Lookup(_ context.Context, keys []scheduler.PollKey) (states []scheduler.PollState, err error) {
	s.read(func(t *txn) {
		for _, k := range keys {
			states = append(states, t.lookup(k))
		}
	})
	return states, nil
}

func (t *txn) lookup(k scheduler.PollKey) (st scheduler.PollState) {
	w, known := t.workers[k.WorkerID]
	if !known {
		st.Err = notFound(scheduler.KindWorker, k.WorkerID)
		return st
	}
	st.Worker = t.workerState(w)
	if w.session != k.SessionID {
		st.Err = t.stranger(k.WorkerID, k.SessionID)
	}
	if _, st.Answered = t.answered[answer{k.SessionID, k.RequestID}]; !st.Answered {
		return st
	}
	st.Live = sorted(t.leases, func(l lease) bool {
		return l.worker == k.WorkerID && l.session == k.SessionID && l.requestID == k.RequestID
	})
	return st
}

func (t *txn) workerState(w worker) scheduler.WorkerState {
	return scheduler.WorkerState{
		SessionID: w.session, Namespace: w.Namespace, Node: w.Node, Slots: w.Slots, Capabilities: w.Capabilities,
		Draining: t.drained(w),
	}
}

// Replay raises the delivery of live leases, so that an earlier one cannot hand them back, and
// returns them.
func (s *Store) Replay(ctx context.Context, attempts []uuid.UUID) (views []scheduler.LeaseView, err error) {
	err = s.tx(ctx, "replay", func(t *txn) error {
		for _, id := range attempts {
			if l, live := t.leases[id]; live {
				l.delivery++
				put(t, t.leases, id, l)
			}
		}
		views = t.contents(attempts)
		for i := range views {
			views[i].Delivery = t.leases[views[i].AttemptID].delivery
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return views, nil
}

// Return hands back grants that reached nobody: RELEASED, as if they had never been made.
func (s *Store) Return(ctx context.Context, grants []scheduler.Undelivered) error {
	return s.tx(ctx, "return grants", func(t *txn) error {
		var steps []uuid.UUID
		for _, g := range grants {
			l, live := t.leases[g.AttemptID]
			if live && l.version == g.LeaseVersion && l.delivery == g.Delivery && !l.renewed {
				drop(t, t.leases, g.AttemptID)
				steps = append(steps, l.step)
			}
		}
		g := t.openSteps(steps...)
		for _, step := range steps {
			if err := g.of(step).ReturnLease(t.at, step, t.c.Chance()); err != nil {
				return fmt.Errorf("return lease of step %s: %w", step, err)
			}
		}
		return g.finish()
	})
}

// Touch writes signs of life, and tells how the workers stand.
func (s *Store) Touch(ctx context.Context, workers []uuid.UUID) (map[uuid.UUID]scheduler.WorkerState, error) {
	states := map[uuid.UUID]scheduler.WorkerState{}
	err := s.tx(ctx, "touch workers", func(t *txn) error {
		for _, id := range workers {
			w, known := t.workers[id]
			if !known {
				continue
			}
			w.seenAt = t.at
			put(t, t.workers, id, w)
			states[id] = t.workerState(w)
		}
		return nil
	})
	return states, err
}
