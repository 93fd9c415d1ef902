package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Report ends attempts by their workers' word, in one transaction. Every item has its own
// answer; one whose rows another transaction holds is answered ErrBusy.
func (s *Store) Report(ctx context.Context, batch []scheduler.Report, wait bool) ([]scheduler.Result[scheduler.Reported], error) {
	var results []scheduler.Result[scheduler.Reported]
	replays := set{}
	err := s.tx(ctx, "report", func(ctx context.Context, t *txn) error {
		r := &reports{
			t: t, batch: batch, wait: wait || t.again, at: map[uuid.UUID]int{}, replays: replays,
			results: make([]scheduler.Result[scheduler.Reported], len(batch)),
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

// reports is one try of a batch.
type reports struct {
	t       *txn
	batch   []scheduler.Report
	wait    bool // for rows that others hold, or an earlier try of its own whose commit is under way
	results []scheduler.Result[scheduler.Reported]
	at      map[uuid.UUID]int // attempt → its position in the batch
	where   map[uuid.UUID]dbsqlc.FindAttemptsRow
	g       *gate
	now     time.Time
	// replays are the attempts whose report was recorded before the first try. A later try may
	// find what one before it has written; that is the call's own.
	replays set
}

func (r *reports) run(ctx context.Context) error {
	if err := r.find(ctx); err != nil {
		return err
	}
	held, err := r.lock(ctx)
	if err != nil {
		return err
	}
	leases := r.toEnd(held)
	ended := setOf(leases.AttemptIds)
	payloads := dbsqlc.PutPayloadsParams{}
	for i := range r.batch { // in the order of the batch
		id := r.batch[i].AttemptID
		if !ended[id] || r.at[id] != i {
			continue
		}
		o := &r.batch[i].Outcome
		step := r.where[id].StepID
		if err := r.g.of(step).Report(r.now, step, o, rand.Float64()); err != nil {
			return fmt.Errorf("report attempt %s: %w", id, err)
		}
		if o.Output != nil {
			addPayload(&payloads, step, roleOutput, o.Output)
		}
		if o.Checkpoint != nil {
			addPayload(&payloads, step, roleCheckpoint, o.Checkpoint)
		}
	}
	if err := r.g.settle(ctx, r.now); err != nil {
		return err
	}
	if err := r.answerLate(ctx, ended); err != nil {
		return err
	}
	w := r.g.writes()
	for id := range ended {
		r.results[r.at[id]].Value = r.reported(id, len(w.requests.StepIds) > 0)
	}
	list := append(endLeases(ctx, leases), w.calls(ctx)...)
	if len(payloads.StepIds) > 0 {
		list = append(list, func(q *dbsqlc.Queries) error { return wrap("put payloads", q.PutPayloads(ctx, payloads)) })
	}
	return r.t.last(ctx, "report", list...)
}

// find looks where the attempts belong: facts that never change, so no lock is needed.
func (r *reports) find(ctx context.Context) error {
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
	r.where = make(map[uuid.UUID]dbsqlc.FindAttemptsRow, len(ids))
	err := r.t.together(ctx,
		func(q *dbsqlc.Queries) error {
			now, err := q.Now(ctx)
			r.now = now.Time.UTC()
			return err
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.FindAttempts(ctx, ids)
			for _, row := range rows {
				r.where[row.ID] = row
			}
			return wrap("find attempts", err)
		})
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, found := r.where[id]; !found {
			r.results[r.at[id]].Err = &scheduler.NotFoundError{Kind: scheduler.KindAttempt, ID: id.String()}
		}
	}
	return nil
}

// lock locks the executions, reads the steps under them, and locks the leases.
func (r *reports) lock(ctx context.Context) (held heldLeases, err error) {
	r.g = r.t.newGate()
	if len(r.where) == 0 {
		return held, nil
	}
	executions, steps, attempts := set{}, []uuid.UUID{}, []uuid.UUID{}
	for id, w := range r.where {
		executions[w.ExecutionID] = true
		steps = append(steps, w.StepID)
		attempts = append(attempts, id)
	}
	if r.wait {
		defer r.t.locking(time.Now())
	}
	err = r.t.together(ctx,
		func(q *dbsqlc.Queries) error {
			rows, err := lockExecutions(ctx, q, executions.ids(), r.wait)
			if err != nil {
				return err
			}
			return r.g.hold(rows)
		},
		func(q *dbsqlc.Queries) error {
			rows, err := q.StepsByID(ctx, steps)
			if err != nil {
				return fmt.Errorf("read steps: %w", err)
			}
			return r.g.take(rows)
		},
		func(q *dbsqlc.Queries) (err error) {
			held, err = lockLeases(ctx, q, attempts, r.wait)
			return err
		})
	if err != nil {
		return held, err
	}
	for id, w := range r.where {
		if r.g.execs[w.ExecutionID] == nil {
			r.results[r.at[id]].Err = scheduler.ErrBusy
		}
	}
	return held, r.t.findBusy(ctx, attempts, &held)
}

// pending are the attempts that have no answer yet.
func (r *reports) pending() []uuid.UUID {
	var ids []uuid.UUID
	for id := range r.where {
		if r.results[r.at[id]].Err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// toEnd are the leases that reports end: those that are locked, with the version that they have.
// Deleting them is the first that is written, and fails unless it deletes them all.
func (r *reports) toEnd(held heldLeases) (p dbsqlc.DeleteLeasesParams) {
	ids := r.pending()
	for _, id := range ids {
		i := r.at[id]
		if held.busy[id] {
			r.results[i].Err = scheduler.ErrBusy
			continue
		}
		if version, live := held.versions[id]; !live || version != r.batch[i].LeaseVersion {
			continue
		}
		if r.batch[i].Outcome.State == task.AttemptCanceled && !r.g.execs[r.where[id].ExecutionID].AwaitsCancel() {
			r.results[i].Err = scheduler.CancelNotRequestedError(id, r.batch[i].LeaseVersion)
			continue
		}
		p.AttemptIds = append(p.AttemptIds, id)
		p.LeaseVersions = append(p.LeaseVersions, r.batch[i].LeaseVersion)
	}
	return p
}

// answerLate answers reports that came for attempts which are not live with that version: a
// repeat gets its answer again, anything else is refused and leaves its trace.
func (r *reports) answerLate(ctx context.Context, ended set) error {
	var ids []uuid.UUID
	for _, id := range r.pending() {
		if !ended[id] {
			ids = append(ids, id)
		}
	}
	late, err := r.t.late(ctx, ids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		i := r.at[id]
		l := late[id]
		l.HeldVersion, l.Outcome = r.batch[i].LeaseVersion, task.OutcomeFingerprint(&r.batch[i].Outcome)
		if l.Replayed() {
			r.t.vouch()
			if !r.t.again {
				r.replays[id] = true
			}
			r.results[i].Value = scheduler.Reported{
				Replayed: r.replays[id], StepState: l.stepState, ExecutionState: l.executionState, NextDue: l.nextDue,
				Opened: true, // perhaps, by an earlier try
			}
			continue
		}
		r.results[i].Err = l.refusal()
		if err := r.recordLate(ctx, r.where[id].ExecutionID, l); err != nil {
			return err
		}
	}
	return nil
}

func (r *reports) recordLate(ctx context.Context, execution uuid.UUID, l lateCall) error {
	e := r.g.execs[execution]
	entry := e.LateEntry(l.Late, l.stepName)
	entry.At = r.now
	n, err := r.t.q.CountEntry(ctx, dbsqlc.CountEntryParams{ExecutionID: execution, Milestone: entry.Milestone})
	if err != nil {
		return fmt.Errorf("count late report: %w", err)
	}
	if n == 0 {
		e.RecordLate(entry)
	}
	return nil
}

func (r *reports) reported(attempt uuid.UUID, opened bool) scheduler.Reported {
	step := r.where[attempt].StepID
	e := r.g.of(step)
	return scheduler.Reported{
		StepState: e.Step(step).Data().State, ExecutionState: e.Data().State, NextDue: e.NextDue(step), Opened: opened,
	}
}
