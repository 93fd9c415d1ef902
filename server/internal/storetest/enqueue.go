package storetest

import (
	"errors"
	"time"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func enqueueAccepts(r *rig) {
	spec := specOf(stepOf("a"), stepOf("b", "a"))
	spec.Labels = map[string]string{"team": "x"}
	spec.Steps[0].Input = &task.Payload{JSON: true, Body: []byte(`{"n": 1}`)}
	n := newExecution(spec)
	results, err := r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{n}, false, false)
	r.must(err)
	r.must(results[0].Err)
	v := results[0].Value
	is(r, "created", v.Created, true)
	is(r, "state", v.Execution.State, task.ExecutionQueued)
	is(r, "steps", len(v.Execution.Steps), 2)
	got := r.get(n.IDs.Execution)
	is(r, "open steps", got.OpenSteps, 2)
	is(r, "label", got.Labels["team"], "x")
	is(r, "input", string(got.Steps[0].Input.Body), `{"n": 1}`)
	is(r, "parents", len(got.Steps[1].DependsOn), 1)
	is(r, "a root has its due time", got.Steps[0].NextDue != nil, true)
	is(r, "a blocked step has none", got.Steps[1].NextDue == nil, true)
	r.states(n.IDs.Execution, task.StepReady, task.StepBlocked)

	later := specOf(stepOf("a"))
	later.StartDelay = time.Hour
	is(r, "state of one that starts later", r.get(r.accept(later).Execution).State, task.ExecutionCreated)
}

func enqueueRepeats(r *rig) {
	spec := specOf(stepOf("a"))
	spec.IdempotencyKey = "k"
	first := newExecution(spec)
	other := specOf(stepOf("b"))
	other.IdempotencyKey = "k"
	elsewhere := specOf(stepOf("b"))
	elsewhere.IdempotencyKey, elsewhere.Namespace = "k", "other"
	results, err := r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{
		first, newExecution(spec), newExecution(other), newExecution(elsewhere),
	}, false, false)
	r.must(err)
	for i, created := range []bool{true, false} {
		r.must(results[i].Err)
		is(r, "created", results[i].Value.Created, created)
		is(r, "id", results[i].Value.Execution.ID, first.IDs.Execution)
	}
	var reused *scheduler.KeyReusedError
	if !errors.As(results[2].Err, &reused) || reused.ExistingID != first.IDs.Execution.String() || reused.Index != 2 {
		r.Fatalf("other content: got %v", results[2].Err)
	}
	r.must(results[3].Err)
	is(r, "created in another namespace", results[3].Value.Created, true)
	results, err = r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{newExecution(spec)}, false, false)
	r.must(err)
	is(r, "later repeat's id", results[0].Value.Execution.ID, first.IDs.Execution)
	is(r, "later repeat has its steps", len(results[0].Value.Execution.Steps), 1)
	view, _, err := r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{Namespace: "default", IdempotencyKey: "k"})
	r.must(err)
	is(r, "found by its key", view.ID, first.IDs.Execution)
}

func enqueueAllOrNothing(r *rig) {
	taken := specOf(stepOf("a"))
	taken.IdempotencyKey = "k"
	r.accept(taken)
	other := specOf(stepOf("b"))
	other.IdempotencyKey = "k"
	fresh := newExecution(specOf(stepOf("a")))
	_, err := r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{fresh, newExecution(other)}, true, true)
	var reused *scheduler.KeyReusedError
	if !errors.As(err, &reused) || reused.Index != 1 {
		r.Fatalf("got %v", err)
	}
	_, _, err = r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: fresh.IDs.Execution})
	r.unknown(err, scheduler.KindExecution)
	results, err := r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{fresh, newExecution(taken)}, true, true)
	r.must(err)
	is(r, "the new one", results[0].Value.Created, true)
	is(r, "the one that was there", results[1].Value.Created, false)
}
