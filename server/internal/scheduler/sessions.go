package scheduler

import (
	"context"

	"github.com/google/uuid"
)

// Register opens a session for a worker; it supersedes the one before under the same name.
func (s *Scheduler) Register(ctx context.Context, r Registration) (Session, error) {
	workerID, sessionID := newID(), newID()
	if r.Name == "" {
		r.Name = uniqueName(r.RequestID, workerID)
	}
	session, err := s.store.Register(ctx, r, workerID, sessionID)
	if err != nil {
		return Session{}, err
	}
	if session.SessionID == sessionID { // else it is a repeat, and may have been drained since
		s.dispatcher.learn(map[uuid.UUID]WorkerState{session.WorkerID: {
			SessionID: sessionID, Namespace: r.Namespace, Node: r.Node, Slots: r.Slots, Capabilities: r.Capabilities,
		}})
	}
	s.hints.Send(HintSession)
	return session, nil
}

// uniqueName is the name of a worker that gave none: the same for a repeat of its request.
func uniqueName(requestID string, workerID uuid.UUID) string {
	if requestID != "" {
		workerID = uuid.NewSHA1(uuid.NameSpaceOID, []byte(requestID))
	}
	return "worker-" + workerID.String()
}

// Drain stops new leases for a session; its parked polls are answered.
func (s *Scheduler) Drain(ctx context.Context, workerID, sessionID uuid.UUID) (liveLeases int, err error) {
	liveLeases, err = s.store.Drain(ctx, workerID, sessionID)
	if err == nil {
		s.hint(HintSession)
	}
	return liveLeases, err
}

// Deregister ends a session. While leases live it is refused, unless forced: then they are lost.
func (s *Scheduler) Deregister(ctx context.Context, workerID, sessionID uuid.UUID, force bool) (endedLeases int, err error) {
	endedLeases, err = s.store.Deregister(ctx, workerID, sessionID, force)
	if err == nil {
		s.hint(HintSession, HintWork, HintChange)
	}
	return endedLeases, err
}
