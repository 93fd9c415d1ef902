package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// grants names leases by attempt and version, in order.
func grants(leases []*leaseholdv1.Lease) string {
	var list []string
	for _, l := range leases {
		list = append(list, fmt.Sprint(l.GetAttemptId(), "/", l.GetLeaseVersion()))
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

// TestPoll_ARepeatedRequestIDGetsTheSameLiveGrants, whatever else is ready, through any
// replica; and once they are over nothing.
func TestPoll_ARepeatedRequestIDGetsTheSameLiveGrants(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.enqueueMany(6, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, 10)
	ask := Poll{Max: 2, Wait: 5 * time.Second, TTL: long, Request: "r1"}
	first := h.poll(ask).GetLeases()
	want(t, "leases", len(first), 2)
	more := ask
	more.Max = 6
	for i := range 4 {
		want(t, "repeat", grants(h.at(i).poll(more).GetLeases()), grants(first))
	}
	h.succeed(first[0])
	want(t, "repeat after one has ended", grants(h.at(1).poll(more).GetLeases()), grants(first[1:]))
	h.fail(first[1])
	for i := range 3 {
		want(t, "repeat after all have ended", len(h.at(i).poll(more).GetLeases()), 0)
	}
	ask.Request = "r2"
	want(t, "another request", len(h.poll(ask).GetLeases()), 2)
	want(t, "attempts in all", len(w.rows(`SELECT id::text FROM attempts`)), 4)
}

// TestPoll_ARepeatTakesTheParkedOnesPlace: the first is answered empty, the second gets the work.
func TestPoll_ARepeatTakesTheParkedOnesPlace(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 10)
	answers := make(chan []*leaseholdv1.Lease, 2)
	for range 2 {
		go func() {
			answer, err := h.Lease(w.ctx, Poll{Max: 1, Wait: 30 * time.Second, TTL: long, Request: "r"})
			if err != nil {
				t.Errorf("lease: %v", err)
			}
			answers <- answer.GetLeases()
		}()
	}
	began := time.Now()
	want(t, "leases of the first", len(<-answers), 0)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the first was answered after %s: by the end of its wait, not by the second", took)
	}
	w.enqueueMany(2, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	want(t, "leases of the second", len(<-answers), 1)
	want(t, "attempts in all", len(w.rows(`SELECT id::text FROM attempts`)), 1)
}

// TestPoll_ARequestIDParkedAtTwoReplicasIsGrantedOnce.
func TestPoll_ARequestIDParkedAtTwoReplicasIsGrantedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.worker(0, 100)
	for round := range count(t, 3, 50) {
		var got [3][]*leaseholdv1.Lease
		ask := Poll{Max: 2, Wait: 2 * time.Second, TTL: long, Request: fmt.Sprint("r", round)}
		var fs []func()
		for i := range got {
			fs = append(fs, func() { got[i] = h.at(i).poll(ask).GetLeases() })
		}
		fs = append(fs, func() {
			w.enqueueMany(6, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
		})
		together(fs...)
		different := map[string]*leaseholdv1.Lease{}
		for _, leases := range got {
			for _, l := range leases {
				different[l.GetAttemptId()] = l
			}
		}
		granted := len(w.rows(`SELECT attempt_id::text FROM leases WHERE request_id = $1`, ask.Request))
		if granted > ask.Max {
			t.Errorf("%d leases granted to a request for %d", granted, ask.Max)
		}
		want(t, "leases that were delivered", len(different), granted)
		for _, l := range different {
			h.succeed(l)
		}
		h.finish(6 - granted)
	}
}

// TestPoll_WaitOfZeroIsAnsweredAtOnce, with what is ready.
func TestPoll_WaitOfZeroIsAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 10)
	for i := range 3 {
		began := time.Now()
		want(t, "leases", len(h.at(i).poll(Poll{Max: 5}).GetLeases()), 0)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("an empty answer took %s", took)
		}
	}
	w.enqueueMany(3, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	got := 0
	err := Await(w.ctx, patient, "the work", func(context.Context) (bool, error) {
		got += len(h.poll(Poll{Max: 5, TTL: long}).GetLeases())
		return got == 3, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPoll_IsAnsweredBeforeTheCallsOwnDeadline, empty and OK.
func TestPoll_IsAnsweredBeforeTheCallsOwnDeadline(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	inTime(t, 2500*time.Millisecond, func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(w.ctx, limit)
		defer cancel()
		answer, err := h.Lease(ctx, Poll{Wait: 50 * time.Second})
		if status.Code(err) == codes.DeadlineExceeded {
			return false // the answer had a second for its way
		}
		want(t, "error", err, nil)
		want(t, "leases", len(answer.GetLeases()), 0)
		return true
	})
}

// TestPoll_MoreThanItsSlotsAWorkerNeverGets.
func TestPoll_MoreThanItsSlotsAWorkerNeverGets(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.enqueueMany(8, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, 3)
	held := h.take(3, long)
	want(t, "slots", len(held), 3)
	h.at(1).nothing(700 * time.Millisecond)
	h.at(2).succeed(held[0]) // through another replica: the parked poll has work soon
	want(t, "after one has ended", len(h.poll(Poll{Max: 10, Wait: 20 * time.Second, TTL: long}).GetLeases()), 1)
	h.nothing(0)
}

// TestPoll_AFreedSlotWakesAParkedPoll of the same worker at another replica.
func TestPoll_AFreedSlotWakesAParkedPoll(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	w.enqueueMany(3, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, 1)
	held := h.one(long)
	for range 2 {
		answer := make(chan []*leaseholdv1.Lease, 1)
		go func() { answer <- h.at(1).poll(Poll{Wait: 30 * time.Second, TTL: long}).GetLeases() }()
		time.Sleep(300 * time.Millisecond) // the scenario: its poll is parked, its slots are full
		began := time.Now()
		h.at(2).succeed(held)
		got := <-answer
		if len(got) != 1 || time.Since(began) > 15*time.Second {
			t.Fatalf("%d leases after %s", len(got), time.Since(began))
		}
		held = got[0]
	}
}

// TestPlacement_NodesCapabilitiesAndNamespaces: what a worker cannot run hides nothing.
func TestPlacement_NodesCapabilitiesAndNamespaces(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	pinned := func(node string, priority int32) *leaseholdv1.EnqueueExecutionRequest {
		s := step("a")
		s.Node, s.Priority = node, &priority
		return graph(s)
	}
	w.enqueueMany(30, func(int) *leaseholdv1.EnqueueExecutionRequest { return pinned("absent", 100) })
	for range 10 {
		e := prioritized(100)
		e.Steps[0].Capability = "other"
		w.enqueue(e)
		e = prioritized(100)
		e.Namespace = "elsewhere"
		w.enqueue(e)
	}
	toN1, toAny := w.enqueue(pinned("n1", 5)), w.enqueue(pinned("", 0))
	n2 := w.register(0, &leaseholdv1.RegisterWorkerRequest{Node: "n2", Capabilities: []string{"work"}, Slots: 10})
	l := n2.one(long)
	want(t, "what n2 gets", l.GetExecutionId(), toAny)
	n2.nothing(300 * time.Millisecond)
	w.worker(1, 10).nothing(300 * time.Millisecond) // on no node
	n1 := w.register(2, &leaseholdv1.RegisterWorkerRequest{Node: "n1", Capabilities: []string{"x", "work"}, Slots: 10})
	want(t, "what n1 gets", n1.one(long).GetExecutionId(), toN1)
	n1.nothing(300 * time.Millisecond)
	for _, node := range []string{"n1", "n2", "n2", "n1"} { // both polls are parked, and each gets its own
		other := map[string]*hand{"n1": n2, "n2": n1}[node]
		waiting := other.park()
		mine := map[string]*hand{"n1": n1, "n2": n2}[node].park()
		id := w.enqueue(pinned(node, 0))
		p := <-mine
		if len(p.answer.GetLeases()) != 1 || p.answer.GetLeases()[0].GetExecutionId() != id {
			t.Fatalf("%s got %v, %v", node, p.answer, p.err)
		}
		w.enqueue(pinned(map[string]string{"n1": "n2", "n2": "n1"}[node], 0))
		want(t, "leases of the other", len((<-waiting).answer.GetLeases()), 1)
	}
	other := w.register(0, &leaseholdv1.RegisterWorkerRequest{Namespace: "elsewhere", Capabilities: []string{"work"}, Slots: 20})
	want(t, "in the other namespace", len(other.take(10, long)), 10)
	other.nothing(0)
}

// TestPriority_BetweenStepsAndOldestFirst.
func TestPriority_BetweenStepsAndOldestFirst(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	of := func(name string, p int32) *leaseholdv1.StepSpec {
		return &leaseholdv1.StepSpec{Name: name, Capability: "work", Priority: &p}
	}
	e := graph(of("zero", 0), of("high", 10), of("low", -5), step("like the execution"))
	e.Priority = 7
	w.enqueue(e)
	for i := range 3 {
		w.enqueue(graph(step(fmt.Sprint("later ", i))))
	}
	h := w.worker(0, 1)
	for _, name := range []string{"high", "like the execution", "zero", "later 0", "later 1", "later 2", "low"} {
		l := h.one(long)
		want(t, "next", l.GetStepName(), name)
		h.succeed(l)
	}
}

// TestPoll_UnknownWorkerOrSession.
func TestPoll_UnknownWorkerOrSession(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.worker(0, 1)
	strange := *h.Worker
	strange.Session = h.ID
	_, err := strange.Lease(w.ctx, Poll{Wait: 10 * time.Second})
	refused(t, err, codes.NotFound, "SESSION_NOT_FOUND")
	strange.ID = h.Session
	_, err = strange.Via(w.Client(1)).Lease(w.ctx, Poll{Wait: 10 * time.Second})
	refused(t, err, codes.NotFound, "WORKER_NOT_FOUND")
}

// TestPoll_WhatReachedItsWorkerIsNotHandedBack because the caller of a repeat has left.
func TestPoll_WhatReachedItsWorkerIsNotHandedBack(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	n := count(t, 24, 300)
	w.enqueueMany(n, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a")) })
	h := w.worker(0, int32(n))
	for i := range n {
		ask := Poll{Wait: 20 * time.Second, TTL: long, Request: fmt.Sprint("r", i)}
		l := h.poll(ask).GetLeases()[0]
		ctx, cancel := context.WithTimeout(w.ctx, time.Duration(1+rand.IntN(12))*time.Millisecond)
		_, _ = h.at(1+i%2).Lease(ctx, ask) // a repeat whose caller leaves, about when it is answered
		cancel()
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		h.succeed(l)
	}
}

// TestPoll_ACallerThatLeftGetsNothing: what it would have got is another's at once, not after
// a lease's time.
func TestPoll_ACallerThatLeftGetsNothing(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	gone, there := w.worker(0, 100), w.worker(0, 100)
	for range count(t, 10, 200) {
		ctx, cancel := context.WithCancel(w.ctx)
		done := make(chan error, 1)
		go func() {
			_, err := gone.Lease(ctx, Poll{Wait: 40 * time.Second, TTL: long})
			done <- err
		}()
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
		cancel()
		want(t, "the call that was left", status.Code(<-done), codes.Canceled)
		w.enqueue(graph(step("a"))) // over the same connection: the server knows of the leaving before
		there.succeed(there.one(long))
	}
}
