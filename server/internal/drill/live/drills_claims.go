package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
)

// claimers: a hundred workers of one slot ask for the same work, over all replicas.
func claimers(ctx context.Context, x *exercise) error {
	const many, piled, enough = 99, 600, 2 * time.Second
	if err := enqueueMany(ctx, x, piled, "piled up", step("first")); err != nil {
		return err
	}
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	claiming, ctx := errgroup.WithContext(ctx)
	for i := range many {
		c, err := x.client(i%replicaCount, fmt.Sprintf("claimer-%d", i+1))
		if err != nil {
			return err
		}
		claiming.Go(func() error { return claim(ctx, working, c, x.namespace) })
	}
	pause(ctx, enough)
	x.load.stopProducing()
	if err := x.settle(ctx); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	cancel()
	if err := claiming.Wait(); err != nil {
		return err
	}
	x.note("%d claimers", many)
	return x.claimedOnce(context.WithoutCancel(ctx))
}

// claimedOnce tells whether each step was worked on just once. What was handed back because its
// claimer had not waited for it was never worked on.
func (x *exercise) claimedOnce(ctx context.Context) error {
	var steps, succeeded, released, others int64
	err := x.db.QueryRow(ctx, `SELECT count(DISTINCT s.id), count(*) FILTER (WHERE a.state = 'SUCCEEDED'), count(*) FILTER (WHERE a.state = 'RELEASED'),
		count(*) FILTER (WHERE a.state NOT IN ('SUCCEEDED', 'RELEASED'))
		FROM attempts a JOIN steps s ON s.id = a.step_id JOIN executions e ON e.id = s.execution_id WHERE e.namespace = $1`, x.namespace).
		Scan(&steps, &succeeded, &released, &others)
	if err != nil {
		return fmt.Errorf("count what was claimed: %w", err)
	}
	if succeeded != steps || others > 0 {
		return fmt.Errorf("%d steps were claimed: %d attempts succeeded and %d ended otherwise, though nobody failed", steps, succeeded, others)
	}
	if released > 0 {
		x.note("%d grants came after their poll had ended", released)
	}
	return nil
}

// claim leases one step after the other and succeeds with it, while there is work to be had.
func claim(ctx, working context.Context, c *core.Client, namespace string) error {
	w, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: namespace, Capabilities: []string{capability}, Slots: 1})
	if err != nil {
		return fmt.Errorf("register a claimer: %w", err)
	}
	for working.Err() == nil {
		answer, err := w.Lease(ctx, core.Poll{Wait: 5 * time.Second, TTL: time.Minute, Request: uuid.NewString()})
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		for _, lease := range answer.GetLeases() {
			if _, err := w.Report(ctx, lease, core.Succeeded(nil)); err != nil {
				return fmt.Errorf("report what was claimed: %w", err)
			}
		}
	}
	return nil
}

// retryLimit: a step that always fails ends FAILED after its attempts, and tells why.
func retryLimit(ctx context.Context, x *exercise) error {
	const attempts, reason = 3, "the printer is on fire"
	c, err := x.client(0, "producer-of-failures")
	if err != nil {
		return err
	}
	doomed := step("first")
	doomed.RetryPolicy.MaximumAttempts = attempts
	doomed.Input = core.JSON(fmt.Sprintf(`{"fail": %q}`, reason))
	for range 5 {
		answer, err := c.Executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{
			Namespace: x.namespace, Name: "doomed", IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{doomed},
		})
		if err != nil {
			return fmt.Errorf("enqueue what fails: %w", err)
		}
		id := answer.GetExecution().GetId()
		if err := x.await(ctx, goOnLimit, "ended what fails", none, `SELECT count(*) FROM executions WHERE id = $1::uuid AND ended_at IS NULL`, id); err != nil {
			return err
		}
		if err := readFailure(ctx, c, id, attempts, reason); err != nil {
			return err
		}
		x.faults += attempts
	}
	x.note("FAILED after %d attempts: %s", attempts, reason)
	return x.goesOn(ctx, now(), "beside failures")
}

// readFailure looks at a failed execution as its producer does.
func readFailure(ctx context.Context, c *core.Client, id string, attempts int, reason string) error {
	execution, err := c.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("read a failed execution: %w", err)
	}
	step := execution.GetSteps()[0]
	if execution.GetState() != leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED || len(step.GetAttempts()) != attempts {
		return fmt.Errorf("execution %s is %s after %d attempts, want FAILED after %d", id, execution.GetState(), len(step.GetAttempts()), attempts)
	}
	if told := step.GetFailure().GetMessage(); told != reason {
		return fmt.Errorf("execution %s tells of its failure %q, want %q", id, told, reason)
	}
	return nil
}

const (
	massive        = 5000
	massCapability = "drill.mass"
	massLease      = 20 * time.Second
	massLimit      = 2 * time.Minute
)

// massExpiry: the leases of workers that are gone run out, and somebody holds one of the rows.
func massExpiry(ctx context.Context, x *exercise) error {
	once := &leaseholdv1.StepSpec{Name: "only", Capability: massCapability, RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: 1}}
	if err := enqueueMany(ctx, x, massive, "mass", once); err != nil {
		return err
	}
	if err := leaseMass(ctx, x); err != nil {
		return err
	}
	tx, err := x.db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("lock a lease: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	locked := &leaseholdv1.RenewLeaseRequest{}
	if err := tx.QueryRow(ctx, `SELECT l.attempt_id::text, l.lease_version, l.session_id::text FROM leases l JOIN executions e ON e.id = l.execution_id
		WHERE e.namespace = $1 AND e.name = 'mass' ORDER BY l.attempt_id LIMIT 1 FOR UPDATE OF l`, x.namespace).
		Scan(&locked.AttemptId, &locked.LeaseVersion, &locked.SessionId); err != nil {
		return fmt.Errorf("lock a lease: %w", err)
	}
	if err := x.massIsOver(ctx, locked); err != nil {
		return err
	}
	if err := tx.Rollback(ctx); err != nil {
		return fmt.Errorf("let the lease go: %w", err)
	}
	// A grant that came when its poll was just over went back, and waits for somebody.
	const open = `SELECT count(*) FROM executions WHERE namespace = $1 AND name = 'mass' AND ended_at IS NULL`
	for {
		if err := x.await(ctx, massLease+goOnLimit, "the last lease ended", none, massLeft, x.namespace); err != nil {
			return err
		}
		if n, err := x.number(ctx, open, x.namespace); err != nil || n == 0 {
			return err
		}
		if err := leaseMass(ctx, x); err != nil {
			return err
		}
	}
}

const massLeft = `SELECT count(*) FROM leases l JOIN executions e ON e.id = l.execution_id WHERE e.namespace = $1 AND e.name = 'mass'`

// massIsOver waits until all leases but the one that is locked have ended, and looks at what goes on
// beside it.
func (x *exercise) massIsOver(ctx context.Context, locked *leaseholdv1.RenewLeaseRequest) error {
	held, err := x.number(ctx, massLeft, x.namespace)
	if err != nil {
		return err
	}
	if held < massive/5 {
		return fmt.Errorf("%d of %d leases are held at once: that is no mass", held, massive)
	}
	if held < massive { // Those that were given first are over already: this machine is slow.
		x.note("%d of %d leases were held at once", held, massive)
	}
	x.faults += int(held)
	over := massLeft + ` AND l.expires_at < clock_timestamp()`
	if err := x.await(ctx, 2*massLease, "every lease is over", func(n int64) bool { return n > 0 }, over, x.namespace); err != nil {
		return err
	}
	began := time.Now() // monotonic
	if err := x.await(ctx, massLimit, "all but the locked lease ended", func(n int64) bool { return n == 1 }, massLeft, x.namespace); err != nil {
		return err
	}
	x.recovered(time.Since(began))
	if err := x.goesOn(ctx, now(), "with a lease locked"); err != nil {
		return err
	}
	return x.neighbours(ctx, locked)
}

// enqueueMany enqueues executions of one step, in batches.
func enqueueMany(ctx context.Context, x *exercise, n int, name string, only *leaseholdv1.StepSpec) error {
	requests := make([]*leaseholdv1.EnqueueExecutionRequest, n)
	for i := range requests {
		requests[i] = &leaseholdv1.EnqueueExecutionRequest{
			Namespace: x.namespace, Name: name, IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{only},
		}
	}
	c, err := x.client(0, "producer-of-many")
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(requests, 250) {
		answer, err := c.Executions.BatchEnqueueExecutions(ctx, &leaseholdv1.BatchEnqueueExecutionsRequest{Requests: batch})
		if err != nil {
			return fmt.Errorf("enqueue many: %w", err)
		}
		for _, one := range answer.GetResults() {
			if failed := one.GetError(); failed != nil {
				return fmt.Errorf("enqueue many: %s", failed.GetMessage())
			}
		}
	}
	return nil
}

// leaseMass leases them all, by workers that are never heard of again.
func leaseMass(ctx context.Context, x *exercise) error {
	leasing, ctx := errgroup.WithContext(ctx)
	for i := range replicaCount {
		c, err := x.client(i, fmt.Sprintf("vanisher-%d", i+1))
		if err != nil {
			return err
		}
		leasing.Go(func() error { return vanish(ctx, x, c) })
	}
	return leasing.Wait()
}

// vanish leases until nothing waits any more.
func vanish(ctx context.Context, x *exercise, c *core.Client) error {
	w, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: x.namespace, Capabilities: []string{massCapability}, Slots: massive})
	if err != nil {
		return fmt.Errorf("register who vanishes: %w", err)
	}
	for {
		waiting, err := x.number(ctx, `SELECT count(*) FROM scheduling_requests r JOIN executions e ON e.id = r.execution_id
			WHERE e.namespace = $1 AND e.name = 'mass'`, x.namespace)
		if err != nil || waiting == 0 {
			return err
		}
		if _, err := w.Lease(ctx, core.Poll{Max: 500, Wait: 5 * time.Second, TTL: massLease, Request: uuid.NewString()}); err != nil {
			return fmt.Errorf("lease many: %w", err)
		}
	}
}
