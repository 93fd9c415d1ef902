package memstore

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Register opens a session: the leases of the one before end by their own deadlines.
func (s *Store) Register(ctx context.Context, r scheduler.Registration, workerID, sessionID uuid.UUID) (scheduler.Session, error) {
	opened := scheduler.Session{Name: r.Name, WorkerID: workerID, SessionID: sessionID}
	err := s.tx(ctx, "register worker", func(t *txn) error {
		name := keyOf{r.Namespace, r.Name}
		if id, known := t.names[name]; known {
			opened.WorkerID = id
			w := t.workers[id]
			if w.session != uuid.Nil && r.RequestID != "" && w.RequestID == r.RequestID { // the same call again
				opened.SessionID = w.session
				return nil
			}
			if w.session != uuid.Nil {
				put(t, t.sessions, w.session, session{worker: id, superseded: true})
			}
		}
		for _, c := range r.Capabilities {
			t.knowCapability(r.Namespace, c)
		}
		put(t, t.names, name, opened.WorkerID)
		put(t, t.workers, opened.WorkerID, worker{Registration: r, id: opened.WorkerID, session: sessionID, seenAt: t.at})
		put(t, t.sessions, sessionID, session{worker: opened.WorkerID})
		return nil
	})
	if err != nil {
		return scheduler.Session{}, err
	}
	return opened, nil
}

// current is a worker whose current session asks.
func (t *txn) current(workerID, sessionID uuid.UUID) (worker, error) {
	w, known := t.workers[workerID]
	if !known {
		return w, notFound(scheduler.KindWorker, workerID)
	}
	if w.session != sessionID {
		return w, t.stranger(workerID, sessionID)
	}
	return w, nil
}

func (t *txn) stranger(workerID, sessionID uuid.UUID) error {
	s := t.sessions[sessionID]
	return scheduler.SessionError(workerID, sessionID, s.worker == workerID && s.superseded)
}

// Drain stops new leases for a session.
func (s *Store) Drain(ctx context.Context, workerID, sessionID uuid.UUID) (live int, err error) {
	err = s.tx(ctx, "drain worker", func(t *txn) error {
		w, err := t.current(workerID, sessionID)
		if err != nil {
			return err
		}
		w.draining, w.seenAt = true, t.at
		put(t, t.workers, w.id, w)
		live = t.countLeases(w.id)
		return nil
	})
	return live, err
}

// Deregister ends a session. While its leases live it is refused, unless forced: then the session
// ends first, and its leases after it.
func (s *Store) Deregister(ctx context.Context, workerID, sessionID uuid.UUID, force bool) (ended int, err error) {
	err = s.tx(ctx, "deregister worker", func(t *txn) error {
		w, err := t.current(workerID, sessionID)
		if err != nil {
			return err
		}
		if n := t.countLeases(w.id); n > 0 && !force {
			return scheduler.LeasesLiveError(workerID, n)
		}
		w.session = uuid.Nil
		put(t, t.workers, w.id, w)
		return nil
	})
	if err != nil || !force {
		return 0, err
	}
	err = s.tx(ctx, "end leases of worker", func(t *txn) error {
		ended, err = t.loseLeasesOf(workerID)
		return err
	})
	return ended, err
}

// loseLeasesOf ends the leases of a worker's sessions that are over.
func (t *txn) loseLeasesOf(workerID uuid.UUID) (int, error) {
	ids := sorted(t.leases, func(l lease) bool { return l.worker == workerID && l.session != t.workers[workerID].session })
	var steps []uuid.UUID
	for _, id := range ids {
		steps = append(steps, t.leases[id].step)
		drop(t, t.leases, id)
	}
	g := t.openSteps(steps...)
	for _, step := range steps {
		if err := g.of(step).LoseLease(t.at, step, task.EndDeregistered, t.c.Chance()); err != nil {
			return 0, fmt.Errorf("lose lease of step %s: %w", step, err)
		}
	}
	return len(steps), g.finish()
}
