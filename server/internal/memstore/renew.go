package memstore

import (
	"context"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Renew keeps attempts, in one transaction.
func (s *Store) Renew(ctx context.Context, batch []scheduler.Renewal, _ bool) ([]scheduler.Result[scheduler.Renewed], error) {
	results := make([]scheduler.Result[scheduler.Renewed], len(batch))
	err := s.tx(ctx, "renew", func(t *txn) error {
		seen := map[uuid.UUID]bool{}
		for i := range batch {
			if seen[batch[i].AttemptID] {
				results[i].Err = scheduler.ErrBusy // after the first one
				continue
			}
			seen[batch[i].AttemptID] = true
			results[i].Value, results[i].Err = t.renew(&batch[i])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// renew never shortens a lease and never passes a deadline; only the session that is still its
// worker's renews.
func (t *txn) renew(b *scheduler.Renewal) (scheduler.Renewed, error) {
	l, live := t.leases[b.AttemptID]
	if !live || l.version != b.LeaseVersion {
		late, known := t.late(b.AttemptID, b.LeaseVersion)
		if !known {
			return scheduler.Renewed{}, notFound(scheduler.KindAttempt, b.AttemptID)
		}
		return scheduler.Renewed{}, late.refusal()
	}
	w := t.workers[l.worker]
	if l.session != b.SessionID || w.session != l.session {
		return scheduler.Renewed{}, scheduler.OtherSessionError(b.AttemptID, b.LeaseVersion)
	}
	if at := t.at.Add(b.Duration); at.After(l.expiresAt) {
		l.expiresAt = at
	}
	l.expiresAt = earliest(earliest(l.expiresAt, &l.capAt), l.cancelAt)
	l.duration, l.renewed = b.Duration, true
	put(t, t.leases, l.attempt, l)
	t.keepProgress(b, l.step)
	r := scheduler.Renewed{
		WorkerID: w.id, ExpiresAt: l.expiresAt, Remaining: l.expiresAt.Sub(t.at), Cancel: t.executions[l.execution].Stopping,
		CancelAt: l.cancelAt, Draining: t.drained(w),
	}
	if l.cancelAt != nil {
		r.CancelRemaining = l.cancelAt.Sub(t.at)
	}
	return r, nil
}

func (t *txn) keepProgress(b *scheduler.Renewal, step uuid.UUID) {
	a := t.attempts[b.AttemptID]
	if b.Progress != nil {
		a.progress = b.Progress
	}
	if b.ProgressMessage != "" {
		a.message = b.ProgressMessage
	}
	if b.Checkpoint != nil {
		a.CheckpointBytes = b.Checkpoint.Size()
		t.keepPayloads(step, nil, b.Checkpoint)
	}
	put(t, t.attempts, b.AttemptID, a)
}
