package drill

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB55_TheSameKeyInParallel gives one execution, and everyone its id.
func TestB55_TheSameKeyInParallel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys, clients := count(t, 12, 200), count(t, 20, 50)
	for k := range keys {
		request := graph(step("a"), step("b", "a"))
		request.IdempotencyKey = fmt.Sprint("key ", k)
		ids, created := make([]string, clients), make([]bool, clients)
		fs := make([]func(), clients)
		for i := range fs {
			fs[i] = func() { ids[i], created[i] = w.enqueueAs(i, request) }
		}
		together(fs...)
		times := 0
		for i, id := range ids {
			want(t, "id", id, ids[0])
			if created[i] {
				times++
			}
		}
		want(t, "created", times, 1)
	}
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), keys)
	want(t, "created events", len(w.rows(`SELECT id::text FROM outbox_events WHERE event_type = 'leasehold.execution.v1.enqueued'`)), keys)
}

// enqueueAs enqueues as the i-th client: through each of the replicas, every fourth one in a
// batch.
func (w *world) enqueueAs(i int, request *leaseholdv1.EnqueueExecutionRequest) (id string, created bool) {
	mine := proto.CloneOf(request)
	if i%4 != 3 {
		answer, err := w.Client(i).Executions.EnqueueExecution(w.ctx, mine)
		if err != nil {
			w.t.Errorf("enqueue: %v", err)
		}
		return answer.GetExecution().GetId(), answer.GetCreated()
	}
	answer, err := w.Client(i).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
		Requests: []*leaseholdv1.EnqueueExecutionRequest{mine},
	})
	if err != nil || len(answer.GetResults()) != 1 {
		w.t.Errorf("enqueue in a batch: %v", err)
		return "", false
	}
	one := answer.GetResults()[0].GetResponse()
	return one.GetExecution().GetId(), one.GetCreated()
}

// TestB58_MeaningAndLifeOfAKey, alike on single and batch calls.
func TestB58_MeaningAndLifeOfAKey(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	make := func() *leaseholdv1.EnqueueExecutionRequest {
		e := graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", Input: JSON(`{"n": 1}`), RetryPolicy: retries(1, time.Second)})
		e.IdempotencyKey = "k"
		return e
	}
	id := w.enqueue(make())
	other := map[string]func(*leaseholdv1.EnqueueExecutionRequest){
		"payload":          func(e *leaseholdv1.EnqueueExecutionRequest) { e.Steps[0].Input = JSON(`{"n": 2}`) },
		"maximum_attempts": func(e *leaseholdv1.EnqueueExecutionRequest) { e.Steps[0].RetryPolicy.MaximumAttempts = 2 },
		"name":             func(e *leaseholdv1.EnqueueExecutionRequest) { e.Name = "other" },
		"labels":           func(e *leaseholdv1.EnqueueExecutionRequest) { e.Labels = map[string]string{"a": "b"} },
		"a further step":   func(e *leaseholdv1.EnqueueExecutionRequest) { e.Steps = append(e.Steps, step("b")) },
	}
	looks := func(when string, state leaseholdv1.ExecutionState) {
		for i := range 8 {
			got, created := w.enqueueAs(i, make())
			want(t, when+": id", got, id)
			want(t, when+": created", created, false)
		}
		for what, change := range other {
			e := make()
			change(e)
			_, err := w.Client(1).Executions.EnqueueExecution(w.ctx, e)
			wantReused(t, when+": other "+what, err, id)
			_, err = w.Client(2).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
				Requests: []*leaseholdv1.EnqueueExecutionRequest{graph(step("z")), e},
			})
			wantReused(t, when+": other "+what+" in a batch", err, id)
		}
		want(t, when, w.get(id).GetState(), state)
	}
	looks("live", leaseholdv1.ExecutionState_EXECUTION_STATE_QUEUED)
	h.fail(h.one(long))
	looks("failed", failed)
	want(t, "executions", len(w.rows(`SELECT id::text FROM executions`)), 1)

	elsewhere := make()
	elsewhere.Namespace = "other"
	elsewhere.Name = "other"
	if got := w.enqueue(elsewhere); got == id {
		t.Error("another namespace's key gave the same execution")
	}
}

func wantReused(t *testing.T, what string, err error, id string) {
	t.Helper()
	if status.Code(err) != codes.AlreadyExists || Reason(err) != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("%s: got %v, want ALREADY_EXISTS", what, err)
		return
	}
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.ResourceInfo); ok {
			want(t, what+": existing id", r.GetResourceName(), id)
			return
		}
	}
	t.Errorf("%s: no ResourceInfo", what)
}

// TestEmptyKey_IsNoKey: each such call is another execution.
func TestEmptyKey_IsNoKey(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	e := graph(step("a"))
	e.IdempotencyKey = ""
	if first, second := w.enqueue(e), w.enqueue(e); first == second {
		t.Error("two calls without a key gave one execution")
	}
}
