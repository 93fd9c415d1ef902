package postgres

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Renew keeps attempts, in one transaction. Every item has its own answer; one whose lease
// another transaction holds is answered ErrBusy.
func (s *Store) Renew(ctx context.Context, batch []scheduler.Renewal, wait bool) ([]scheduler.Result[scheduler.Renewed], error) {
	var results []scheduler.Result[scheduler.Renewed]
	err := s.tx(ctx, "renew", func(ctx context.Context, t *txn) error {
		r := &renewals{
			t: t, batch: batch, wait: wait, at: map[uuid.UUID]int{},
			results: make([]scheduler.Result[scheduler.Renewed], len(batch)),
		}
		if err := r.run(ctx); err != nil {
			return err
		}
		results = r.results
		return nil
	})
	if err != nil {
		return nil, err // not what an earlier try found: nobody knows whether it was committed
	}
	return results, nil
}

// renewals is one try of a batch.
type renewals struct {
	t       *txn
	batch   []scheduler.Renewal
	wait    bool
	results []scheduler.Result[scheduler.Renewed]
	at      map[uuid.UUID]int // attempt → its position in the batch
}

func (r *renewals) run(ctx context.Context) error {
	ids := make([]uuid.UUID, 0, len(r.batch))
	for i := range r.batch {
		id := r.batch[i].AttemptID
		if _, twice := r.at[id]; twice {
			r.results[i].Err = scheduler.ErrBusy // after the first one
			continue
		}
		r.at[id] = i
		ids = append(ids, id)
	}
	held, err := r.t.lockLeases(ctx, ids, r.wait)
	if err != nil {
		return err
	}
	renewed, err := r.renew(ctx, held)
	if err != nil {
		return err
	}
	var late []uuid.UUID
	for _, id := range ids {
		switch i := r.at[id]; {
		case renewed[id]:
		case held.busy[id]:
			r.results[i].Err = scheduler.ErrBusy
		case held.versions[id] == r.batch[i].LeaseVersion: // live, but of another session
			r.results[i].Err = scheduler.OtherSessionError(id, r.batch[i].LeaseVersion)
		default:
			late = append(late, id)
		}
	}
	return r.refuse(ctx, late)
}

func (r *renewals) renew(ctx context.Context, held heldLeases) (set, error) {
	var p dbsqlc.RenewLeasesParams
	for id := range held.versions {
		b := &r.batch[r.at[id]]
		p.AttemptIds = append(p.AttemptIds, id)
		p.LeaseVersions = append(p.LeaseVersions, b.LeaseVersion)
		p.SessionIds = append(p.SessionIds, b.SessionID)
		p.Durations = append(p.Durations, interval(b.Duration))
	}
	renewed := set{}
	if len(p.AttemptIds) == 0 {
		return renewed, nil
	}
	rows, err := r.t.q.RenewLeases(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	for i := range rows {
		row := &rows[i]
		renewed[row.AttemptID] = true
		r.results[r.at[row.AttemptID]].Value = scheduler.Renewed{
			WorkerID: row.WorkerID, ExpiresAt: row.ExpiresAt.Time.UTC(), Remaining: fromInterval(row.Remaining), Cancel: row.Stopping,
			CancelAt: fromInstant(row.CancelAt), CancelRemaining: fromInterval(row.CancelRemaining), Draining: row.Draining,
		}
	}
	return renewed, r.keep(ctx, rows)
}

// keep stores progress and checkpoints, under the leases' locks.
func (r *renewals) keep(ctx context.Context, rows []dbsqlc.RenewLeasesRow) error {
	var progress dbsqlc.SetProgressParams
	var payloads dbsqlc.PutPayloadsParams
	for i := range rows {
		b := &r.batch[r.at[rows[i].AttemptID]]
		if b.Progress == nil && b.ProgressMessage == "" && b.Checkpoint == nil {
			continue
		}
		value, size := 0.0, -1
		if b.Progress != nil {
			value = *b.Progress
		}
		if b.Checkpoint != nil {
			size = b.Checkpoint.Size()
			addPayload(&payloads, rows[i].StepID, roleCheckpoint, b.Checkpoint)
		}
		progress.Ids = append(progress.Ids, b.AttemptID)
		progress.HasProgress = append(progress.HasProgress, b.Progress != nil)
		progress.Progress = append(progress.Progress, value)
		progress.Messages = append(progress.Messages, b.ProgressMessage)
		progress.CheckpointBytes = append(progress.CheckpointBytes, int32(size))
	}
	if len(payloads.StepIds) > 0 {
		if err := r.t.q.PutPayloads(ctx, payloads); err != nil {
			return fmt.Errorf("put checkpoints: %w", err)
		}
	}
	if len(progress.Ids) == 0 {
		return nil
	}
	return wrap("set progress", r.t.q.SetProgress(ctx, progress))
}

func (r *renewals) refuse(ctx context.Context, ids []uuid.UUID) error {
	late, err := r.t.late(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		i := r.at[id]
		l, known := late[id]
		if !known {
			r.results[i].Err = &scheduler.NotFoundError{Kind: scheduler.KindAttempt, ID: id.String()}
			continue
		}
		l.HeldVersion = r.batch[i].LeaseVersion
		r.results[i].Err = l.refusal()
	}
	return nil
}
