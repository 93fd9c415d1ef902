package drill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// control are the entries of an execution's timeline that operators and producers left.
func (w *world) control(id string) string {
	w.t.Helper()
	var list []string
	for _, e := range w.timeline(id) {
		if e.GetStage() == leaseholdv1.TimelineStage_TIMELINE_STAGE_CONTROL {
			list = append(list, fmt.Sprintf("%s by %s: %s", e.GetTitle(), e.GetComponent(), e.GetDetails()["reason"]))
		}
	}
	return strings.Join(list, "; ")
}

// A revoked attempt is LOST at once and the next one goes to another worker; the first worker is
// refused from then on. The reason stands in the timeline, once, however often it is asked.
func TestRevoke_TakesALeaseFromADeadWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("a")))
	dead, alive := w.worker(0, 1), w.worker(1, 1)
	l := dead.one(long)
	done, err := w.revoke(2, l, "the node burnt down")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "step", done.GetStepState(), leaseholdv1.StepState_STEP_STATE_READY)
	want(t, "due", done.GetNextAttemptTime() != nil, true)
	next := alive.one(long)
	want(t, "attempt", next.GetAttemptNumber(), 2)
	want(t, "version grows", next.GetLeaseVersion() > l.GetLeaseVersion(), true)
	for r := range 3 { // repeats
		again, err := w.revoke(r, l, "again")
		if err != nil || !again.GetReplayed() {
			t.Errorf("a repeat: %v, %v", again, err)
		}
	}
	_, err = dead.Renew(w.ctx, l, long)
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	_, err = dead.Report(w.ctx, l, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	alive.succeed(next)
	e := w.awaitState(id, succeeded)
	first := find(t, e, "a").GetAttempts()[0]
	want(t, "first attempt", fmt.Sprint(first.GetState(), first.GetReason()), "ATTEMPT_STATE_LOSTrevoked")
	want(t, "control", w.control(id), "Lease revoked by operator: the node burnt down")
}

// What is not held any more cannot be revoked, for the reasons of a late renewal; nothing changes.
func TestRevoke_RefusesWhatIsOver(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	id := w.enqueue(graph(step("a"), step("b", "a")))
	h := w.worker(0, 2)
	l := h.one(long)
	wrong := &leaseholdv1.Lease{AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion() + 1}
	_, err := w.revoke(1, wrong, "")
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	want(t, "version that holds", Info(err).GetMetadata()["current_lease_version"], fmt.Sprint(l.GetLeaseVersion()))
	_, err = w.revoke(1, &leaseholdv1.Lease{AttemptId: "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f", LeaseVersion: 1}, "")
	refused(t, err, codes.NotFound, "ATTEMPT_NOT_FOUND")
	_, err = w.revoke(1, &leaseholdv1.Lease{AttemptId: l.GetAttemptId()}, "")
	refused(t, err, codes.InvalidArgument, "INVALID_FIELD")
	h.renew(l)
	h.succeed(l)
	_, err = w.revoke(0, l, "")
	refused(t, err, codes.FailedPrecondition, "OUTCOME_ALREADY_RECORDED")
	last := h.one(time.Second)
	w.await(id, "the lease is over", func(e *leaseholdv1.Execution) bool {
		a := find(t, e, "b").GetAttempts()
		return a[0].GetState() == leaseholdv1.AttemptState_ATTEMPT_STATE_LOST
	})
	_, err = w.revoke(0, last, "")
	refused(t, err, codes.FailedPrecondition, "LEASE_EXPIRED")
	want(t, "control", w.control(id), "")
	h.finish(1)
	w.awaitState(id, succeeded)
}

// A revocation and the report of the same attempt at the same instant: one of them holds.
func TestRevoke_CrossesAReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 40, 500)
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(once("a")) })
	h := w.worker(0, int32(n))
	each(h.take(n, long), func(i int, l *leaseholdv1.Lease) {
		var revokeErr, reportErr error
		together(
			func() { _, revokeErr = w.revoke(i, l, "race") },
			func() { _, reportErr = h.at(i+1).Report(w.ctx, l, Succeeded(nil)) })
		if (revokeErr == nil) == (reportErr == nil) {
			t.Errorf("revoke: %v, report: %v", revokeErr, reportErr)
		}
		state := map[bool]leaseholdv1.ExecutionState{true: failed, false: succeeded}[revokeErr == nil]
		want(t, "state", w.get(l.GetExecutionId()).GetState(), state)
	})
}

// An execution that is terminated is CANCELED at once, whatever its steps do; their workers are
// refused. A repeat changes nothing.
func TestTerminate_EndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	delayed := step("delayed")
	delayed.StartDelay = durationpb.New(time.Hour)
	id := w.enqueue(graph(step("live"), delayed, step("child", "live")))
	h := w.worker(0, 3)
	l := h.one(long)
	e, err := w.terminate(1, id, "wrong customer")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "state", e.GetState(), canceled)
	want(t, "cancel reason", e.GetCancelReason(), "wrong customer")
	_, err = h.Renew(w.ctx, l, long)
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	_, err = h.Report(w.ctx, l, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	for _, s := range w.get(id).GetSteps() {
		want(t, s.GetName(), s.GetState(), leaseholdv1.StepState_STEP_STATE_CANCELED)
	}
	before := w.get(id).GetRevision()
	for r := range 3 {
		again, err := w.terminate(r, id, "again")
		if err != nil || again.GetState() != canceled || again.GetRevision() != before {
			t.Errorf("a repeat: %v, %v", again, err)
		}
	}
	want(t, "control", w.control(id), "Terminate requested by operator: wrong customer")
	h.nothing(300 * time.Millisecond)
}

// Terminate ends what a cancel's grace lets live, and refuses what has ended otherwise.
func TestTerminate_WhileCancelingAndWhenClosed(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 2)
	id := w.enqueue(graph(step("a")))
	h.one(long)
	want(t, "cancel", w.cancel(0, id).GetState(), canceling)
	e, err := w.terminate(1, id, "now")
	if err != nil || e.GetState() != canceled {
		t.Fatalf("%v, %v", e, err)
	}
	want(t, "cancel reason", e.GetCancelReason(), "asked")
	want(t, "control", w.control(id), "Cancel requested by producer: asked; Terminate requested by operator: now")
	for _, end := range []*leaseholdv1.ReportAttemptRequest{Succeeded(nil), broken()} {
		id := w.enqueue(graph(once("a")))
		h.report(h.one(long), end)
		before := w.get(id)
		_, err := w.terminate(0, id, "late")
		refused(t, err, codes.FailedPrecondition, "EXECUTION_CLOSED")
		want(t, "revision", w.get(id).GetRevision(), before.GetRevision())
	}
	_, err = w.terminate(0, "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f", "")
	refused(t, err, codes.NotFound, "EXECUTION_NOT_FOUND")
}

// Terminate crosses reports, renewals and cancels of the same executions: each ends CANCELED, or
// as the report that came first said. No deadlock is seen.
func TestTerminate_CrossesEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 30, 300)
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(once("a"), once("b", "a")) })
	h := w.worker(0, int32(n))
	each(h.take(n, long), func(i int, l *leaseholdv1.Lease) {
		together(
			func() { _, _ = w.terminate(i, l.GetExecutionId(), "race") },
			func() { _, _ = h.at(i+1).Report(w.ctx, l, broken()) },
			func() { _, _ = h.at(i+2).Renew(w.ctx, l, long) },
			func() {
				_, _ = w.Client(i).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: l.GetExecutionId()})
			})
	})
	for _, id := range ids {
		if s := w.get(id).GetState(); s != canceled && s != failed {
			t.Errorf("execution %s is %s", id, s)
		}
	}
}
