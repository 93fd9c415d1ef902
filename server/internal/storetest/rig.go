package storetest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// rig is a store under test, with short ways to its calls.
type rig struct {
	*testing.T
	Stand
}

func (r *rig) ctx() context.Context { return r.Context() }

// must ends the test on an error.
func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// refused ends the test unless an error is a refusal for a reason.
func (r *rig) refused(err error, reason task.Reason) {
	r.Helper()
	var refused *scheduler.RefusedError
	if !errors.As(err, &refused) || refused.Reason != reason {
		r.Fatalf("got %v, want a refusal for %s", err, reason)
	}
}

// unknown ends the test unless an error says that something of a kind is not known.
func (r *rig) unknown(err error, kind scheduler.Kind) {
	r.Helper()
	var unknown *scheduler.NotFoundError
	if !errors.As(err, &unknown) || unknown.Kind != kind {
		r.Fatalf("got %v, want: no such %s", err, kind)
	}
}

// is ends the test unless a value is what it should be.
func is[T comparable](r *rig, what string, got, want T) {
	r.Helper()
	if got != want {
		r.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// stepOf is a step of a specification: its name and its parents.
func stepOf(name string, parents ...string) task.StepSpec {
	return task.StepSpec{
		Name: name, Capability: "a", DependsOn: parents, StartToClose: time.Hour,
		Retry: task.RetryPolicy{InitialInterval: 10 * time.Second, BackoffCoefficient: 2, MaximumInterval: time.Hour, MaximumAttempts: 3},
	}
}

// specOf is an execution of steps.
func specOf(steps ...task.StepSpec) *task.ExecutionSpec {
	return &task.ExecutionSpec{Namespace: "default", Name: "test", CancelGrace: time.Minute, Steps: steps}
}

func newExecution(spec *task.ExecutionSpec) scheduler.NewExecution {
	n := scheduler.NewExecution{Spec: spec, Hash: spec.Fingerprint(), IDs: task.IDs{Execution: uuid.New()}}
	for range spec.Steps {
		n.IDs.Steps = append(n.IDs.Steps, uuid.New())
	}
	return n
}

// enqueue accepts an execution of steps.
func (r *rig) enqueue(steps ...task.StepSpec) task.IDs {
	r.Helper()
	return r.accept(specOf(steps...))
}

func (r *rig) accept(spec *task.ExecutionSpec) task.IDs {
	r.Helper()
	n := newExecution(spec)
	results, err := r.Store.Enqueue(r.ctx(), []scheduler.NewExecution{n}, false, true)
	r.must(err)
	r.must(results[0].Err)
	return n.IDs
}

// member is a registered worker.
type member struct {
	scheduler.Session
	scheduler.Registration
}

// register registers a worker with two slots that offers some capabilities.
func (r *rig) register(name string, capabilities ...string) member {
	r.Helper()
	return r.join(scheduler.Registration{Namespace: "default", Name: name, Capabilities: capabilities, Slots: 2})
}

func (r *rig) join(reg scheduler.Registration) member {
	r.Helper()
	session, err := r.Store.Register(r.ctx(), reg, uuid.New(), uuid.New())
	r.must(err)
	return member{session, reg}
}

func (m member) offer() task.Offer {
	set := map[string]bool{}
	for _, c := range m.Capabilities {
		set[c] = true
	}
	return task.Offer{
		WorkerID: m.WorkerID, Namespace: m.Namespace, Node: m.Node, Capabilities: set, Room: m.Slots, Bytes: 1 << 20,
	}
}

// claim claims what workers can take.
func (r *rig) claim(members ...member) (uuid.UUID, scheduler.Claimed) {
	r.Helper()
	c := scheduler.ClaimCommand{ClaimID: uuid.New(), Limit: 100, Expires: time.Minute}
	for _, m := range members {
		c.Offers = append(c.Offers, m.offer())
	}
	claimed, err := r.Store.Claim(r.ctx(), c)
	r.must(err)
	return c.ClaimID, claimed
}

// assign makes the dispatch of claimed requests to a worker, for a poll.
func assign(m member, claim uuid.UUID, requestID string, requests ...task.Waiting) scheduler.DispatchCommand {
	c := scheduler.DispatchCommand{ClaimID: claim}
	for _, w := range requests {
		c.Items = append(c.Items, scheduler.DispatchItem{
			Waiting: w, AttemptID: uuid.New(), WorkerID: m.WorkerID,
			SessionID: m.SessionID, RequestID: requestID, Duration: time.Minute,
		})
	}
	return c
}

func (r *rig) dispatch(c scheduler.DispatchCommand) scheduler.Dispatched {
	r.Helper()
	done, err := r.Store.Dispatch(r.ctx(), c)
	r.must(err)
	return done
}

// lease leases what a worker can get, as a dispatcher does, for a poll.
func (r *rig) lease(m member, requestID string) []scheduler.LeaseView {
	r.Helper()
	claim, claimed := r.claim(m)
	c := assign(m, claim, requestID, claimed.Requests...)
	if len(c.Items) == 0 {
		return nil
	}
	return r.granted(r.dispatch(c))
}

// granted are the leases that a dispatch has just made, by what it told. What is read of them must
// be the same.
func (r *rig) granted(done scheduler.Dispatched) []scheduler.LeaseView {
	r.Helper()
	if !done.Filled {
		r.must(r.Store.Fill(r.ctx(), done.Leases))
	}
	read, err := r.Store.Contents(r.ctx(), slices.Collect(maps.Keys(done.Granted)))
	r.must(err)
	is(r, "leases told and read", len(done.Leases), len(read))
	byVersion := func(a, b scheduler.LeaseView) int { return cmp.Compare(a.LeaseVersion, b.LeaseVersion) }
	is(r, "leases in order of their versions", slices.IsSortedFunc(done.Leases, byVersion), true)
	slices.SortFunc(read, byVersion)
	for i, told := range done.Leases {
		told.Remaining, told.StartToCloseRemaining = read[i].Remaining, read[i].StartToCloseRemaining
		if !reflect.DeepEqual(told, read[i]) {
			r.Errorf("a dispatch told %+v, but the lease is %+v", told, read[i])
		}
	}
	return done.Leases
}

// leaseOne leases exactly one.
func (r *rig) leaseOne(m member) scheduler.LeaseView {
	r.Helper()
	views := r.lease(m, "")
	is(r, "leases", len(views), 1)
	return views[0]
}

func (r *rig) report(l scheduler.LeaseView, o task.Outcome) (scheduler.Reported, error) {
	r.Helper()
	results, err := r.Store.Report(r.ctx(), []scheduler.Report{{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: o}}, false)
	r.must(err)
	return results[0].Value, results[0].Err
}

func (r *rig) succeed(l scheduler.LeaseView) scheduler.Reported {
	r.Helper()
	done, err := r.report(l, task.Outcome{State: task.AttemptSucceeded})
	r.must(err)
	return done
}

func failed() task.Outcome {
	return task.Outcome{State: task.AttemptFailed, Failure: &task.Failure{Type: "TEST", Message: "on purpose"}}
}

func (r *rig) renew(m member, l scheduler.LeaseView, d time.Duration) (scheduler.Renewed, error) {
	r.Helper()
	results, err := r.Store.Renew(r.ctx(), []scheduler.Renewal{{
		AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: m.SessionID, Duration: d,
	}}, false)
	r.must(err)
	return results[0].Value, results[0].Err
}

func (r *rig) cancel(id uuid.UUID) (*scheduler.ExecutionView, error) {
	r.Helper()
	results, err := r.Store.Cancel(r.ctx(), []scheduler.Cancellation{{Execution: id, Reason: "test"}}, false)
	r.must(err)
	return results[0].Value, results[0].Err
}

func (r *rig) get(id uuid.UUID) *scheduler.ExecutionView {
	r.Helper()
	view, _, err := r.Store.GetExecution(r.ctx(), scheduler.ExecutionQuery{ID: id, AfterOrdinal: -1, StepLimit: 100, Payloads: true})
	r.must(err)
	return view
}

// step reads a step by its position.
func (r *rig) step(id uuid.UUID, n int) scheduler.StepView {
	r.Helper()
	return r.get(id).Steps[n]
}

// states are the states of an execution's steps.
func (r *rig) states(id uuid.UUID, want ...task.StepState) {
	r.Helper()
	var got []task.StepState
	for _, s := range r.get(id).Steps {
		got = append(got, s.State)
	}
	if !slices.Equal(got, want) {
		r.Fatalf("steps are %v, want %v", got, want)
	}
}

// attempt is the last attempt of a step.
func (r *rig) attempt(id uuid.UUID, n int) scheduler.AttemptView {
	r.Helper()
	list := r.step(id, n).Attempts
	if len(list) == 0 {
		r.Fatalf("step %d has no attempt", n)
	}
	return list[len(list)-1]
}

// sweep ends leases that are over and looks at timers, and tells how many of each.
func (r *rig) sweep() (leases, timers int) {
	r.Helper()
	swept, err := r.Store.ExpireLeases(r.ctx(), scheduler.SweepBatch{})
	r.must(err)
	fired, err := r.Store.FireTimers(r.ctx(), scheduler.SweepBatch{})
	r.must(err)
	return swept.Done, fired.Done
}

// about ends the test unless a duration is nearly what it should be: a database's clock goes on.
func (r *rig) about(what string, got, want time.Duration) {
	r.Helper()
	if d := got - want; d < -20*time.Second || d > 20*time.Second {
		r.Fatalf("%s: got %s, want about %s", what, got, want)
	}
}
