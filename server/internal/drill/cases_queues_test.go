package drill

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

func prioritized(p int32) *leaseholdv1.EnqueueExecutionRequest {
	e := graph(step("a"))
	e.Priority = p
	return e
}

// TestB114_TheNextFreeSlotTakesTheUrgentOne of a thousand.
func TestB114_TheNextFreeSlotTakesTheUrgentOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 300, 1000)
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return prioritized(0) })
	h := w.worker(0, 10)
	held := h.take(10, long)
	urgent := w.enqueue(prioritized(50))
	w.enqueue(prioritized(-50))
	h.succeed(held[0])
	l := h.at(1).one(long)
	want(t, "next", l.GetExecutionId(), urgent)
	h.succeed(l)
}

// TestB114_PriorityIsStrict: while urgent ones come faster than they are done, a low one waits.
func TestB114_PriorityIsStrict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.enqueue(prioritized(-1))
	h := w.worker(0, 10)
	until := time.Now().Add(time.Duration(count(t, 2, 300)) * time.Second)
	for first := true; first || time.Now().Before(until); first = false {
		w.enqueueMany(11, func(int) *leaseholdv1.EnqueueExecutionRequest { return prioritized(10) })
		for _, l := range h.take(10, long) {
			if l.GetExecutionId() == low {
				t.Fatal("the low one was leased while urgent ones waited")
			}
			h.succeed(l)
		}
	}
	for { // the urgent ones that were left, then the low one
		l := h.one(long)
		h.succeed(l)
		if l.GetExecutionId() == low {
			break
		}
	}
	h.nothing(300 * time.Millisecond)
}

// TestB117_WorkThatNobodyCanDo stays ready; a deadline still ends it, and a cancel.
func TestB117_WorkThatNobodyCanDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.worker(0, 1).nothing(0)
	for _, end := range []string{"cancel", "deadline"} {
		e := graph(&leaseholdv1.StepSpec{Name: "a", Capability: "nobody-has-this"}, step("b", "a"))
		if end == "deadline" {
			e.Timeout = durationpb.New(time.Duration(count(t, 1, 60)) * time.Second)
		}
		id := w.enqueue(e)
		want(t, "state", w.get(id).GetState(), leaseholdv1.ExecutionState_EXECUTION_STATE_QUEUED)
		want(t, "step", w.stepOf(id, "a").GetState(), stepReady)
		if end == "cancel" {
			want(t, "cancel", w.cancel(1, id).GetState(), canceled)
			continue
		}
		got := w.awaitState(id, failed)
		want(t, "failure", got.GetFailure().GetType(), "EXECUTION_DEADLINE_EXCEEDED")
		want(t, "a", find(t, got, "a").GetState(), stepFailed)
		want(t, "b", find(t, got, "b").GetState(), stepSkipped)
	}
}

// TestB117_IsVisibleToOperators: how much, since when, and that nobody can do it.
func TestB117_IsVisibleToOperators(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.worker(0, 1)
	id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "nobody-has-this"}))
	w.explained(id, "a", "NO_CAPABLE_WORKER")
	c := w.capability("nobody-has-this")
	want(t, "ready", c.GetReady(), 1)
	want(t, "live workers", c.GetLiveWorkers(), 0)
	want(t, "age", c.GetOldestReadyAge() != nil, true)
	w.cancel(0, id)
	w.explained(id, "a", "TERMINAL")
	want(t, "ready", w.capability("nobody-has-this").GetReady(), 0)
}

// TestB116_OldWorkersDoNotGetNewKinds, and no attempt is spent on them.
func TestB116_OldWorkersDoNotGetNewKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 40, 100)
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest {
		return graph(&leaseholdv1.StepSpec{Name: "a", Capability: "mail-v2"})
	})
	before := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"mail-v1"}, Slots: int32(n)})
	after := w.register(1, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"mail-v1", "mail-v2"}, Slots: 5})
	want(t, "live workers", w.capability("mail-v2").GetLiveWorkers(), 1)
	together(
		func() { before.nothing(time.Second) },
		func() { after.finish(n) })
	each(ids, func(_ int, id string) {
		s := w.awaitState(id, succeeded).GetSteps()[0]
		want(t, "attempts that count", s.GetCountedAttempts(), 1)
		for _, a := range s.GetAttempts() { // on a slow machine some may have come too late for their poll
			want(t, "worker", a.GetWorkerId(), after.ID)
		}
	})
}

// TestB120_PagingWithEqualTimes: nothing is skipped, nothing comes twice.
func TestB120_PagingWithEqualTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 1000
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	if times := len(w.rows(`SELECT DISTINCT created_at::text FROM executions`)); times >= n/10 {
		t.Fatalf("%d different times: this tests nothing", times)
	}
	seen := map[string]int{}
	last := ""
	request := &leaseholdv1.ListExecutionsRequest{PageSize: 7}
	for page := 0; ; page++ {
		answer, err := w.Client(page).Executions.ListExecutions(w.ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range answer.GetExecutions() {
			seen[e.GetId()]++
			key := e.GetCreateTime().AsTime().Format("2006-01-02T15:04:05.000000") + e.GetId()
			if last != "" && key >= last {
				t.Errorf("%s comes after %s: not newest first", key, last)
			}
			last = key
		}
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	want(t, "different ids", len(seen), n)
	for _, id := range ids {
		want(t, "times "+id, seen[id], 1)
	}
}
