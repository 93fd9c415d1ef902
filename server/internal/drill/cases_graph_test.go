package drill

import (
	"testing"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

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
	for _, l := range h.take(rounds, long) {
		want(t, "first", l.GetStepName(), "a")
		h.succeed(l)
	}
	for id, pair := range byExecution(h.take(2*rounds, long)) {
		if len(pair) != 2 {
			t.Fatalf("execution %s: %d leases after a, want b and c", id, len(pair))
		}
		together(func() { h.at(0).succeed(pair[0]) }, func() { h.at(1).succeed(pair[1]) })
	}
	for _, l := range h.take(rounds, long) {
		want(t, "join", l.GetStepName(), "d")
		want(t, "number of the join's attempt", l.GetAttemptNumber(), int32(1))
		want(t, "outputs of parents", len(l.GetParentOutputs()), 2)
		h.succeed(l)
	}
	for _, id := range ids {
		e := w.get(id)
		want(t, "execution", e.GetState(), leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED)
		want(t, "attempts of the join", len(find(t, e, "d").GetAttempts()), 1)
	}
}
