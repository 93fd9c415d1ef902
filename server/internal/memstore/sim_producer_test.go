package memstore_test

import (
	"fmt"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Producers and operators.

const (
	mostExecutions = 60 // of a world
	mostOpen       = 8  // at a time
	longestBackoff = time.Minute
)

// enqueue accepts a new execution, or repeats a key with the same content or with other.
func (w *world) enqueue(rt *rapid.T) {
	open := 0
	for _, e := range w.m.executions {
		if !e.ended() {
			open++
		}
	}
	if open >= mostOpen || len(w.m.executions) >= mostExecutions {
		rt.Skip("there are enough")
	}
	spec := randomSpec(rt)
	if key := rapid.IntRange(0, 15).Draw(rt, "key"); key > 0 && key < 8 {
		spec.IdempotencyKey = "key " + strconv.Itoa(key)
	}
	if e := w.m.byKey[spec.IdempotencyKey]; e != nil && rapid.Bool().Draw(rt, "the same content") {
		spec = w.specs[e]
	}
	n := scheduler.NewExecution{Spec: spec, Hash: spec.Fingerprint(), IDs: task.IDs{Execution: w.id()}}
	for range spec.Steps {
		n.IDs.Steps = append(n.IDs.Steps, w.id())
	}
	accepted := false
	w.issue(rt, func() {
		if accepted && spec.IdempotencyKey == "" {
			return // without a key nobody may repeat it
		}
		results, err := w.s.Enqueue(w.ctx(), []scheduler.NewExecution{n}, false, false)
		done, answered := w.committed(err)
		accepted = accepted || done
		w.enqueued(n, results, done, answered)
	})
}

func (w *world) enqueued(n scheduler.NewExecution, results []scheduler.Result[scheduler.Enqueued], done, answered bool) {
	existing := w.m.byKey[n.Spec.IdempotencyKey]
	content := fmt.Sprintf("%x", n.Hash)
	switch {
	case !done:
	case existing == nil:
		w.accept(n, content)
		if answered && (results[0].Err != nil || !results[0].Value.Created || results[0].Value.Execution.ID != n.IDs.Execution) {
			w.fatalf("a new execution was answered %+v", results[0])
		}
	case !answered:
	case existing.content != content:
		w.agree("enqueue", results[0].Err, "key reused by "+existing.id.String())
	default:
		w.agree("enqueue", results[0].Err, ok)
		w.met["key repeated"]++
		if v := results[0].Value; v.Created || v.Execution.ID != existing.id {
			w.fatalf("a repeat was answered %+v, it is execution %s", v, existing.id)
		}
	}
}

func randomSpec(rt *rapid.T) *task.ExecutionSpec {
	spec := &task.ExecutionSpec{
		Namespace: "default", Name: "simulated", CancelGrace: 20 * time.Second,
		FailFast: rapid.IntRange(0, 3).Draw(rt, "fail_fast") == 1,
		Timeout:  seconds(rt, "timeout", 0, 0, 0, 60, 300), StartDelay: seconds(rt, "delay", 0, 0, 0, 15),
	}
	for i := range rapid.IntRange(1, 5).Draw(rt, "steps") {
		s := task.StepSpec{
			Name: "s" + strconv.Itoa(i), Capability: rapid.SampledFrom([]string{"a", "a", "b"}).Draw(rt, "capability"),
			Node:     rapid.SampledFrom([]string{"", "", "", "n1"}).Draw(rt, "node"),
			Priority: rapid.IntRange(0, 1).Draw(rt, "priority"),
			Retry: task.RetryPolicy{
				InitialInterval: 4 * time.Second, BackoffCoefficient: 2, MaximumInterval: longestBackoff,
				MaximumAttempts: rapid.IntRange(1, 4).Draw(rt, "attempts"),
			},
			StartDelay: seconds(rt, "start delay", 0, 0, 5), ScheduleToStart: seconds(rt, "to start", 0, 0, 40),
			StartToClose: seconds(rt, "to close", 3600, 45), ScheduleToClose: seconds(rt, "in all", 0, 0, 90),
		}
		for p := range i {
			if rapid.IntRange(0, 2).Draw(rt, "parent") == 1 {
				s.DependsOn = append(s.DependsOn, "s"+strconv.Itoa(p))
			}
		}
		spec.Steps = append(spec.Steps, s)
	}
	return spec
}

func seconds(rt *rapid.T, what string, choices ...int) time.Duration {
	return time.Duration(rapid.SampledFrom(choices).Draw(rt, what)) * time.Second
}

// accept writes a new execution down in the model.
func (w *world) accept(n scheduler.NewExecution, content string) {
	spec := n.Spec
	e := &mExecution{
		id: n.IDs.Execution, content: content, failFast: spec.FailFast, timeout: spec.Timeout, grace: spec.CancelGrace,
		state: "QUEUED", round: 1, due: w.m.now.Add(spec.StartDelay), retries: map[string]int{},
	}
	if spec.StartDelay > 0 {
		e.state = "CREATED"
	}
	if e.timeout > 0 {
		e.deadline = e.due.Add(e.timeout)
	}
	of := map[string]*mStep{}
	for i := range spec.Steps {
		d := &spec.Steps[i]
		s := &mStep{
			id: n.IDs.Steps[i], name: d.Name, capability: d.Capability, node: d.Node, priority: d.Priority, most: d.Retry.MaximumAttempts,
			first: d.Retry.InitialInterval, delay: d.StartDelay, toStart: d.ScheduleToStart, toClose: d.StartToClose,
			inAll: d.ScheduleToClose, state: "BLOCKED",
		}
		of[s.name] = s
		for _, name := range d.DependsOn {
			s.parents = append(s.parents, of[name])
			of[name].children = append(of[name].children, s)
		}
		if len(s.parents) == 0 {
			s.open(e.due)
		}
		e.steps = append(e.steps, s)
	}
	w.specs[e] = spec
	w.m.executions = append(w.m.executions, e)
	if spec.IdempotencyKey != "" {
		w.m.byKey[spec.IdempotencyKey] = e
	}
	w.folds[e.id] = newFold()
}

func (w *world) cancel(rt *rapid.T) {
	e := w.execution(rt)
	if !w.in(rt, 4, "really") {
		return
	}
	w.issue(rt, func() {
		results, err := w.s.Cancel(w.ctx(), []scheduler.Cancellation{{Execution: e.id}}, false)
		done, answered := w.committed(err)
		if !done {
			return
		}
		if want := w.m.cancel(e); answered {
			w.agree("cancel", results[0].Err, want)
		}
	})
}

// execution draws one, mostly one that has not ended.
func (w *world) execution(rt *rapid.T) *mExecution {
	var open []*mExecution
	for _, e := range w.m.executions {
		if !e.ended() {
			open = append(open, e)
		}
	}
	if len(open) == 0 || w.in(rt, 4, "of all") {
		open = w.m.executions
	}
	return one(rt, "execution", open)
}

// terminate is rare: it leaves little to be seen.
func (w *world) terminate(rt *rapid.T) {
	e := w.execution(rt)
	if !w.in(rt, 20, "really") {
		return
	}
	w.issue(rt, func() {
		_, err := w.s.Terminate(w.ctx(), e.id, "")
		done, answered := w.committed(err)
		if !done {
			return
		}
		if want := w.m.terminate(e); answered {
			w.agree("terminate", err, want)
		}
	})
}

// retry opens a further round, mostly of an execution that has ended without success.
func (w *world) retry(rt *rapid.T) {
	var ended []*mExecution
	for _, e := range w.m.executions {
		if e.state == "FAILED" || e.state == "CANCELED" {
			ended = append(ended, e)
		}
	}
	if rapid.IntRange(0, 9).Draw(rt, "any") == 1 {
		ended = w.m.executions
	}
	e := one(rt, "execution", ended)
	r := scheduler.Retry{Execution: e.id, RequestID: w.requestID()}
	named := ""
	if rapid.IntRange(0, 2).Draw(rt, "by name") == 1 {
		named = one(rt, "step", e.steps).name
		r.Steps = []string{named}
	}
	w.issue(rt, func() {
		got, err := w.s.Retry(w.ctx(), r)
		done, answered := w.committed(err)
		if !done {
			return
		}
		round, want := w.m.retry(e, r.RequestID, named)
		if want == ok {
			w.met["round opened"]++
		}
		switch {
		case !answered:
		case want == ok || want == "replayed":
			w.agree("retry", err, ok)
			if got.Replayed != (want == "replayed") || got.Round != round {
				w.fatalf("a retry was answered round %d, replayed %v; want %d, %q", got.Round, got.Replayed, round, want)
			}
		default:
			w.agree("retry", err, want)
		}
	})
}

func (w *world) revoke(rt *rapid.T) {
	l := w.lease(rt)
	w.issue(rt, func() {
		got, err := w.s.RevokeLease(w.ctx(), scheduler.Revocation{AttemptID: l.attempt, LeaseVersion: l.version})
		done, answered := w.committed(err)
		if !done {
			return
		}
		switch want := w.m.revoke(l.attempt, l.version); {
		case !answered:
		case want == ok || want == "replayed":
			w.agree("revoke", err, ok)
			if got.Replayed != (want == "replayed") {
				w.fatalf("a revocation was answered %+v, want %q", got, want)
			}
		default:
			w.agree("revoke", err, want)
		}
	})
}

// pause pauses a capability, or ends its pause.
func (w *world) pause(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "capability")
	paused := w.in(rt, 3, "pause") && !w.m.paused[name]
	w.issue(rt, func() { w.setPause(name, paused) })
}

func (w *world) setPause(name string, paused bool) {
	key := scheduler.CapabilityKey{Namespace: "default", Name: name}
	var err error
	if paused {
		_, err = w.s.Pause(w.ctx(), key, "")
	} else {
		_, err = w.s.Resume(w.ctx(), key)
	}
	done, answered := w.committed(err)
	if answered {
		w.agree("pause", err, ok)
	}
	if done {
		w.m.paused[name] = paused
	}
}

func (w *world) drainNode(rt *rapid.T) {
	draining := w.in(rt, 8, "drain") && !w.m.drained["n1"]
	w.issue(rt, func() { w.setDrain(draining) })
}

func (w *world) setDrain(draining bool) {
	_, err := w.s.SetDrain(w.ctx(), scheduler.Drain{Namespace: "default", Kind: scheduler.DrainNode, Value: "n1", Draining: draining})
	done, answered := w.committed(err)
	if answered {
		w.agree("drain", err, ok)
	}
	if done {
		w.m.drained["n1"] = draining
	}
}

func (w *world) passTime(rt *rapid.T) {
	d := seconds(rt, "seconds", 1, 2, 2, 5, 5, 10, 20, 40)
	if w.in(rt, 12, "much") {
		d *= 30
	}
	if rapid.IntRange(0, 30).Draw(rt, "back") == 1 {
		d = -d / 2
	}
	w.advance(d)
}

func (w *world) advance(d time.Duration) {
	w.s.Advance(d)
	w.m.now = w.m.now.Add(d)
	if w.m.now.After(w.latest) {
		w.latest = w.m.now
	}
}
