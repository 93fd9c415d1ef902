package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Why sessions end.
const (
	endSuperseded   = "superseded"
	endDeregistered = "deregistered"
)

// Register opens a session, and commits that alone: the leases of the session before are
// ended later, by their own deadlines.
func (s *Store) Register(ctx context.Context, r scheduler.Registration, workerID, sessionID uuid.UUID) (scheduler.Session, error) {
	wanted := map[capabilityKey]bool{}
	for _, c := range r.Capabilities {
		wanted[capabilityKey{r.Namespace, c}] = true
	}
	if !s.remembers(wanted) { // a worker that is going to be refused leaves none behind
		if err := s.tx(ctx, "look for room", func(ctx context.Context, t *txn) error {
			return t.roomForWorker(ctx, r.Namespace, r.Name)
		}); err != nil {
			return scheduler.Session{}, err
		}
	}
	if err := s.makeCapabilities(ctx, wanted); err != nil {
		return scheduler.Session{}, err
	}
	session := scheduler.Session{Name: r.Name}
	err := s.tx(ctx, "register worker", func(ctx context.Context, t *txn) error {
		// Two first registrations of a name at once would not see each other's row. An
		// earlier try that is still under way holds the name too.
		if _, err := t.q.KeyLocks(ctx, []int64{workerKey(r.Namespace, r.Name)}); err != nil {
			return fmt.Errorf("lock name: %w", err)
		}
		if before, err := t.openedBefore(ctx, sessionID); before != nil || err != nil {
			if before != nil {
				session.WorkerID, session.SessionID = before.WorkerID, sessionID
			}
			return err
		}
		old, err := t.q.LockWorkerByName(ctx, dbsqlc.LockWorkerByNameParams{Namespace: r.Namespace, Name: r.Name})
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("lock worker: %w", err)
		}
		if err == nil && old.SessionID.Valid && r.RequestID != "" && old.RequestID == r.RequestID { // the same call again
			t.vouch()
			session.WorkerID, session.SessionID = old.ID, old.SessionID.UUID
			return nil
		}
		if err != nil {
			if err := t.roomForWorker(ctx, r.Namespace, r.Name); err != nil {
				return err
			}
		}
		session.WorkerID, err = t.openSession(ctx, r, workerID, sessionID)
		session.SessionID = sessionID
		return err
	})
	return session, err
}

// openedBefore finds the session that an earlier try, whose commit was not answered, has opened.
// It may be superseded already: its first poll is told so.
func (t *txn) openedBefore(ctx context.Context, sessionID uuid.UUID) (*dbsqlc.FindSessionsRow, error) {
	if !t.again {
		return nil, nil //nolint:nilnil // none
	}
	found, err := sessionsByID(ctx, t.q, []uuid.UUID{sessionID})
	if err != nil {
		return nil, err
	}
	if row, committed := found[sessionID]; committed {
		return &row, nil
	}
	return nil, nil //nolint:nilnil // none
}

func (t *txn) openSession(ctx context.Context, r scheduler.Registration, workerID, sessionID uuid.UUID) (uuid.UUID, error) {
	id, err := t.q.UpsertWorker(ctx, dbsqlc.UpsertWorkerParams{
		ID: workerID, Namespace: r.Namespace, Name: r.Name, Node: r.Node, Version: r.Version, Slots: int32(r.Slots),
		Labels: jsonMap(r.Labels), Capabilities: r.Capabilities, SessionID: sessionID, RequestID: r.RequestID,
	})
	if err != nil {
		return uuid.Nil, fmt.Errorf("upsert worker: %w", err)
	}
	if err := t.q.EndSessions(ctx, dbsqlc.EndSessionsParams{WorkerID: id, Current: sessionID, Reason: endSuperseded}); err != nil {
		return uuid.Nil, fmt.Errorf("end sessions: %w", err)
	}
	return id, wrap("insert session", t.q.InsertSession(ctx, dbsqlc.InsertSessionParams{ID: sessionID, WorkerID: id}))
}

// lockSession locks a worker, and fails unless the session is its current one.
func (t *txn) lockSession(ctx context.Context, workerID, sessionID uuid.UUID) error {
	w, err := t.q.LockWorker(ctx, workerID)
	if errors.Is(err, pgx.ErrNoRows) {
		return own(&scheduler.NotFoundError{Kind: scheduler.KindWorker, ID: workerID.String()})
	}
	if err != nil {
		return fmt.Errorf("lock worker: %w", err)
	}
	if w.SessionID.Valid && w.SessionID.UUID == sessionID {
		return nil
	}
	ended, err := sessionsByID(ctx, t.q, []uuid.UUID{sessionID})
	if err != nil {
		return err
	}
	return own(strangerError(workerID, sessionID, ended))
}

func sessionsByID(ctx context.Context, q *dbsqlc.Queries, ids []uuid.UUID) (map[uuid.UUID]dbsqlc.FindSessionsRow, error) {
	rows, err := q.FindSessions(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("find sessions: %w", err)
	}
	found := make(map[uuid.UUID]dbsqlc.FindSessionsRow, len(rows))
	for _, r := range rows {
		found[r.ID] = r
	}
	return found, nil
}

// strangerError is the answer to a session that is not its worker's: superseded, or unknown.
func strangerError(workerID, sessionID uuid.UUID, sessions map[uuid.UUID]dbsqlc.FindSessionsRow) error {
	s, found := sessions[sessionID]
	return scheduler.SessionError(workerID, sessionID, found && s.WorkerID == workerID && s.EndReason == endSuperseded)
}

// Drain stops new leases for a session.
func (s *Store) Drain(ctx context.Context, workerID, sessionID uuid.UUID) (int, error) {
	live := 0
	err := s.tx(ctx, "drain worker", func(ctx context.Context, t *txn) error {
		if err := t.lockSession(ctx, workerID, sessionID); err != nil {
			return err
		}
		if err := t.q.DrainWorker(ctx, dbsqlc.DrainWorkerParams{ID: workerID, SessionID: sessionID}); err != nil {
			return fmt.Errorf("drain worker: %w", err)
		}
		counts, err := countLeases(ctx, t.q, []uuid.UUID{workerID})
		live = counts[workerID]
		return err
	})
	return live, err
}

// Deregister ends a session. While its leases live it is refused, unless forced: then the
// session ends first, and its leases after it, in the order of locks.
func (s *Store) Deregister(ctx context.Context, workerID, sessionID uuid.UUID, force bool) (int, error) {
	err := s.tx(ctx, "deregister worker", func(ctx context.Context, t *txn) error {
		err := t.lockSession(ctx, workerID, sessionID)
		var unknown *scheduler.NotFoundError
		if t.again && errors.As(err, &unknown) && unknown.Kind == scheduler.KindSession {
			return nil // our own commit
		}
		if err != nil {
			return err
		}
		live, err := countLeases(ctx, t.q, []uuid.UUID{workerID})
		if err != nil {
			return err
		}
		if n := live[workerID]; n > 0 && !force {
			return own(scheduler.LeasesLiveError(workerID, n))
		}
		if err := t.q.EndWorkerSession(ctx, dbsqlc.EndWorkerSessionParams{ID: workerID, SessionID: sessionID}); err != nil {
			return fmt.Errorf("end session: %w", err)
		}
		return wrap("end session", t.q.EndSessions(ctx, dbsqlc.EndSessionsParams{WorkerID: workerID, Current: uuid.Nil, Reason: endDeregistered}))
	})
	if err != nil || !force {
		return 0, err
	}
	return s.endLeasesOf(ctx, workerID)
}

// endLeasesOf ends the leases of a worker's sessions that are over, some at a time.
func (s *Store) endLeasesOf(ctx context.Context, workerID uuid.UUID) (ended int, err error) {
	for {
		var n int
		err := s.tx(ctx, "end leases of worker", func(ctx context.Context, t *txn) error {
			var err error
			n, err = t.loseLeasesOf(ctx, workerID)
			return err
		})
		ended += n
		if err != nil || n == 0 {
			return ended, err
		}
	}
}

func (t *txn) loseLeasesOf(ctx context.Context, workerID uuid.UUID) (int, error) {
	rows, err := t.q.LeasesOfEndedSessions(ctx, dbsqlc.LeasesOfEndedSessionsParams{WorkerID: workerID, Batch: sweepBatch})
	if err != nil {
		return 0, fmt.Errorf("leases of worker: %w", err)
	}
	var p dbsqlc.DeleteLeasesParams
	for _, r := range rows {
		p.AttemptIds = append(p.AttemptIds, r.AttemptID)
		p.LeaseVersions = append(p.LeaseVersions, r.LeaseVersion)
	}
	if len(p.AttemptIds) == 0 {
		return 0, nil
	}
	g, where, err := t.lockAttempts(ctx, p.AttemptIds)
	if err != nil {
		return 0, err
	}
	if _, err := t.q.LockLeasesWaiting(ctx, p.AttemptIds); err != nil {
		return 0, fmt.Errorf("lock leases: %w", err)
	}
	deleted, err := t.deleteLeases(ctx, p)
	if err != nil {
		return 0, err
	}
	now, err := t.q.Now(ctx)
	if err != nil {
		return 0, err
	}
	for id := range deleted {
		step := where[id]
		if err := g.of(step).LoseLease(now.Time.UTC(), step, task.EndDeregistered, rand.Float64()); err != nil {
			return 0, fmt.Errorf("lose attempt %s: %w", id, err)
		}
	}
	return len(deleted), g.finish(ctx, now.Time.UTC())
}
