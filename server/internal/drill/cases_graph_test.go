package drill

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	stepBlocked   = leaseholdv1.StepState_STEP_STATE_BLOCKED
	stepReady     = leaseholdv1.StepState_STEP_STATE_READY
	stepRunning   = leaseholdv1.StepState_STEP_STATE_RUNNING
	stepSucceeded = leaseholdv1.StepState_STEP_STATE_SUCCEEDED
	stepFailed    = leaseholdv1.StepState_STEP_STATE_FAILED
	stepCanceled  = leaseholdv1.StepState_STEP_STATE_CANCELED
	stepSkipped   = leaseholdv1.StepState_STEP_STATE_SKIPPED
)

// fatal is a failure that is not retried.
func fatal() *leaseholdv1.ReportAttemptRequest {
	return Failed(&leaseholdv1.Failure{Type: "BROKEN", Message: "for good", NonRetryable: true})
}

// TestB43_DiamondJoinRunsOnce: both parents of a join end at the same instant through two
// replicas.
func TestB43_DiamondJoinRunsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rounds := count(t, 60, 2000)
	ids := w.enqueueMany(rounds, func(int) *leaseholdv1.EnqueueExecutionRequest {
		return graph(step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a"))
	})
	h := w.worker(0, int32(4*rounds))
	h.succeedAll(h.take(rounds, long))
	pairs := slices.Collect(maps.Values(byExecution(h.take(2*rounds, long))))
	want(t, "executions with a done", len(pairs), rounds)
	each(pairs, func(i int, pair []*leaseholdv1.Lease) {
		if len(pair) != 2 {
			t.Errorf("%d leases after a, want b and c", len(pair))
			return
		}
		together(func() { h.at(i).succeed(pair[0]) }, func() { h.at(i + 1).succeed(pair[1]) })
	})
	joins := h.take(rounds, long)
	for _, l := range joins {
		want(t, "join", l.GetStepName(), "d")
		want(t, "number of the join's attempt", l.GetAttemptNumber(), int32(1))
		want(t, "outputs of parents", len(l.GetParentOutputs()), 2)
	}
	h.succeedAll(joins)
	each(ids, func(_ int, id string) {
		e := w.get(id)
		want(t, "execution", e.GetState(), succeeded)
		want(t, "attempts of the join", len(find(t, e, "d").GetAttempts()), 1)
	})
}

// TestB46_SiblingsThatFailTogetherKeepTheirRetries.
func TestB46_SiblingsThatFailTogetherKeepTheirRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 20, 200)
	branch := func(name string) *leaseholdv1.StepSpec {
		return &leaseholdv1.StepSpec{Name: name, Capability: "work", RetryPolicy: retries(5, time.Millisecond)}
	}
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest {
		return graph(branch("b"), branch("c"), step("d", "b", "c"))
	})
	h := w.worker(0, int32(2*n))
	pairs := func() [][]*leaseholdv1.Lease {
		list := slices.Collect(maps.Values(byExecution(h.take(2*n, long))))
		if len(list) != n {
			t.Fatalf("%d executions have leases, want %d", len(list), n)
		}
		return list
	}
	for range 4 {
		each(pairs(), func(i int, pair []*leaseholdv1.Lease) {
			together(func() { h.at(i).fail(pair[0]) }, func() { h.at(i + 1).fail(pair[1]) })
		})
	}
	each(ids, func(_ int, id string) { want(t, "after four failures each", w.get(id).GetState(), running) })
	each(pairs(), func(i int, pair []*leaseholdv1.Lease) {
		want(t, "last try", pair[0].GetAttemptNumber(), int32(5))
		together(func() { h.at(i).succeed(pair[0]) }, func() { h.at(i + 1).succeed(pair[1]) })
	})
	h.succeedAll(h.take(n, long))
	each(ids, func(_ int, id string) { want(t, "execution", w.get(id).GetState(), succeeded) })
}

// TestB47_NoChildIsSkippedWhileItsParentRetries.
func TestB47_NoChildIsSkippedWhileItsParentRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(
		&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(2, time.Millisecond)},
		step("x"), step("b", "a"), step("c", "a", "x"),
	))
	h := w.worker(0, 4)
	first := byStep(h.take(2, long))
	h.fail(first["a"])
	e := w.get(id)
	want(t, "b meanwhile", find(t, e, "b").GetState(), stepBlocked)
	want(t, "c meanwhile", find(t, e, "c").GetState(), stepBlocked)
	h.succeed(h.one(long)) // a, the second time
	b := h.one(long)
	want(t, "next", b.GetStepName(), "b")
	h.succeed(b)
	want(t, "c while x runs", w.stepOf(id, "c").GetState(), stepBlocked)
	h.succeed(first["x"])
	h.succeed(h.one(long))
	want(t, "execution", w.get(id).GetState(), succeeded)
}

// TestB48_FailureReachesAllDescendants in the same moment; independent steps go on.
func TestB48_FailureReachesAllDescendants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("d", "c"), step("c", "b"), step("b", "a"), step("a"), step("e")))
	h := w.worker(0, 4)
	first := byStep(h.take(2, long))
	answer := h.report(first["a"], fatal())
	want(t, "a", answer.GetStepState(), stepFailed)
	want(t, "execution while e runs", answer.GetExecutionState(), running)
	e := w.get(id)
	for _, name := range []string{"b", "c", "d"} {
		want(t, name, find(t, e, name).GetState(), stepSkipped)
		events := w.rows(`SELECT created_at::text FROM outbox_events WHERE event_type = 'leasehold.step.v1.skipped' AND payload ->> 'step_name' = $1`, name)
		want(t, "events of "+name, len(events), 1)
	}
	moments := w.rows(`SELECT DISTINCT at::text FROM timeline WHERE title = 'Step SKIPPED'`)
	want(t, "moments of skipping", len(moments), 1)
	h.succeed(first["e"])
	e = w.get(id)
	want(t, "execution", e.GetState(), failed)
	want(t, "e", find(t, e, "e").GetState(), stepSucceeded)
}

// TestB49_SiblingsOfAFailedStepRunOn, and what depends on them; then the execution fails.
func TestB49_SiblingsOfAFailedStepRunOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("b"), step("c"), step("d", "c"), step("x", "b")))
	h := w.worker(0, 4)
	first := byStep(h.take(2, long))
	h.report(first["b"], fatal())
	want(t, "c is told", h.renew(first["c"]).GetDirective(), leaseholdv1.Directive_DIRECTIVE_CONTINUE)
	want(t, "after c", h.succeed(first["c"]).GetExecutionState(), running)
	d := h.one(long)
	want(t, "next", d.GetStepName(), "d")
	want(t, "after d", h.succeed(d).GetExecutionState(), failed)
	e := w.get(id)
	want(t, "x", find(t, e, "x").GetState(), stepSkipped)
	if e.GetFailure().GetMessage() == "" {
		t.Error("the execution does not say why it failed")
	}
}

// TestB49_FailFastCancelsTheOthers; the execution stays RUNNING meanwhile and ends FAILED.
func TestB49_FailFastCancelsTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := graph(step("b"), step("c"), step("d", "c"), step("x", "b"), step("later"))
	e.FailFast = true
	e.Steps[4].StartDelay = durationpb.New(time.Hour)
	id := w.enqueue(e)
	h := w.worker(0, 4)
	first := byStep(h.take(2, long))
	want(t, "after b", h.report(first["b"], fatal()).GetExecutionState(), running)
	got := w.get(id)
	want(t, "d", find(t, got, "d").GetState(), stepCanceled)
	want(t, "later", find(t, got, "later").GetState(), stepCanceled)
	want(t, "x", find(t, got, "x").GetState(), stepSkipped)
	want(t, "c", find(t, got, "c").GetState(), stepRunning)
	want(t, "c is told", h.renew(first["c"]).GetDirective(), leaseholdv1.Directive_DIRECTIVE_CANCEL)
	answer := h.report(first["c"], Canceled())
	want(t, "c at last", answer.GetStepState(), stepCanceled)
	want(t, "execution", answer.GetExecutionState(), failed)
	h.nothing(300 * time.Millisecond)
}

// TestB50_TheGraphIsCheckedAtEnqueue: the step is named, nothing is stored.
func TestB50_TheGraphIsCheckedAtEnqueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tt := range []struct {
		what   string
		steps  []*leaseholdv1.StepSpec
		reason string
		field  string
	}{
		{"depends on itself", []*leaseholdv1.StepSpec{step("a", "a")}, "", "steps[0].depends_on[0]"},
		{"a cycle", []*leaseholdv1.StepSpec{step("z"), step("a", "b"), step("b", "a")}, "STEP_CYCLE", "steps[1]"},
		{"an unknown parent", []*leaseholdv1.StepSpec{step("a"), step("b", "X")}, "", "steps[1].depends_on[0]"},
		{"two of a name", []*leaseholdv1.StepSpec{step("a"), step("a")}, "", "steps[1].name"},
		{"no steps", nil, "", "steps"},
		{"a parent twice", []*leaseholdv1.StepSpec{step("a"), step("b", "a", "a")}, "", "steps[1].depends_on[1]"},
	} {
		for _, batch := range []bool{false, true} {
			_, err := w.Client(0).Executions.EnqueueExecution(w.ctx, graph(tt.steps...))
			prefix := ""
			if batch {
				prefix = "requests[1]."
				_, err = w.Client(0).Executions.BatchEnqueueExecutions(w.ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{
					Requests: []*leaseholdv1.EnqueueExecutionRequest{graph(step("good")), graph(tt.steps...)},
				})
			}
			want(t, tt.what, status.Code(err), codes.InvalidArgument)
			if tt.reason != "" {
				want(t, tt.what, Reason(err), tt.reason)
			}
			fields := violations(err)
			if !hasPrefixed(fields, prefix+tt.field) {
				t.Errorf("%s: violations %v, want one of %s", tt.what, fields, prefix+tt.field)
			}
		}
	}
	for _, table := range []string{"executions", "steps", "outbox_events", "scheduling_requests", "payloads", "step_edges"} {
		want(t, "rows in "+table, len(w.rows(fmt.Sprintf(`SELECT ctid::text FROM %s`, table))), 0)
	}
}

// violations are the fields of an error's BadRequest.
func violations(err error) []string {
	var list []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				list = append(list, v.GetField())
			}
		}
	}
	return list
}

func hasPrefixed(list []string, prefix string) bool {
	for _, s := range list {
		if len(s) >= len(prefix) && s[:len(prefix)] == prefix {
			return true
		}
	}
	return false
}
