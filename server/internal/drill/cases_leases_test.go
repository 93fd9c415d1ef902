package drill

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB01_SweepNeverOverwritesASuccess: reports at the very time when leases run out. Per step
// there is one story.
func TestB01_SweepNeverOverwritesASuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := count(t, 120, 1000)
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, int32(n))
	leases := h.take(n, 2*time.Second)
	errs := make([]error, n)
	fs := make([]func(), n)
	for i, l := range leases {
		around := time.Duration(rand.IntN(150)-50) * time.Millisecond
		fs[i] = func() {
			time.Sleep(time.Until(l.GetExpireTime().AsTime().Add(around))) // the scenario itself, no wait for anything
			_, errs[i] = h.at(i).Report(w.ctx, l, Succeeded(nil))
		}
	}
	together(fs...)
	var accepted atomic.Int32
	each(leases, func(i int, l *leaseholdv1.Lease) {
		switch status.Code(errs[i]) {
		case codes.OK:
			accepted.Add(1)
			e := w.get(l.GetExecutionId())
			want(t, "execution of a success", e.GetState(), succeeded)
			want(t, "attempts of a step that succeeded", len(e.GetSteps()[0].GetAttempts()), 1)
		case codes.FailedPrecondition:
			s := w.get(l.GetExecutionId()).GetSteps()[0]
			want(t, "refused attempt", s.GetAttempts()[0].GetState(), attemptLost)
			want(t, "step of a lost attempt", s.GetState(), stepReady)
		default:
			t.Errorf("report: %v", errs[i])
		}
	})
	t.Logf("%d of %d reports were accepted", accepted.Load(), n)
}

// TestB04a_LateResultAfterTheNextAttemptIsRefused and leaves its trace.
func TestB04a_LateResultAfterTheNextAttemptIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.enqueue(graph(step("a")))
	late, next := w.worker(0, 1), w.worker(1, 1)
	first := late.one(time.Second)
	second := next.one(long)
	want(t, "number of the next attempt", second.GetAttemptNumber(), int32(2))
	if second.GetLeaseVersion() <= first.GetLeaseVersion() {
		t.Errorf("lease_version %d after %d", second.GetLeaseVersion(), first.GetLeaseVersion())
	}
	_, err := late.Report(w.ctx, first, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	_, err = late.Renew(w.ctx, first, time.Minute)
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	w.wantLateEntry(id, first, "LEASE_SUPERSEDED", 1)
	next.succeed(second)
	_, err = late.at(2).Report(w.ctx, first, Succeeded(nil))
	refused(t, err, codes.FailedPrecondition, "LEASE_SUPERSEDED")
	w.wantLateEntry(id, first, "LEASE_SUPERSEDED", 2)
	want(t, "execution", w.get(id).GetState(), leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED)
}

// wantLateEntry looks for the one trace of refused reports of a lease.
func (w *world) wantLateEntry(id string, l *leaseholdv1.Lease, reason string, times int32) {
	w.t.Helper()
	found := 0
	for _, e := range w.timeline(id) {
		if e.GetDetails()["reason"] != reason || e.GetStage() != leaseholdv1.TimelineStage_TIMELINE_STAGE_RECOVERY {
			continue
		}
		found++
		want(w.t, "late entry: step", e.GetStepName(), l.GetStepName())
		want(w.t, "late entry: attempt", e.GetAttemptNumber(), l.GetAttemptNumber())
		want(w.t, "late entry: version", e.GetLeaseVersion(), l.GetLeaseVersion())
		want(w.t, "late entry: count", e.GetCount(), times)
	}
	want(w.t, "late entries with "+reason, found, 1)
}

// TestB04b_LateResultCountsWhileTheLeaseRowIsThere: the row is the authority, not the clock.
func TestB04b_LateResultCountsWhileTheLeaseRowIsThere(t *testing.T) {
	t.Parallel()
	t.Run("not swept yet", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, func(c *Config) { c.SweepInterval = time.Hour })
		id := w.enqueue(graph(step("a")))
		h := w.worker(0, 1)
		l := h.one(time.Second)
		w.await(id, "the end of the lease", func(e *leaseholdv1.Execution) bool {
			return e.GetSteps()[0].GetAttempts()[0].GetLeaseRemaining().AsDuration() <= 0
		})
		h.at(1).succeed(l)
		want(t, "execution", w.get(id).GetState(), leaseholdv1.ExecutionState_EXECUTION_STATE_SUCCEEDED)
	})
	t.Run("swept", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		id := w.enqueue(graph(step("a")))
		h := w.worker(0, 1)
		l := h.one(time.Second)
		w.await(id, "the end of the attempt", func(e *leaseholdv1.Execution) bool {
			// On a machine that stands still an earlier one may have run out before it was heard of.
			return e.GetSteps()[0].GetAttempts()[l.GetAttemptNumber()-1].GetState() == leaseholdv1.AttemptState_ATTEMPT_STATE_LOST
		})
		for range 3 {
			_, err := h.at(1).Report(w.ctx, l, Succeeded(nil))
			refused(t, err, codes.FailedPrecondition, "LEASE_EXPIRED")
		}
		w.wantLateEntry(id, l, "LEASE_EXPIRED", 3)
		h.succeed(h.one(long))
	})
}

// TestB10_AnExpiryIsHandledOnce: many leases run out at the same second under three sweepers.
func TestB10_AnExpiryIsHandledOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 200
	ids := w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	w.worker(0, n).take(n, 4*time.Second) // long enough for all of them, on a slow machine too
	w.worker(1, n).take(n, long)
	// A grant that crosses the end of its poll goes back, RELEASED, and is numbered all the same.
	for _, step := range w.rows(`SELECT s.id::text FROM steps s WHERE 2 <>
		(SELECT count(*) FROM attempts a WHERE a.step_id = s.id AND a.state <> 'RELEASED')`) {
		t.Errorf("step %s has not just one attempt that was lost and one that lives", step)
	}
	for _, what := range []string{
		`SELECT aggregate_id::text FROM outbox_events WHERE event_type = 'leasehold.attempt.v1.lost'`,
		`SELECT execution_id::text FROM timeline WHERE title = 'Attempt LOST'`,
	} {
		times := map[string]int{}
		for _, id := range w.rows(what) {
			times[id]++
		}
		for _, id := range ids {
			want(t, fmt.Sprintf("%s: of execution %s", what, id), times[id], 1)
		}
	}
}

// TestB14_TheSameReportAgainIsOK: also through another replica, also later.
func TestB14_TheSameReportAgainIsOK(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.worker(0, 5)
	for _, report := range []func() *leaseholdv1.ReportAttemptRequest{
		func() *leaseholdv1.ReportAttemptRequest { return Succeeded(JSON(`{"a": 1}`)) },
		func() *leaseholdv1.ReportAttemptRequest {
			return Failed(&leaseholdv1.Failure{Type: "X", Message: "no"})
		},
		func() *leaseholdv1.ReportAttemptRequest { return Released("leaving", time.Hour) },
	} {
		id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(3, time.Hour)}))
		l := h.one(long)
		first := h.report(l, report())
		want(t, "replayed at first", first.GetReplayed(), false)
		before := w.get(id)
		for i := range 4 {
			if i == 3 && count(t, 0, 1) == 1 {
				time.Sleep(time.Minute) // the scenario: much later
			}
			again := h.at(i).report(l, report())
			want(t, "replayed", again.GetReplayed(), true)
			want(t, "step state", again.GetStepState(), first.GetStepState())
			want(t, "execution state", again.GetExecutionState(), first.GetExecutionState())
			want(t, "next attempt", again.GetNextAttemptTime().AsTime(), first.GetNextAttemptTime().AsTime())
		}
		want(t, "revision after repeats", w.get(id).GetRevision(), before.GetRevision())
		for _, other := range []*leaseholdv1.ReportAttemptRequest{
			Succeeded(JSON(`{"a": 2}`)), Failed(&leaseholdv1.Failure{Type: "Y"}), Released("other", 0),
		} {
			_, err := h.at(1).Report(w.ctx, l, other)
			refused(t, err, codes.FailedPrecondition, "OUTCOME_ALREADY_RECORDED")
		}
	}
}
