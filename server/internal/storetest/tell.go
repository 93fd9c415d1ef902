package storetest

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func watchChanges(r *rig) {
	ids, gone := r.enqueue(stepOf("a"), stepOf("b")), uuid.New()
	known := []scheduler.Revision{{ID: ids.Execution, Revision: 1}, {ID: gone, Revision: 1}}
	moved, err := r.Store.Moved(r.ctx(), known)
	r.must(err)
	is(r, "moved", len(moved), 1)
	is(r, "gone", moved[0], scheduler.Revision{ID: gone})
	w := r.register("w", "a")
	leases := r.lease(w, "")
	r.succeed(leases[0])
	moved, err = r.Store.Moved(r.ctx(), known[:1])
	r.must(err)
	is(r, "revision", moved[0].Revision, 4)
	list, err := r.Store.Changes(r.ctx(), known, 100)
	r.must(err)
	is(r, "executions", len(list), 1)
	is(r, "entries", len(list[0].Entries), 3)
	is(r, "revision", list[0].Execution.Revision, 4)
	last := list[0].Entries[2]
	is(r, "title", last.Title, "Attempt SUCCEEDED")
	is(r, "its step", last.Step.State, task.StepSucceeded)
	is(r, "its step's attempt", len(last.Step.Attempts), 1)
	list, err = r.Store.Changes(r.ctx(), known, 1)
	r.must(err)
	is(r, "entries within a limit", len(list[0].Entries), 1)

	page, more, err := r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: ids.Execution, AfterOrdinal: -1, StepLimit: 1})
	r.must(err)
	is(r, "more", more, true)
	is(r, "first", page.Steps[0].Name, "a")
	page, more, err = r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: ids.Execution, AfterOrdinal: 0, StepLimit: 1})
	r.must(err)
	is(r, "more", more, false)
	is(r, "second", page.Steps[0].Name, "b")
	page, _, err = r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: ids.Execution, AfterOrdinal: -1, StepLimit: 9, StepNames: []string{"b"}})
	r.must(err)
	is(r, "named", len(page.Steps), 1)
	_, _, err = r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: gone})
	r.unknown(err, scheduler.KindExecution)
}

func timeline(r *rig) {
	w := r.register("w", "a")
	ids := r.enqueue(stepOf("a"))
	r.succeed(r.leaseOne(w))
	entries, err := r.Store.ListTimeline(r.ctx(), ids.Execution, 0, 100)
	r.must(err)
	var titles []string
	for i, en := range entries {
		is(r, "sequence", en.Sequence, int64(i+1))
		titles = append(titles, en.Title)
	}
	is(r, "titles", strings.Join(titles, ", "), "Execution accepted, Attempt leased, Attempt SUCCEEDED, Execution SUCCEEDED")
	is(r, "milestone", entries[2].Milestone, "r1/step/a/attempt/1/ended")
	entries, err = r.Store.ListTimeline(r.ctx(), ids.Execution, 2, 1)
	r.must(err)
	is(r, "page", len(entries), 1)
	_, err = r.Store.ListTimeline(r.ctx(), uuid.New(), 0, 1)
	r.unknown(err, scheduler.KindExecution)
}

// claimEvents claims what is due.
func (r *rig) claimEvents() []outbox.Run {
	r.Helper()
	runs, err := r.Outbox.Claim(r.ctx(), outbox.Claim{ID: uuid.New(), Heads: 10, Events: 3, Expires: time.Minute})
	r.must(err)
	return runs
}

func (r *rig) settle(res outbox.RunResult) (lost int) {
	r.Helper()
	lost, err := r.Outbox.Settle(r.ctx(), []outbox.RunResult{res})
	r.must(err)
	return lost
}

func outboxOrder(r *rig) {
	ids := r.enqueue(stepOf("a"))
	r.succeed(r.leaseOne(r.register("w", "a")))
	want := []task.EventType{
		task.EventExecutionEnqueued, task.EventExecutionStarted, task.EventAttemptLeased, task.EventAttemptSucceeded,
		task.EventStepSucceeded, task.EventExecutionSucceeded,
	}
	_, ok, err := r.Outbox.NextDue(r.ctx())
	r.must(err)
	is(r, "something is due", ok, true)
	next := int64(1)
	seen := map[uuid.UUID]bool{}
	for range 2 {
		runs := r.claimEvents()
		is(r, "runs", len(runs), 1)
		is(r, "claimed twice", len(r.claimEvents()), 0)
		run := runs[0]
		is(r, "events", len(run.Events), 3)
		for _, e := range run.Events {
			is(r, "sequence", e.Sequence, next)
			is(r, "type", e.Type, string(want[next-1]))
			is(r, "aggregate", e.AggregateID, ids.Execution)
			is(r, "its id is new", seen[e.ID], false)
			var data task.Event
			r.must(json.Unmarshal(e.Data, &data))
			is(r, "data", data.ExecutionID, ids.Execution)
			seen[e.ID], next = true, next+1
		}
		is(r, "lost", r.settle(outbox.RunResult{Run: run, Published: 3}), 0)
	}
	is(r, "runs when all is published", len(r.claimEvents()), 0)
	_, ok, err = r.Outbox.NextDue(r.ctx())
	r.must(err)
	is(r, "something is due", ok, false)
}

func outboxFailures(r *rig) {
	r.enqueue(stepOf("a"))
	r.leaseOne(r.register("w", "a"))
	run := r.claimEvents()[0]
	r.settle(outbox.RunResult{Run: run, Published: 1, Failure: &outbox.Failure{Reason: "away", Free: true, Again: 10 * time.Minute}})
	is(r, "runs before it is due", len(r.claimEvents()), 0)
	in, _, err := r.Outbox.NextDue(r.ctx())
	r.must(err)
	r.about("next due", in, 10*time.Minute)
	other := r.enqueue(stepOf("b")) // its own execution's events go on
	runs := r.claimEvents()
	is(r, "runs of others", len(runs), 1)
	is(r, "aggregate", runs[0].AggregateID, other.Execution)
	r.settle(outbox.RunResult{Run: runs[0], Published: len(runs[0].Events)})
	r.Pass(11 * time.Minute)
	run = r.claimEvents()[0]
	is(r, "goes on with what failed", run.Events[0].Sequence, 2)
	is(r, "tries that count", run.Events[0].Attempts, 0)
	r.settle(outbox.RunResult{Run: run, Failure: &outbox.Failure{Reason: "no", Again: time.Minute}})
	r.Pass(2 * time.Minute)
	run = r.claimEvents()[0]
	is(r, "tries that count", run.Events[0].Attempts, 1)
	r.settle(outbox.RunResult{Run: run, Failure: &outbox.Failure{Reason: "never", Dead: true}})
	r.Pass(24 * time.Hour)
	is(r, "runs behind a dead one", len(r.claimEvents()), 0)
	_, ok, err := r.Outbox.NextDue(r.ctx())
	r.must(err)
	is(r, "something is due", ok, false)
}

func outboxLostClaims(r *rig) {
	r.enqueue(stepOf("a"))
	first := r.claimEvents()[0]
	r.Pass(2 * time.Minute) // its relay is gone
	second := r.claimEvents()
	is(r, "runs when the claim was over", len(second), 1)
	is(r, "the same event", second[0].Events[0].ID, first.Events[0].ID)
	is(r, "lost", r.settle(outbox.RunResult{Run: first, Published: 1}), 1)
	is(r, "runs", len(r.claimEvents()), 0)
	is(r, "lost", r.settle(outbox.RunResult{Run: second[0]}), 0) // given back untried
	third := r.claimEvents()
	is(r, "runs when it was given back", len(third), 1)
	is(r, "tries that count", third[0].Events[0].Attempts, 0)
	r.settle(outbox.RunResult{Run: third[0], Published: 1})
	is(r, "lost when it was settled", r.settle(outbox.RunResult{Run: third[0], Published: 1}), 1)
}
