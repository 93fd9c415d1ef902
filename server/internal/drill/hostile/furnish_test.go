package hostile

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
)

// furnisher makes what is there at first, and tells the pool.
type furnisher struct {
	t testing.TB
	w *world
	c *drill.Client
	// node is where workers run, and their version. Without one, no script can drain them.
	node string
}

func (f *furnisher) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatalf("furnish: %v", err)
	}
}

func step(name, capability string, parents ...string) *leaseholdv1.StepSpec {
	return &leaseholdv1.StepSpec{Name: name, Capability: capability, DependsOn: parents, Input: drill.JSON(`[1]`)}
}

func (f *furnisher) register(name string, capabilities ...string) session {
	f.t.Helper()
	answer, err := f.c.Workers.RegisterWorker(context.Background(), &leaseholdv1.RegisterWorkerRequest{
		Name: name, Capabilities: capabilities, Slots: 20, Node: f.node, Version: f.node,
	})
	f.must(err)
	f.w.pool.learn(nil, answer)
	return session{answer.GetWorkerId(), answer.GetSessionId()}
}

func (f *furnisher) enqueue(name string, steps ...*leaseholdv1.StepSpec) string {
	f.t.Helper()
	answer, err := f.c.Executions.EnqueueExecution(context.Background(), &leaseholdv1.EnqueueExecutionRequest{
		Name: name, Steps: steps, Labels: map[string]string{"k0": "v"},
	})
	f.must(err)
	f.w.pool.learn(nil, answer)
	return answer.GetExecution().GetId()
}

// lease gets the one attempt that waits; with a capability it enqueues one first.
func (f *furnisher) lease(s session, capability ...string) lease {
	f.t.Helper()
	for _, c := range capability {
		f.enqueue("extra", step("s0", c))
	}
	request := &leaseholdv1.LeaseAttemptRequest{WorkerId: s.worker, SessionId: s.session, MaxLeases: 1, LeaseDuration: durationpb.New(time.Hour)}
	answer, err := f.c.Workers.LeaseAttempt(context.Background(), request)
	f.must(err)
	if len(answer.GetLeases()) != 1 {
		f.t.Fatalf("furnish: %d leases", len(answer.GetLeases()))
	}
	f.w.pool.learn(request, answer)
	l := answer.GetLeases()[0]
	return lease{l.GetAttemptId(), l.GetLeaseVersion(), s.session}
}

func (f *furnisher) report(l lease, r *leaseholdv1.ReportAttemptRequest) {
	f.t.Helper()
	r.AttemptId, r.LeaseVersion = l.attempt, l.version
	_, err := f.c.Workers.ReportAttempt(context.Background(), r)
	f.must(err)
}

func (f *furnisher) cancel(execution string) {
	f.t.Helper()
	_, err := f.c.Executions.CancelExecution(context.Background(), &leaseholdv1.CancelExecutionRequest{ExecutionId: execution})
	f.must(err)
}

// operate leaves traces of an operator, and events that are DEAD.
func (f *furnisher) operate() {
	f.t.Helper()
	ctx := context.Background()
	_, err := f.c.Operators.PauseCapability(ctx, &leaseholdv1.PauseCapabilityRequest{Capability: "paused"})
	f.must(err)
	_, err = f.c.Operators.SetWorkerDrain(ctx, &leaseholdv1.SetWorkerDrainRequest{
		Target: &leaseholdv1.SetWorkerDrainRequest_Version{Version: "n9"}, Draining: true,
	})
	f.must(err)
	dead := f.w.pool.text(kindExecution, 2)
	for _, sql := range []string{
		`UPDATE outbox_events SET status = 'DEAD', attempts = 50, last_error = 'no' WHERE aggregate_id = $1 AND sequence = 1`,
		`UPDATE outbox_heads SET available_at = 'infinity' WHERE aggregate_id = $1`,
	} {
		_, err = f.w.db.Exec(ctx, sql, dead)
		f.must(err)
	}
	f.must(f.look(ctx))
}

// look gathers the ids of steps and events, and page tokens.
func (f *furnisher) look(ctx context.Context) error {
	events, err := f.c.Operators.ListOutboxEvents(ctx, &leaseholdv1.ListOutboxEventsRequest{PageSize: 8})
	if err != nil {
		return err
	}
	f.w.pool.learn(nil, events)
	list, err := f.c.Executions.ListExecutions(ctx, &leaseholdv1.ListExecutionsRequest{PageSize: 2})
	if err != nil {
		return err
	}
	f.w.pool.learn(nil, list)
	for i := range f.w.pool.texts[kindExecution] {
		whole, err := f.c.Executions.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: f.w.pool.texts[kindExecution][i]})
		if err != nil {
			return err
		}
		f.w.pool.learn(nil, whole)
	}
	return nil
}

// refill adds what scripts use up: a live lease, work that waits, and a worker that can get it.
func (w *world) refill(t testing.TB) {
	t.Helper()
	f := &furnisher{t: t, w: w, c: w.cluster.Client(0)}
	capability := "refill/" + strconv.Itoa(w.scripts)
	s := f.register(capability, capability, "run")
	f.lease(s, capability)
	f.enqueue("more", step("s0", "run"), step("s1", "run", "s0"))
}
