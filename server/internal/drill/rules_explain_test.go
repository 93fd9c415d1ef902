package drill

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Each situation, as an operator asks for it. That the answers agree with what the dispatcher
// does is tested over random situations beside the store.

func TestExplain_WaitingForParents(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	id := w.enqueue(graph(step("a"), step("b"), step("c", "a", "b"), step("d", "c")))
	l := h.one(long)
	r := w.explained(id, "c", "WAITING_FOR_PARENTS")
	want(t, "parents", r.GetParentCount(), 2)
	states := map[string]leaseholdv1.StepState{}
	for _, p := range r.GetParents() {
		states[p.GetName()] = p.GetState()
	}
	want(t, "the leased one", states[l.GetStepName()], leaseholdv1.StepState_STEP_STATE_RUNNING)
	want(t, "since", r.GetSince().AsTime(), w.get(id).GetCreateTime().AsTime())
	h.succeed(l)
	r = w.explained(id, "c", "WAITING_FOR_PARENTS")
	want(t, "parents that are left", len(r.GetParents()), 1)
	want(t, "of d", w.explained(id, "d", "WAITING_FOR_PARENTS").GetParents()[0].GetName(), "c")
}

// A start, a backoff and a hand-back: each says when, and where the time comes from.
func TestExplain_DueLater(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 3)
	due := func(id, name string, kind leaseholdv1.DueKind, least time.Duration) {
		t.Helper()
		r := w.explained(id, name, "DUE_LATER")
		want(t, "kind", r.GetDueKind(), kind)
		want(t, "due", r.GetDueTime().AsTime(), w.stepOf(id, name).GetNextAttemptTime().AsTime())
		if left := r.GetDueRemaining().AsDuration(); left < least-time.Minute || left > least {
			t.Errorf("%v: %s are left of %s", kind, left, least)
		}
	}
	e := graph(step("a"))
	e.Start = &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(time.Hour)}
	id := w.enqueue(e)
	due(id, "a", leaseholdv1.DueKind_DUE_KIND_START, time.Hour)
	want(t, "since", w.explained(id, "a", "DUE_LATER").GetSince().AsTime(), w.get(id).GetCreateTime().AsTime())

	child := step("child", "a")
	child.StartDelay = durationpb.New(2 * time.Hour)
	failing := step("failing")
	failing.RetryPolicy = retries(3, time.Hour)
	id = w.enqueue(graph(step("a"), failing, step("released"), child))
	leases := byStep(h.take(3, long))
	h.succeed(leases["a"])
	h.fail(leases["failing"])
	h.report(leases["released"], Released("not here", time.Hour))
	due(id, "failing", leaseholdv1.DueKind_DUE_KIND_BACKOFF, time.Hour)
	due(id, "released", leaseholdv1.DueKind_DUE_KIND_RELEASE, time.Hour)
	due(id, "child", leaseholdv1.DueKind_DUE_KIND_START, 2*time.Hour)
	ended := w.stepOf(id, "a").GetAttempts()[0].GetEndTime().AsTime()
	want(t, "since the parent ended", w.explained(id, "child", "DUE_LATER").GetSince().AsTime(), ended)
	ended = w.stepOf(id, "failing").GetAttempts()[0].GetEndTime().AsTime()
	want(t, "since the attempt ended", w.explained(id, "failing", "DUE_LATER").GetSince().AsTime(), ended)
}

func TestExplain_CapabilityPaused(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.worker(0, 1)
	id := w.enqueue(graph(step("a")))
	paused := w.pause(0, "work", "the disk is full")
	r := w.explained(id, "a", "CAPABILITY_PAUSED")
	want(t, "since", r.GetSince().AsTime(), paused.GetPauseTime().AsTime())
	want(t, "reason", r.GetGivenReason(), "the disk is full")
	w.resume(0, "work")
	w.explained(id, "a", "")
}

// Nobody ever offered it; then those that did are gone.
func TestExplain_NoCapableWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Replicas, c.SessionTimeout = 2, 1500*time.Millisecond })
	id := w.enqueue(graph(step("a")))
	other := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"other"}})
	there := w.register(0, &leaseholdv1.RegisterWorkerRequest{Namespace: "elsewhere", Capabilities: []string{"work"}})
	r := w.explained(id, "a", "NO_CAPABLE_WORKER")
	want(t, "since", r.GetSince().AsTime(), w.get(id).GetCreateTime().AsTime())
	h := w.worker(0, 1)
	w.await(id, "the worker falls silent", func(*leaseholdv1.Execution) bool {
		return codesOf(w.explain(id, "a")) == "NO_CAPABLE_WORKER"
	})
	seen := w.workerOf(h)
	want(t, "live", seen.GetLive(), false)
	want(t, "since it was seen", w.explained(id, "a", "NO_CAPABLE_WORKER").GetSince().AsTime(), seen.GetLastSeenTime().AsTime())
	h.succeed(h.one(long)) // its poll revives it
	want(t, "state", w.get(id).GetState(), succeeded)
	other.nothing(0)
	there.nothing(0)
}

func TestExplain_NodeUnavailable(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.on(0, "", "n1", "")
	w.worker(0, 1)
	pinned := step("a")
	pinned.Node = "n2"
	id := w.enqueue(graph(pinned))
	r := w.explained(id, "a", "NODE_UNAVAILABLE")
	want(t, "capable workers elsewhere", r.GetCapableWorkers(), 2)
	w.on(0, "", "n2", "")
	w.explained(id, "a", "")
}

func TestExplain_WorkersFull(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	w.enqueue(graph(step("first")))
	l := h.one(long)
	id := w.enqueue(graph(step("a")))
	r := w.explained(id, "a", "WORKERS_FULL")
	want(t, "capable workers", r.GetCapableWorkers(), 1)
	w.drain(0, drainOf(true, w.worker(0, 5))) // a drained one does not help
	w.explained(id, "a", "WORKERS_FULL")
	h.succeed(l)
	w.explained(id, "a", "")
}

func TestExplain_WorkersDrained(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.on(0, "", "n1", "")
	id := w.enqueue(graph(step("a")))
	w.drain(0, drainOf(true, nodeName("n1")))
	r := w.explained(id, "a", "WORKERS_DRAINED")
	want(t, "reason", r.GetGivenReason(), "maintenance")
	want(t, "since it was drained, not since it waits", r.GetSince().AsTime().After(w.get(id).GetCreateTime().AsTime()), true)
	w.on(0, "", "n2", "")
	w.explained(id, "a", "")
}

// With as many before it as there are free slots it is behind others; with fewer nothing hinders it.
func TestExplain_BehindOthers(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 3)
	both := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work", "more"}})
	var others []string
	for range 5 {
		e := graph(step("other"))
		e.Priority = 10
		others = append(others, w.enqueue(e))
	}
	id := w.enqueue(graph(step("a")))
	w.enqueue(graph(step("later")))
	urgent := graph(&leaseholdv1.StepSpec{Name: "m", Capability: "more"})
	urgent.Priority = 20
	w.enqueue(urgent) // takes a slot of a worker that could have done ours
	r := w.explained(id, "a", "BEHIND_OTHERS")
	want(t, "ahead", r.GetAhead(), 6)
	want(t, "free slots", r.GetFreeSlots(), 4)
	want(t, "capped", r.GetAheadCapped(), false)
	for _, other := range others[:3] {
		w.cancel(0, other)
	}
	w.explained(id, "a", "") // three before it, four slots
	both.succeed(both.one(long))
	h.finish(2)
	h.one(long)
	w.explained(id, "a", "RUNNING")
}

func TestExplain_ExecutionCanceling(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("a")))
	h := w.worker(0, 1)
	h.one(long)
	w.cancel(0, id)
	r := w.explained(id, "a", "EXECUTION_CANCELING RUNNING")
	want(t, "reason", r.GetGivenReason(), "asked")
	var asked time.Time
	for _, e := range w.timeline(id) {
		if e.GetTitle() == "Cancel requested" {
			asked = e.GetTime().AsTime()
		}
	}
	want(t, "since", r.GetSince().AsTime(), asked)
}

func TestExplain_Running(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("a")))
	h := w.on(0, "worker-7", "n1", "")
	l := h.one(long)
	w.pause(0, "work", "") // what runs may finish
	r := w.explained(id, "a", "RUNNING")
	a := r.GetAttempt()
	want(t, "by whom", a.GetWorkerName()+" on "+a.GetNode(), "worker-7 on n1")
	want(t, "attempt", a.GetId(), l.GetAttemptId())
	want(t, "version", a.GetLeaseVersion(), l.GetLeaseVersion())
	want(t, "until", a.GetLeaseExpireTime().AsTime(), l.GetExpireTime().AsTime())
	want(t, "since", r.GetSince().AsTime(), a.GetLeaseTime().AsTime())
}

func TestExplain_Terminal(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("good"), once("bad"), step("never", "bad")))
	h := w.worker(0, 2)
	leases := byStep(h.take(2, long))
	h.succeed(leases["good"])
	h.fail(leases["bad"])
	for name, state := range map[string]leaseholdv1.StepState{
		"good": leaseholdv1.StepState_STEP_STATE_SUCCEEDED, "bad": stepFailed, "never": stepSkipped,
	} {
		r := w.explained(id, name, "TERMINAL")
		want(t, name, w.explain(id, name).GetStepState(), state)
		ended := w.stepOf(id, "good").GetAttempts()[0].GetEndTime().AsTime()
		if name != "good" {
			ended = w.stepOf(id, "bad").GetAttempts()[0].GetEndTime().AsTime()
		}
		want(t, "since", r.GetSince().AsTime(), ended)
	}
	w.retry(0, &leaseholdv1.RetryExecutionRequest{ExecutionId: id})
	w.explained(id, "bad", "")
	want(t, "since the new round", w.explained(id, "never", "WAITING_FOR_PARENTS").GetSince().AsTime(), w.get(id).GetDueTime().AsTime())
}

// Several things hold at once: all are told, the most fundamental first.
func TestExplain_AllThatHolds(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	late := step("late")
	late.StartDelay = durationpb.New(time.Hour)
	late.Capability = "rare"
	child := step("child", "late")
	child.Capability = "rare"
	id := w.enqueue(graph(late, child))
	w.pause(0, "rare", "")
	w.explained(id, "late", "CAPABILITY_PAUSED DUE_LATER NO_CAPABLE_WORKER")
	w.explained(id, "child", "WAITING_FOR_PARENTS CAPABILITY_PAUSED NO_CAPABLE_WORKER")
	h := w.register(0, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"rare"}})
	w.drain(0, drainOf(true, h))
	w.explained(id, "late", "CAPABILITY_PAUSED DUE_LATER WORKERS_DRAINED")
	w.resume(0, "rare")
	w.drain(0, drainOf(false, h))
	w.explained(id, "late", "DUE_LATER")
}

func TestExplain_NamesAndRefusals(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("a")))
	stepID := w.stepOf(id, "a").GetId()
	ask := func(r *leaseholdv1.ExplainStepRequest) (*leaseholdv1.ExplainStepResponse, error) {
		return w.Client(0).Operators.ExplainStep(w.ctx, r)
	}
	byID, err := ask(&leaseholdv1.ExplainStepRequest{StepId: stepID})
	if err != nil || byID.GetStepName() != "a" || byID.GetExecutionId() != id || codesOf(byID) != "NO_CAPABLE_WORKER" {
		t.Errorf("by id: %v, %v", byID, err)
	}
	const unknown = "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f"
	for _, tt := range []struct {
		r      *leaseholdv1.ExplainStepRequest
		code   codes.Code
		reason string
	}{
		{&leaseholdv1.ExplainStepRequest{StepId: unknown}, codes.NotFound, "STEP_NOT_FOUND"},
		{&leaseholdv1.ExplainStepRequest{ExecutionId: id, StepName: "b"}, codes.NotFound, "STEP_NOT_FOUND"},
		{&leaseholdv1.ExplainStepRequest{ExecutionId: unknown, StepName: "a"}, codes.NotFound, "EXECUTION_NOT_FOUND"},
		{&leaseholdv1.ExplainStepRequest{}, codes.InvalidArgument, "INVALID_FIELD"},
		{&leaseholdv1.ExplainStepRequest{ExecutionId: id}, codes.InvalidArgument, "INVALID_FIELD"},
		{&leaseholdv1.ExplainStepRequest{StepName: "a"}, codes.InvalidArgument, "INVALID_FIELD"},
		{&leaseholdv1.ExplainStepRequest{StepId: stepID, ExecutionId: id, StepName: "a"}, codes.InvalidArgument, "INVALID_FIELD"},
		{&leaseholdv1.ExplainStepRequest{StepId: "x"}, codes.InvalidArgument, "INVALID_FIELD"},
	} {
		_, err := ask(tt.r)
		refused(t, err, tt.code, tt.reason)
	}
}
