package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

const (
	sweepBatch   = 200
	shortOutage  = 5 * time.Second
	outageSweeps = 5 // sweep intervals
	// creditSessions is how long before the last sweep a session must have been seen to count as
	// seen now.
	creditSessions = 5 * time.Minute
	keepAnswers    = time.Hour // the longest lease
)

// BeginSweep takes the right to sweep for this round. A gap that is longer than a stalled replica
// explains was an outage of the service: what was live at the last sweep lasts anew, once.
func (s *Store) BeginSweep(ctx context.Context, every time.Duration) (start scheduler.SweepStart, err error) {
	err = s.tx(ctx, "begin sweep", func(t *txn) error {
		swept, first := t.sweptAt, t.sweptAt.IsZero()
		gap := t.at.Sub(swept)
		if !first && gap >= 0 && gap < every/2 {
			return nil
		}
		start.Mine = true
		if !first {
			start.Gap = gap
		}
		if start.Gap > max(outageSweeps*every, shortOutage) {
			start.Credited = true
			t.credit(gap, swept)
		}
		t.undo = append(t.undo, func() { t.sweptAt = swept })
		t.sweptAt = t.at
		start.LeasesOver = len(sorted(t.leases, t.over)) > 0
		for _, at := range t.timers {
			start.TimersDue = start.TimersDue || !at.After(t.at)
		}
		return nil
	})
	if err != nil {
		return scheduler.SweepStart{}, err
	}
	return start, nil
}

func (t *txn) over(l lease) bool { return !l.expiresAt.After(t.at) }

// credit lengthens what was live at the last sweep.
func (t *txn) credit(gap time.Duration, swept time.Time) {
	for _, id := range sorted(t.leases, func(l lease) bool { return l.cancelAt != nil }) {
		e := t.executions[t.leases[id].execution]
		if e.CancelDeadline != nil && t.credited(e.ID, id) {
			at := e.CancelDeadline.Add(gap)
			e.CancelDeadline = &at
			put(t, t.executions, e.ID, e)
		}
	}
	for _, id := range sorted(t.leases, func(l lease) bool { return l.expiresAt.After(swept) }) {
		l := t.leases[id]
		if l.cancelAt != nil {
			at := l.cancelAt.Add(gap)
			l.cancelAt = &at
		}
		if at := t.at.Add(min(gap, l.duration)); at.After(l.expiresAt) {
			l.expiresAt = at
		}
		l.expiresAt = earliest(earliest(l.expiresAt, &l.capAt), l.cancelAt)
		put(t, t.leases, id, l)
	}
	for id, w := range t.workers {
		if w.session != uuid.Nil && w.seenAt.After(swept.Add(-creditSessions)) {
			w.seenAt = t.at
			put(t, t.workers, id, w)
		}
	}
}

// credited tells whether a lease is the first of its execution: the grace moves once.
func (t *txn) credited(execution, attempt uuid.UUID) bool {
	return sorted(t.leases, func(l lease) bool { return l.execution == execution && l.cancelAt != nil })[0] == attempt
}

// looksAt tells whether a batch is about an execution.
func looksAt(b scheduler.SweepBatch, execution uuid.UUID) bool {
	return !slices.Contains(b.Skipped, execution) && (len(b.Wait) == 0 || slices.Contains(b.Wait, execution))
}

func limitOf(b scheduler.SweepBatch) int {
	if b.Limit <= 0 {
		return sweepBatch
	}
	return b.Limit
}

// ExpireLeases ends leases that are over, of one batch.
func (s *Store) ExpireLeases(ctx context.Context, b scheduler.SweepBatch) (swept scheduler.Swept, err error) {
	err = s.tx(ctx, "expire leases", func(t *txn) error {
		ids := sorted(t.leases, func(l lease) bool { return t.over(l) && looksAt(b, l.execution) })
		slices.SortStableFunc(ids, func(x, y uuid.UUID) int { return byID(t.leases[x].execution, t.leases[y].execution) })
		ids = ids[:min(len(ids), limitOf(b))]
		var over []lease
		for _, id := range ids {
			l := t.leases[id]
			over = append(over, l)
			swept.Looked = append(swept.Looked, l.execution)
			drop(t, t.leases, id)
		}
		swept.Looked = slices.Compact(swept.Looked)
		g := t.open(swept.Looked...)
		for _, l := range over {
			g.readSteps(l.step)
			end := task.LeaseEnd{StepID: l.step, ExpiresAt: l.expiresAt, SessionCurrent: t.workers[l.worker].session == l.session}
			if err := g.of(l.step).ExpireLease(t.at, end, t.c.Chance()); err != nil {
				return fmt.Errorf("expire attempt %s: %w", l.attempt, err)
			}
		}
		swept.Done, swept.More = len(over), len(over) == limitOf(b)
		return g.finish()
	})
	return swept, err
}

// FireTimers looks at rules of time, of one batch of executions.
func (s *Store) FireTimers(ctx context.Context, b scheduler.SweepBatch) (swept scheduler.Swept, err error) {
	err = s.tx(ctx, "fire timers", func(t *txn) error {
		due := t.dueTimers(b)
		for _, k := range due[:min(len(due), limitOf(b))] {
			if !slices.Contains(swept.Looked, k.execution) {
				swept.Looked = append(swept.Looked, k.execution)
			}
		}
		g := t.open(swept.Looked...)
		for _, k := range due {
			e := g.execs[k.execution]
			if e == nil {
				continue
			}
			swept.Done++
			at := t.timers[k]
			drop(t, t.timers, k)
			if err := g.fire(e, k, at); err != nil {
				return fmt.Errorf("timer %s of execution %s: %w", k.kind, k.execution, err)
			}
		}
		swept.More = len(swept.Looked) > 0
		return g.finish()
	})
	return swept, err
}

// dueTimers lists the timers that are due, the oldest first.
func (t *txn) dueTimers(b scheduler.SweepBatch) []timerKey {
	var due []timerKey
	for k, at := range t.timers {
		if !at.After(t.at) && looksAt(b, k.execution) {
			due = append(due, k)
		}
	}
	slices.SortFunc(due, func(x, y timerKey) int {
		return cmp.Or(t.timers[x].Compare(t.timers[y]), byID(x.execution, y.execution), cmp.Compare(x.kind, y.kind), byID(x.step, y.step))
	})
	return due
}

func (g *gate) fire(e *task.Execution, k timerKey, at time.Time) error {
	d := e.Data()
	switch k.kind {
	case task.TimerStart:
		if d.State == task.ExecutionCreated {
			return e.BecomeDue(g.t.at)
		}
	case task.TimerDeadline:
		if d.State.Terminal() || d.Deadline == nil || g.t.at.Before(*d.Deadline) {
			return nil // it was for an earlier round
		}
		g.readOpen(k.execution)
		g.t.dropLeases(e)
		return e.ExceedDeadline(g.t.at)
	default:
		g.readSteps(k.step)
		return e.FireStepTimer(g.t.at, k.kind, k.step, at.Add(-e.Step(k.step).Data().ScheduleToStart))
	}
	return nil
}

// Tidy forgets which polls were answered so long ago that no grant of theirs can be live.
func (s *Store) Tidy(ctx context.Context) error {
	return s.tx(ctx, "tidy", func(t *txn) error {
		for k, at := range t.answered {
			if at.Before(t.at.Add(-keepAnswers)) {
				drop(t, t.answered, k)
			}
		}
		return nil
	})
}

// HoldPurge gives nobody the right to remove what is old: here everything stays.
func (s *Store) HoldPurge(context.Context, uuid.UUID, time.Duration) (bool, error) { return false, nil }

// EndedGroups has nothing to remove.
func (s *Store) EndedGroups(context.Context) ([]scheduler.EndedGroup, error) { return nil, nil }

// Purge removes nothing.
func (s *Store) Purge(_ context.Context, b scheduler.PurgeBatch) (scheduler.Purged, error) {
	return scheduler.Purged{Next: b.After}, nil
}
