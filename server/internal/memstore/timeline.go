package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// ListTimeline reads a page of what happened.
func (s *Store) ListTimeline(_ context.Context, execution uuid.UUID, after int64, limit int) (list []scheduler.EntryView, err error) {
	s.read(func(t *txn) {
		row, there := t.executions[execution]
		if !there {
			err = notFound(scheduler.KindExecution, execution)
			return
		}
		list = t.timeline(&row, after, limit)
	})
	return list, err
}

// timeline is what is written, and what is derived from other rows, in order.
func (t *txn) timeline(row *execution, after int64, limit int) []scheduler.EntryView {
	list := slices.Clone(t.entries[row.ID])
	add := func(en task.Entry) { list = append(list, scheduler.EntryView{Entry: en, Count: 1}) }
	add(task.Entry{
		Sequence: 1, Milestone: "r1/execution/enqueued", Stage: task.StageEnqueue, Component: "producer", Title: "Execution accepted",
		At: row.CreatedAt, Details: map[string]string{"name": row.Name, "steps": strconv.Itoa(row.StepCount)},
	})
	if row.EndEntry > 0 {
		add(endEntry(&row.ExecutionData))
	}
	for _, id := range row.steps {
		s := t.steps[id]
		for _, attempt := range s.attempts {
			a := t.attempts[attempt].AttemptData
			add(leasedEntry(&a, s.Name))
			if a.EndEntry > 0 {
				add(endedEntry(&a, s.Name))
			}
		}
	}
	list = slices.DeleteFunc(list, func(en scheduler.EntryView) bool { return en.Sequence <= after })
	slices.SortFunc(list, func(a, b scheduler.EntryView) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return list[:min(len(list), limit)]
}

func endEntry(d *task.ExecutionData) task.Entry {
	details := map[string]string{}
	addFailure(details, d.Failure)
	addText(details, "cancel_reason", d.CancelReason)
	return task.Entry{
		Sequence: d.EndEntry, Milestone: fmt.Sprintf("r%d/execution/ended", d.Round), Stage: task.StageExecution,
		Component: "scheduler", Title: "Execution " + string(d.State), At: *d.EndedAt, Details: details,
	}
}

func leasedEntry(a *task.AttemptData, step string) task.Entry {
	en := attemptEntry(a, step, "leased")
	en.Sequence, en.Stage, en.Component, en.Title, en.At = a.LeaseEntry, task.StageScheduling, "dispatcher", "Attempt leased", a.LeasedAt
	en.Details = map[string]string{"worker_name": a.WorkerName}
	addText(en.Details, "node", a.Node)
	return en
}

func endedEntry(a *task.AttemptData, step string) task.Entry {
	en := attemptEntry(a, step, "ended")
	en.Sequence, en.Stage, en.Component, en.Title, en.At = a.EndEntry, task.StageExecution, "worker", "Attempt "+string(a.State), *a.EndedAt
	if a.State == task.AttemptLost || a.State == task.AttemptTimedOut {
		en.Stage = task.StageRecovery
	}
	if len(a.Outcome) == 0 {
		en.Component = "scheduler"
	}
	en.Details = map[string]string{}
	addText(en.Details, "reason", a.Reason)
	addFailure(en.Details, a.Failure)
	if a.NextDue != nil {
		en.Details["next_attempt_time"] = a.NextDue.Format(time.RFC3339Nano)
	}
	return en
}

func attemptEntry(a *task.AttemptData, step, what string) task.Entry {
	worker := a.WorkerID
	return task.Entry{
		Milestone: fmt.Sprintf("r%d/step/%s/attempt/%d/%s", a.Round, step, a.Number, what), StepName: step,
		AttemptNumber: a.Number, LeaseVersion: a.LeaseVersion, WorkerID: &worker,
	}
}

func addFailure(details map[string]string, f *task.Failure) {
	if f != nil {
		addText(details, "failure_type", f.Type)
		addText(details, "failure_message", f.Message)
	}
}

func addText(details map[string]string, key, text string) {
	if text != "" {
		details[key] = text
	}
}
