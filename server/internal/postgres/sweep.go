package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	sweepBatch   = 200 // leases of one transaction
	tidyBatch    = 1000
	shortOutage  = 5 * time.Second
	outageSweeps = 5 // sweep intervals

	// The table leases is scanned as a whole while it has at most so many bytes, or so many for
	// each worker: a worker costs as much as some pages.
	defaultSmallLeases    = 8 << 20
	defaultLeasesOfWorker = 16 << 10
)

// BeginSweep takes the right to sweep for this round: the one row that holds the time of the
// last sweep. A gap that is longer than a stalled replica explains was an outage of the
// service, and healthy workers could not renew: their leases last anew, once.
func (s *Store) BeginSweep(ctx context.Context, every time.Duration) (scheduler.SweepStart, error) {
	var start scheduler.SweepStart
	err := s.tx(ctx, "begin sweep", func(ctx context.Context, t *txn) error {
		start = scheduler.SweepStart{}
		row, err := t.q.LockSweep(ctx)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("lock sweep: %w", err)
		}
		gap := row.Now.Time.Sub(row.SweptAt.Time)
		if row.SweptAt.Valid && gap >= 0 && gap < every/2 {
			return nil
		}
		start.Mine = true
		if row.SweptAt.Valid {
			start.Gap = gap
		}
		if start.Gap > max(outageSweeps*every, shortOutage) {
			start.Credited = true
			if err := t.credit(ctx, gap, row.SweptAt.Time); err != nil {
				return err
			}
		}
		if err := t.q.StampSweep(ctx); err != nil {
			return fmt.Errorf("stamp sweep: %w", err)
		}
		start.LeasesOver, start.TimersDue, err = t.sweepWork(ctx)
		return err
	})
	return start, err
}

// sweepWork looks whether anything is over or due.
func (t *txn) sweepWork(ctx context.Context) (leases, timers bool, err error) {
	h, err := t.q.Horizon(ctx)
	if err != nil {
		return false, false, fmt.Errorf("read horizon: %w", err)
	}
	since, began := t.s.timers.begin(h), time.Now() // monotonic
	work, err := t.q.SweepWork(ctx, dbsqlc.SweepWorkParams{Small: t.s.smallLeases, PerWorker: t.s.leasesOfWorker, Since: fromBeginning(since)})
	if err != nil {
		return false, false, fmt.Errorf("look for work: %w", err)
	}
	t.s.timers.learn(since, h, work.NextTimer, began)
	return work.LeasesOver, work.TimersDue, nil
}

// credit lengthens what was live at the last sweep: executions being stopped before leases.
func (t *txn) credit(ctx context.Context, gap time.Duration, swept time.Time) error {
	stopping, err := t.q.CancelingExecutions(ctx)
	if err != nil {
		return fmt.Errorf("lock stopping executions: %w", err)
	}
	if err := t.q.CreditCancelGrace(ctx, dbsqlc.CreditCancelGraceParams{Gap: interval(gap), Ids: stopping}); err != nil {
		return fmt.Errorf("credit grace: %w", err)
	}
	if _, err := t.q.LockAllLeases(ctx); err != nil {
		return fmt.Errorf("lock leases: %w", err)
	}
	if err := t.q.CreditLeases(ctx, dbsqlc.CreditLeasesParams{Gap: interval(gap), SweptAt: instant(swept)}); err != nil {
		return fmt.Errorf("credit leases: %w", err)
	}
	return wrap("credit sessions", t.q.TouchLiveWorkers(ctx, instant(swept.Add(-creditSessions))))
}

// creditSessions is how long before the last sweep a session must have been seen to count as
// seen now.
const creditSessions = 5 * time.Minute

// ExpireLeases ends leases that are over, of one batch.
func (s *Store) ExpireLeases(ctx context.Context, b scheduler.SweepBatch) (scheduler.Swept, error) {
	b = withLimit(b)
	var swept scheduler.Swept
	err := s.tx(ctx, "expire leases", func(ctx context.Context, t *txn) error {
		var err error
		swept, err = t.expireLeases(ctx, b)
		return err
	})
	return swept, err
}

func (t *txn) expireLeases(ctx context.Context, b scheduler.SweepBatch) (scheduler.Swept, error) {
	rows, err := t.q.ExpiredLeases(ctx, dbsqlc.ExpiredLeasesParams{
		Small: t.s.smallLeases, PerWorker: t.s.leasesOfWorker, Skipped: orEmpty(b.Skipped), Wanted: orEmpty(b.Wait), Batch: int32(b.Limit),
	})
	if err != nil {
		return scheduler.Swept{}, fmt.Errorf("find expired leases: %w", err)
	}
	if len(rows) == 0 {
		return scheduler.Swept{}, nil
	}
	swept := scheduler.Swept{More: len(rows) == b.Limit}
	candidates := set{}
	for _, r := range rows {
		candidates[r.ExecutionID] = true
	}
	swept.Looked = candidates.ids()
	g, err := t.lockForSweep(ctx, candidates, b, &swept)
	if err != nil {
		return swept, err
	}
	var attempts []uuid.UUID
	for _, r := range rows {
		if g.execs[r.ExecutionID] != nil {
			attempts = append(attempts, r.AttemptID)
		}
	}
	if len(attempts) == 0 {
		return swept, nil
	}
	var busy []uuid.UUID
	swept.Done, busy, err = t.endExpired(ctx, g, attempts)
	for _, r := range rows {
		if slices.Contains(busy, r.AttemptID) {
			swept.Missed = append(swept.Missed, r.ExecutionID)
		}
	}
	return swept, err
}

// lockForSweep locks candidates, leaving out those that another holds, unless they are to be
// waited for.
func (t *txn) lockForSweep(ctx context.Context, candidates set, b scheduler.SweepBatch, swept *scheduler.Swept) (*gate, error) {
	g, err := t.lock(ctx, candidates.ids(), len(b.Wait) > 0)
	if err != nil {
		return nil, err
	}
	for id := range candidates {
		if g.execs[id] == nil {
			swept.Missed = append(swept.Missed, id)
		}
	}
	return g, nil
}

// endExpired ends those of the leases that are over by the deleting statement's own look; busy
// are those that a renewal holds.
func (t *txn) endExpired(ctx context.Context, g *gate, attempts []uuid.UUID) (n int, busy []uuid.UUID, err error) {
	held, err := t.lockLeases(ctx, attempts, false)
	if err != nil {
		return 0, nil, err
	}
	busy = held.busy.ids()
	var p dbsqlc.DeleteExpiredLeasesParams
	for id, version := range held.versions {
		p.AttemptIds = append(p.AttemptIds, id)
		p.LeaseVersions = append(p.LeaseVersions, version)
	}
	ended, err := t.q.DeleteExpiredLeases(ctx, p)
	if err != nil {
		return 0, nil, fmt.Errorf("delete expired leases: %w", err)
	}
	steps := make([]uuid.UUID, len(ended))
	for i, r := range ended {
		steps[i] = r.StepID
	}
	if err := g.readSteps(ctx, steps); err != nil {
		return 0, nil, err
	}
	now, err := t.q.Now(ctx)
	if err != nil {
		return 0, nil, err
	}
	for _, r := range ended {
		end := task.LeaseEnd{StepID: r.StepID, ExpiresAt: r.ExpiresAt.Time.UTC(), SessionCurrent: r.SessionCurrent}
		if err := g.execs[r.ExecutionID].ExpireLease(now.Time.UTC(), end, rand.Float64()); err != nil {
			return 0, nil, fmt.Errorf("expire attempt %s: %w", r.AttemptID, err)
		}
	}
	return len(ended), busy, g.finish(ctx, now.Time.UTC())
}

// FireTimers looks at rules of time, of one batch of executions.
func (s *Store) FireTimers(ctx context.Context, b scheduler.SweepBatch) (scheduler.Swept, error) {
	b = withLimit(b)
	var swept scheduler.Swept
	err := s.tx(ctx, "fire timers", func(ctx context.Context, t *txn) error {
		due, err := t.q.DueTimers(ctx, dbsqlc.DueTimersParams{
			Since: s.timers.from(), Skipped: orEmpty(b.Skipped), Wanted: orEmpty(b.Wait), Batch: int32(b.Limit),
		})
		if err != nil {
			return fmt.Errorf("find due timers: %w", err)
		}
		swept = scheduler.Swept{More: len(due) > 0, Looked: due}
		if len(due) == 0 {
			return nil
		}
		g, err := t.lockForSweep(ctx, setOf(due), b, &swept)
		if err != nil {
			return err
		}
		swept.Done, err = t.fire(ctx, g)
		return err
	})
	return swept, err
}

func (t *txn) fire(ctx context.Context, g *gate) (int, error) {
	if len(g.execs) == 0 {
		return 0, nil
	}
	timers, err := t.q.TakeTimers(ctx, g.ids())
	if err != nil {
		return 0, fmt.Errorf("take timers: %w", err)
	}
	at, err := t.q.Now(ctx)
	if err != nil {
		return 0, err
	}
	now := at.Time.UTC()
	if err := t.readTimed(ctx, g, timers); err != nil {
		return 0, err
	}
	for _, timer := range timers {
		e := g.execs[timer.ExecutionID]
		if err := t.fireOne(ctx, e, timer, now); err != nil {
			return 0, fmt.Errorf("timer %s of execution %s: %w", timer.Kind, timer.ExecutionID, err)
		}
	}
	return len(timers), g.finish(ctx, now)
}

// readTimed reads the steps that timers are about, and all open ones where a deadline came.
func (t *txn) readTimed(ctx context.Context, g *gate, timers []dbsqlc.Timer) error {
	var steps, whole []uuid.UUID
	for _, timer := range timers {
		if timer.StepID != uuid.Nil {
			steps = append(steps, timer.StepID)
		} else if task.TimerKind(timer.Kind) == task.TimerDeadline {
			whole = append(whole, timer.ExecutionID)
		}
	}
	if err := g.readSteps(ctx, steps); err != nil {
		return err
	}
	return g.readOpen(ctx, whole)
}

func (t *txn) fireOne(ctx context.Context, e *task.Execution, timer dbsqlc.Timer, now time.Time) error {
	d := e.Data()
	switch kind := task.TimerKind(timer.Kind); kind {
	case task.TimerStart:
		if d.State == task.ExecutionCreated {
			return e.BecomeDue(now)
		}
	case task.TimerDeadline:
		if d.State.Terminal() || d.Deadline == nil || now.Before(*d.Deadline) {
			return nil
		}
		if err := t.deleteLiveLeases(ctx, e); err != nil {
			return err
		}
		return e.ExceedDeadline(now)
	case task.TimerScheduleToStart, task.TimerScheduleToClose:
		s := e.Step(timer.StepID)
		if s == nil {
			return nil
		}
		due := timer.FiresAt.Time.UTC().Add(-s.Data().ScheduleToStart)
		return e.FireStepTimer(now, kind, timer.StepID, due)
	}
	return nil
}

// deleteLiveLeases deletes the leases of an execution's live attempts, each by its version,
// before the attempts are ended.
func (t *txn) deleteLiveLeases(ctx context.Context, e *task.Execution) error {
	var p dbsqlc.DeleteLeasesParams
	for _, s := range e.Steps() {
		if a := s.Live(); a != nil {
			p.AttemptIds = append(p.AttemptIds, a.Data().ID)
			p.LeaseVersions = append(p.LeaseVersions, a.Data().LeaseVersion)
		}
	}
	if len(p.AttemptIds) == 0 {
		return nil
	}
	if _, err := t.q.LockLeasesWaiting(ctx, p.AttemptIds); err != nil {
		return fmt.Errorf("lock leases: %w", err)
	}
	deleted, err := t.deleteLeases(ctx, p)
	if err == nil && len(deleted) != len(p.AttemptIds) {
		return fmt.Errorf("%w: %d of %d leases", errStale, len(deleted), len(p.AttemptIds))
	}
	return err
}

// Tidy forgets what is too old to matter, batch by batch, until ctx ends or nothing is left.
func (s *Store) Tidy(ctx context.Context) error {
	for what, forget := range map[string]func(context.Context, int32) (int64, error){
		"forget answered polls": s.reads.DeleteOldAnsweredRequests,
		"forget floors":         s.reads.DeleteOldFloors,
		"forget sessions":       s.reads.DeleteOldSessions,
		"sum up tallies":        s.reads.SumTallies,
		"forget tallies":        s.reads.DeleteOldTallies,
	} {
		for n := int64(tidyBatch); n >= tidyBatch; {
			var err error
			if n, err = forget(ctx, tidyBatch); err != nil {
				return outwardOrNil(ctx, what, err)
			}
		}
	}
	return nil
}

func withLimit(b scheduler.SweepBatch) scheduler.SweepBatch {
	if b.Limit <= 0 {
		b.Limit = sweepBatch
	}
	return b
}

// orEmpty is for arrays in conditions: nil would be NULL, and nothing would match.
func orEmpty(ids []uuid.UUID) []uuid.UUID {
	if ids == nil {
		return []uuid.UUID{}
	}
	return ids
}
