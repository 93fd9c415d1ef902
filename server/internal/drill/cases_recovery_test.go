package drill

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB16_AStepThatKillsItsWorkerIsBounded: a lease that runs out counts.
func TestB16_AStepThatKillsItsWorkerIsBounded(t *testing.T) {
	t.Parallel()
	for _, most := range []int32{1, 3} {
		t.Run(fmt.Sprint("maximum_attempts ", most), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.enqueue(graph(&leaseholdv1.StepSpec{Name: "a", Capability: "work", RetryPolicy: retries(most, 10*time.Millisecond)}))
			for n := range most { // each worker is silent from its first lease on
				l := w.worker(int(n), 1).one(time.Second)
				want(t, "attempt", l.GetAttemptNumber(), n+1)
			}
			e := w.awaitState(id, leaseholdv1.ExecutionState_EXECUTION_STATE_FAILED)
			s := find(t, e, "a")
			want(t, "attempts", len(s.GetAttempts()), int(most))
			want(t, "counted", s.GetCountedAttempts(), most)
			want(t, "why", s.GetRetryStoppedBecause(), "MAXIMUM_ATTEMPTS_REACHED")
			for _, a := range s.GetAttempts() {
				want(t, "attempt", a.GetState(), attemptLost)
				want(t, "reason", a.GetReason(), "lease_expired")
			}
			w.worker(0, 1).nothing(300 * time.Millisecond)
		})
	}
}

// TestB19_AWorkerThatRestartsUnderItsName does not keep its old leases alive, nor does it end
// them; its slots count them meanwhile.
func TestB19_AWorkerThatRestartsUnderItsName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inTime(t, 3*time.Second, w.restartsUnderItsName)
}

func (w *world) restartsUnderItsName(ttl time.Duration) bool {
	t := w.t
	w.enqueueMany(5, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	me := &leaseholdv1.RegisterWorkerRequest{Name: "w1", Capabilities: []string{"work"}, Slots: 4}
	old := w.register(0, me)
	held := old.take(3, ttl)
	again := w.register(1, me)
	want(t, "worker id", again.ID, old.ID)
	if again.Session == old.Session {
		t.Error("the session is the same")
	}
	got := again.poll(Poll{Max: 4, TTL: long}).GetLeases()
	_, ofOld := old.at(2).Renew(w.ctx, held[0], time.Minute)
	_, ofNew := again.Renew(w.ctx, held[0], time.Minute)
	for _, l := range held {
		if w.get(l.GetExecutionId()).GetSteps()[0].GetState() != stepRunning {
			again.finish(5 - len(got))
			again.succeedAll(got)
			return false
		}
	}
	if len(got) > 1 {
		t.Errorf("got %d leases while 3 of 4 slots are taken", len(got))
	}
	refused(t, ofOld, codes.FailedPrecondition, "SESSION_SUPERSEDED")
	refused(t, ofNew, codes.FailedPrecondition, "SESSION_SUPERSEDED")
	for _, l := range held {
		e := w.await(l.GetExecutionId(), "the end of the old attempt", func(e *leaseholdv1.Execution) bool {
			return e.GetSteps()[0].GetAttempts()[0].GetEndTime() != nil
		})
		a := e.GetSteps()[0].GetAttempts()[0]
		want(t, "state", a.GetState(), attemptLost)
		want(t, "reason", a.GetReason(), "session_superseded")
		if a.GetEndTime().AsTime().Before(l.GetExpireTime().AsTime()) {
			t.Errorf("ended %s, before its deadline %s", a.GetEndTime().AsTime(), l.GetExpireTime().AsTime())
		}
	}
	again.take(4-len(got), long)
	return true
}

// TestB93_SlotsHoldUnderARace: one worker, many polls at once through all replicas. That never
// more attempts are live than it has slots is one of the invariants.
func TestB93_SlotsHoldUnderARace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const slots, polls = 5, 30
	n := count(t, 30, 200)
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, slots)
	for done := 0; done < n; {
		var got [polls][]*leaseholdv1.Lease
		var fs []func()
		for i := range polls {
			fs = append(fs, func() { got[i] = h.at(i).poll(Poll{Max: 2, Wait: 300 * time.Millisecond, TTL: long}).GetLeases() })
		}
		together(fs...)
		var leases []*leaseholdv1.Lease
		for _, l := range got {
			leases = append(leases, l...)
		}
		if len(leases) > slots {
			t.Fatalf("%d leases live, the worker has %d slots", len(leases), slots)
		}
		var reports []func()
		for i, l := range leases {
			reports = append(reports, func() { h.at(i).succeed(l) })
		}
		together(reports...)
		done += len(leases)
	}
}
