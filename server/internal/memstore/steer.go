package memstore

import (
	"context"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// SetDrain drains a worker, a node or a version, or ends that drain.
func (s *Store) SetDrain(ctx context.Context, d scheduler.Drain) (done scheduler.Drained, err error) {
	err = s.tx(ctx, "set drain", func(t *txn) error {
		key := drain{d.Namespace, d.Kind, d.Value}
		id, err := uuid.Parse(d.Value)
		if w, known := t.workers[id]; d.Kind == scheduler.DrainWorker && (err != nil || !known || w.Namespace != d.Namespace) {
			return &scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: d.Value}
		}
		if d.Draining {
			put(t, t.drains, key, true)
		} else {
			drop(t, t.drains, key)
		}
		for _, w := range t.workers {
			if w.session != uuid.Nil && w.under(key) {
				done.Workers++
				done.Leases += t.countLeases(w.id)
			}
		}
		return nil
	})
	return done, err
}

// drained tells whether a worker is, by its own word or an operator's.
func (t *txn) drained(w worker) bool {
	for _, d := range w.drains() {
		if t.drains[d] {
			return true
		}
	}
	return w.draining
}

// drains are those that would hold for a worker.
func (w worker) drains() [3]drain {
	return [...]drain{
		{w.Namespace, scheduler.DrainWorker, w.id.String()}, {w.Namespace, scheduler.DrainNode, w.Node},
		{w.Namespace, scheduler.DrainVersion, w.Version},
	}
}

func (w worker) under(key drain) bool {
	for _, d := range w.drains() {
		if d == key {
			return true
		}
	}
	return false
}

// Pause stops grants of a capability; one that is not known is made. What it answers tells of the
// pause only, and counts nothing.
func (s *Store) Pause(ctx context.Context, c scheduler.CapabilityKey, reason string) (view scheduler.CapabilityView, err error) {
	err = s.tx(ctx, "pause", func(t *txn) error {
		if t.capabilities[c].pause == nil {
			put(t, t.capabilities, c, capability{pause: &task.Notice{At: t.at, Reason: reason}})
		}
		view = scheduler.CapabilityView{Name: c.Name, Pause: t.capabilities[c].pause}
		return nil
	})
	return view, err
}

// Resume ends a pause; one that is not paused is found too.
func (s *Store) Resume(ctx context.Context, c scheduler.CapabilityKey) (scheduler.CapabilityView, error) {
	err := s.tx(ctx, "resume", func(t *txn) error {
		if _, known := t.capabilities[c]; !known {
			return &scheduler.NotFoundError{Kind: scheduler.KindCapability, ID: c.Name}
		}
		put(t, t.capabilities, c, capability{})
		return nil
	})
	return scheduler.CapabilityView{Name: c.Name}, err
}
