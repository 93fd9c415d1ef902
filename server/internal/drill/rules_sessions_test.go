package drill

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// parked is a poll that waits, and what came of it.
type parked struct {
	answer *leaseholdv1.LeaseAttemptResponse
	err    error
	took   time.Duration
}

// park polls in the background for up to 40 s.
func (h *hand) park() <-chan parked {
	done := make(chan parked, 1)
	go func() {
		began := time.Now()
		answer, err := h.Lease(h.w.ctx, Poll{Max: 5, Wait: 40 * time.Second, TTL: long})
		done <- parked{answer, err, time.Since(began)}
	}()
	return done
}

// early fails the test if a parked poll was only answered when its wait was over.
func (p parked) early(t *testing.T) {
	t.Helper()
	if p.took > 30*time.Second {
		t.Errorf("the poll was answered after %s", p.took)
	}
}

// TestDrain_AnswersPollsAndGivesNothingMore; what is live stays.
func TestDrain_AnswersPollsAndGivesNothingMore(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 5)
	id := w.enqueue(graph(step("a")))
	l := h.one(long)
	waiting := []<-chan parked{h.park(), h.at(1).park(), h.at(2).park()}
	drained, err := w.Client(1).Workers.DrainWorker(w.ctx, &leaseholdv1.DrainWorkerRequest{WorkerId: h.ID, SessionId: h.Session})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "live leases", drained.GetLiveLeases(), int32(1))
	other := w.enqueue(graph(step("a")))
	for _, done := range waiting {
		p := <-done
		p.early(t)
		if p.err != nil {
			t.Errorf("parked poll: %v", p.err)
		}
		want(t, "leases", len(p.answer.GetLeases()), 0)
		want(t, "directive", p.answer.GetDirective(), leaseholdv1.Directive_DIRECTIVE_DRAIN)
	}
	for i := range 3 {
		answer := h.at(i).poll(Poll{Max: 5, Wait: 30 * time.Second, TTL: long})
		want(t, "leases after the drain", len(answer.GetLeases()), 0)
		want(t, "directive after the drain", answer.GetDirective(), leaseholdv1.Directive_DIRECTIVE_DRAIN)
	}
	want(t, "to the renewal", h.renew(l).GetDirective(), leaseholdv1.Directive_DIRECTIVE_DRAIN)
	h.succeed(l)
	want(t, "execution", w.get(id).GetState(), succeeded)
	want(t, "the other", w.get(other).GetState(), queued)
	w.worker(1, 1).finish(1)
}

// TestDeregister_IsRefusedWhileLeasesLive, unless forced: then they are LOST at once.
func TestDeregister_IsRefusedWhileLeasesLive(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 5)
	w.enqueueMany(2, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	leases := h.take(2, long)
	leave := &leaseholdv1.DeregisterWorkerRequest{WorkerId: h.ID, SessionId: h.Session}
	_, err := w.Client(1).Workers.DeregisterWorker(w.ctx, leave)
	refused(t, err, codes.FailedPrecondition, "LEASES_LIVE")
	h.renew(leases[0])
	waiting := h.at(2).park()
	leave.Force = true
	answer, err := w.Client(1).Workers.DeregisterWorker(w.ctx, leave)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "ended leases", answer.GetEndedLeases(), int32(2))
	for _, l := range leases {
		s := w.get(l.GetExecutionId()).GetSteps()[0]
		want(t, "attempt", s.GetAttempts()[0].GetState(), attemptLost)
		want(t, "reason", s.GetAttempts()[0].GetReason(), "worker_deregistered")
		want(t, "step", s.GetState(), stepReady)
		_, err := h.Renew(w.ctx, l, time.Minute)
		refused(t, err, codes.FailedPrecondition, "LEASE_REVOKED")
	}
	p := <-waiting
	p.early(t)
	refused(t, p.err, codes.NotFound, "SESSION_NOT_FOUND")
	_, err = h.Lease(w.ctx, Poll{Wait: 10 * time.Second})
	refused(t, err, codes.NotFound, "SESSION_NOT_FOUND")
	w.worker(1, 2).finish(2)

	idle := w.worker(2, 1)
	if _, err := w.Client(0).Workers.DeregisterWorker(w.ctx, &leaseholdv1.DeregisterWorkerRequest{WorkerId: idle.ID, SessionId: idle.Session}); err != nil {
		t.Errorf("deregister without leases: %v", err)
	}
}

// TestSession_ASupersededOneIsToldSoon, wherever its polls are parked, and is never granted
// work; its leases stay its own, and its reports count until their deadline.
func TestSession_ASupersededOneIsToldSoon(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	me := &leaseholdv1.RegisterWorkerRequest{Name: "me", Capabilities: []string{"work"}, Slots: 30}
	old := w.register(0, me)
	id := w.enqueue(graph(step("a")))
	l := old.one(long)
	waiting := []<-chan parked{old.park(), old.at(1).park(), old.at(2).park()}
	again := w.register(1, me)
	w.enqueueMany(20, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	for _, done := range waiting {
		p := <-done
		p.early(t)
		refused(t, p.err, codes.FailedPrecondition, "SESSION_SUPERSEDED")
		want(t, "leases", len(p.answer.GetLeases()), 0)
	}
	for i := range 3 {
		_, err := old.at(i).Lease(w.ctx, Poll{Max: 5, Wait: 10 * time.Second})
		refused(t, err, codes.FailedPrecondition, "SESSION_SUPERSEDED")
	}
	want(t, "leases of the old session", len(w.rows(`SELECT id::text FROM attempts WHERE session_id = $1::uuid`, old.Session)), 1)
	_, err := old.Renew(w.ctx, l, time.Minute)
	refused(t, err, codes.FailedPrecondition, "SESSION_SUPERSEDED")
	old.succeed(l)
	want(t, "execution", w.get(id).GetState(), succeeded)
	again.finish(20)
}

// TestRegister_TheSameRequestIDOpensOneSession.
func TestRegister_TheSameRequestIDOpensOneSession(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	me := &leaseholdv1.RegisterWorkerRequest{Name: "me", Capabilities: []string{"work"}, RequestId: "once"}
	first, again := w.register(0, me), w.register(1, me)
	want(t, "worker", again.ID, first.ID)
	want(t, "session", again.Session, first.Session)
	nameless := &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"work"}}
	one, two := w.register(0, nameless), w.register(0, nameless)
	if one.ID == two.ID || one.Welcome.GetName() == two.Welcome.GetName() || one.Welcome.GetName() == "" {
		t.Errorf("two workers without a name: %v and %v", one.Welcome, two.Welcome)
	}
}

// TestB11_ALeaseIsRenewedThroughAnyReplica, while the one that gave it is gone and no poll is open.
func TestB11_ALeaseIsRenewedThroughAnyReplica(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*Replica){"stopped": (*Replica).Stop, "killed": (*Replica).Kill} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			id := w.enqueue(graph(step("a")))
			h := w.worker(0, 2)
			l := h.one(long)
			waiting := h.park()
			h.at(1).nothing(300 * time.Millisecond) // by then the other is parked
			end(w.Replica(0))
			p := <-waiting
			p.early(t)
			if how == "stopped" && p.err != nil {
				t.Errorf("parked poll of a replica that stops: %v", p.err)
			}
			if how == "killed" {
				want(t, "parked poll of a replica that is killed", status.Code(p.err), codes.Unavailable)
			}
			want(t, "directive", h.at(1).renew(l).GetDirective(), leaseholdv1.Directive_DIRECTIVE_CONTINUE)
			h.at(2).renew(l)
			h.at(1).succeed(l)
			want(t, "execution", w.get(id).GetState(), succeeded)
		})
	}
}
