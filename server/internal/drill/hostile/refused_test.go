package hostile

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestRefused_LeavesNoCapability: an enqueue that is refused for its key leaves no row of a
// capability that only it would have needed. FuzzExecutionService found that it did.
func TestRefused_LeavesNoCapability(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	defer w.end(t)
	c := w.cluster.Client(0).Executions
	request := func(key, capability string) *leaseholdv1.EnqueueExecutionRequest {
		return &leaseholdv1.EnqueueExecutionRequest{Name: "job", IdempotencyKey: key, Steps: []*leaseholdv1.StepSpec{step("s0", capability)}}
	}
	if _, err := c.EnqueueExecution(t.Context(), request("a", "run")); err != nil {
		t.Fatal(err)
	}
	batch := func(list ...*leaseholdv1.EnqueueExecutionRequest) error {
		_, err := c.BatchEnqueueExecutions(t.Context(), &leaseholdv1.BatchEnqueueExecutionsRequest{Requests: list})
		return err
	}
	before := w.digest(t)
	_, single := c.EnqueueExecution(t.Context(), request("a", "new/1"))
	for name, err := range map[string]error{
		"one": single, "a batch": batch(request("b", "new/2"), request("a", "new/3")),
		"a batch that uses a key twice": batch(request("b", "new/4"), request("b", "new/5")),
	} {
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if after := w.digest(t); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
	if err := batch(request("b", "new/6"), request("b", "new/6"), request("", "new/7")); err != nil {
		t.Errorf("a good one with new capabilities: %v", err)
	}
}
