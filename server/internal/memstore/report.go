package memstore

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Report ends attempts by their workers' word, in one transaction.
func (s *Store) Report(ctx context.Context, batch []scheduler.Report, _ bool) ([]scheduler.Result[scheduler.Reported], error) {
	results := make([]scheduler.Result[scheduler.Reported], len(batch))
	err := s.tx(ctx, "report", func(t *txn) error {
		r := &reports{txn: t, batch: batch, results: results}
		return r.run()
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

type reports struct {
	*txn
	batch   []scheduler.Report
	results []scheduler.Result[scheduler.Reported]
	g       *gate
}

func (r *reports) run() error {
	var steps []uuid.UUID
	for i := range r.batch {
		if a, known := r.attempts[r.batch[i].AttemptID]; known {
			steps = append(steps, a.StepID)
		}
	}
	r.g = r.openSteps(steps...)
	seen := map[uuid.UUID]bool{}
	var ended, late []int
	for i := range r.batch {
		b := &r.batch[i]
		if seen[b.AttemptID] {
			r.results[i].Err = scheduler.ErrBusy // after the first one
			continue
		}
		seen[b.AttemptID] = true
		done, err := r.end(b)
		switch {
		case err != nil:
			r.results[i].Err = err
		case done:
			ended = append(ended, i)
		default:
			late = append(late, i)
		}
	}
	return r.write(ended, late)
}

// end deletes the lease that a report is for: only what that deletes has ended.
func (r *reports) end(b *scheduler.Report) (done bool, err error) {
	if _, known := r.attempts[b.AttemptID]; !known {
		return false, notFound(scheduler.KindAttempt, b.AttemptID)
	}
	l, live := r.leases[b.AttemptID]
	if !live || l.version != b.LeaseVersion {
		return false, nil
	}
	if b.Outcome.State == task.AttemptCanceled && !r.g.of(l.step).AwaitsCancel() {
		return false, scheduler.CancelNotRequestedError(b.AttemptID, b.LeaseVersion)
	}
	drop(r.txn, r.leases, b.AttemptID)
	return true, nil
}

// write lets the domain end what was reported, and answers.
func (r *reports) write(ended, late []int) error {
	for _, i := range ended {
		b := &r.batch[i]
		step := r.attempts[b.AttemptID].StepID
		if err := r.g.of(step).Report(r.at, step, &b.Outcome, r.c.Chance()); err != nil {
			return fmt.Errorf("report attempt %s: %w", b.AttemptID, err)
		}
		r.keepPayloads(step, b.Outcome.Output, b.Outcome.Checkpoint)
	}
	if err := r.g.settle(); err != nil {
		return err
	}
	for _, i := range late {
		r.answerLate(i)
	}
	for _, i := range ended {
		step := r.attempts[r.batch[i].AttemptID].StepID
		e := r.g.of(step)
		r.results[i].Value = scheduler.Reported{
			StepState: e.Step(step).Data().State, ExecutionState: e.Data().State, NextDue: e.NextDue(step), Opened: true,
		}
	}
	return r.g.save()
}

// answerLate answers a report for an attempt that is not live with that version: a repeat gets
// its answer again, anything else is refused and leaves its trace.
func (r *reports) answerLate(i int) {
	b := &r.batch[i]
	l, _ := r.late(b.AttemptID, b.LeaseVersion)
	l.Outcome = task.OutcomeFingerprint(&b.Outcome)
	if l.Replayed() {
		r.results[i].Value = scheduler.Reported{
			Replayed: true, StepState: l.stepState, ExecutionState: l.executionState, NextDue: l.nextDue,
		}
		return
	}
	r.results[i].Err = l.refusal()
	e := r.g.execs[l.execution]
	entry := e.LateEntry(l.Late, l.stepName)
	entry.At = r.at
	if !r.countEntry(l.execution, entry.Milestone) {
		e.RecordLate(entry)
	}
}

// countEntry counts a milestone that is there already.
func (t *txn) countEntry(execution uuid.UUID, milestone string) bool {
	list := t.entries[execution]
	for i := range list {
		if list[i].Milestone == milestone {
			counted := append([]scheduler.EntryView(nil), list...)
			counted[i].Count++
			put(t, t.entries, execution, counted)
			return true
		}
	}
	return false
}

// keepPayloads stores what a worker gave of a step, as far as it gave it.
func (t *txn) keepPayloads(id uuid.UUID, output, checkpoint *task.Payload) {
	s := t.steps[id]
	if output != nil {
		s.output = output
	}
	if checkpoint != nil {
		s.checkpoint = checkpoint
	}
	put(t, t.steps, id, s)
}
