package drill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

func (w *world) on(replica int, name, node, version string) *hand {
	w.t.Helper()
	return w.register(replica, &leaseholdv1.RegisterWorkerRequest{
		Name: name, Node: node, Version: version, Capabilities: []string{"work"}, Slots: 5,
	})
}

const drainDirective = leaseholdv1.Directive_DIRECTIVE_DRAIN

// drained polls: at once nothing, and the word to take no more.
func (h *hand) drained() {
	h.w.t.Helper()
	answer := h.poll(Poll{Max: 5, Wait: 20 * time.Second, TTL: long})
	if answer.GetDirective() != drainDirective || len(answer.GetLeases()) > 0 {
		h.w.t.Errorf("a drained worker's poll: %v", answer)
	}
}

// A drain by id, node or version holds for the workers that are there and for those that come
// later, until that very drain is ended; parked polls are answered, live leases stay.
func TestDrain_ByWorkerNodeAndVersion(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"worker", "node", "version"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			h := w.on(0, "one", "n1", "v1")
			other := w.on(1, "other", "n2", "v2")
			id := w.enqueue(graph(step("a"), step("b")))
			live := h.one(long)
			var target any = h
			switch by {
			case "node":
				target = nodeName("n1")
			case "version":
				target = versionName("v1")
			}
			parked := w.register(2, &leaseholdv1.RegisterWorkerRequest{Node: "n1", Version: "v1", Capabilities: []string{"nothing"}})
			heard := make(chan leaseholdv1.Directive, 1)
			go func() { heard <- parked.poll(Poll{Wait: 30 * time.Second}).GetDirective() }()
			answer := w.drain(1, drainOf(true, target))
			want(t, "live leases", answer.GetLiveLeases(), 1)
			h.at(2).drained()
			want(t, "of a renewal", h.at(1).renew(live).GetDirective(), drainDirective)
			want(t, "drained", w.workerOf(h).GetDrained(), true)
			later := w.on(2, "later", "n1", "v1")
			if by == "worker" { // only it itself is
				w.drain(0, drainOf(true, parked))
				w.drain(0, drainOf(true, later))
			}
			want(t, "a parked poll hears", <-heard, drainDirective)
			later.drained()
			h = w.on(0, "one", "n1", "v1") // back under its name
			h.drained()
			left := other.one(long)
			other.succeed(left)
			w.enqueue(graph(step("a")))
			want(t, "ended", w.drain(2, drainOf(false, target)).GetLiveLeases(), 1)
			want(t, "drained still", w.workerOf(h).GetDrained(), false)
			h.succeed(h.one(long)) // at once, though another worker polls for nothing
			h.succeed(live)        // its old session's own
			w.awaitState(id, succeeded)
		})
	}
}

// Drains add up: what is drained in two ways is undrained in both. A worker that drained itself
// is not undrained by an operator.
func TestDrain_EachIsEndedByItself(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.on(0, "one", "n1", "v1")
	w.drain(0, drainOf(true, nodeName("n1")))
	w.drain(1, drainOf(true, versionName("v1")))
	w.drain(1, drainOf(true, versionName("v1"))) // again
	got := w.workerOf(h)
	want(t, "drains", len(got.GetDrains()), 2)
	want(t, "the oldest", got.GetDrains()[0].GetNode(), "n1")
	want(t, "reason", got.GetDrains()[1].GetReason(), "maintenance")
	want(t, "itself", got.GetDrainedByItself(), false)
	w.drain(0, drainOf(false, nodeName("n1")))
	w.drain(0, drainOf(false, h)) // there is none
	w.drain(0, drainOf(false, nodeName("no such node")))
	h.drained()
	w.drain(0, drainOf(false, versionName("v1")))
	h.nothing(0)
	if _, err := w.Client(0).Workers.DrainWorker(w.ctx, &leaseholdv1.DrainWorkerRequest{WorkerId: h.ID, SessionId: h.Session}); err != nil {
		t.Fatal(err)
	}
	w.drain(0, drainOf(false, h))
	got = w.workerOf(h)
	want(t, "drained by itself", fmt.Sprint(got.GetDrained(), got.GetDrainedByItself(), len(got.GetDrains())), "true true 0")
	h.drained()
}

// After the OK of a drain no later commit leases to its workers, however busy all dispatchers
// are. (That it waits for the dispatches under way is held still, one by one, beside the store.)
func TestDrain_AfterItsOKNothingIsLeased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hands []*hand
	for i := range 6 {
		hands = append(hands, w.on(i, "", fmt.Sprint("n", i%2), fmt.Sprint("v", i%3)))
	}
	defer w.busy(hands)()
	for round := range count(t, 5, 100) {
		w.enqueueMany(60, func(int) *leaseholdv1.EnqueueExecutionRequest { return graph(step("a"), step("b")) })
		switch round % 3 {
		case 0:
			w.drain(round, drainOf(true, nodeName("n0")))
			w.nothingMore("node", "w.node = 'n0'")
			w.drain(round, drainOf(false, nodeName("n0")))
		case 1:
			w.drain(round, drainOf(true, versionName("v1")))
			w.nothingMore("version", "w.version = 'v1'")
			w.drain(round, drainOf(false, versionName("v1")))
		default:
			w.drain(round, drainOf(true, hands[0]))
			w.nothingMore("worker", "w.id = $1::text::uuid", hands[0].ID)
			w.drain(round, drainOf(false, hands[0]))
		}
	}
}

// What a poll was granted before the drain it gets again: a drain takes no grant back. Caught:
// the lookup that answered DRAIN before it looked for grants.
func TestDrain_ARepeatedPollGetsItsGrants(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.on(0, "one", "n1", "v1")
	w.enqueue(graph(step("a")))
	first := h.poll(Poll{Wait: 20 * time.Second, TTL: long, Request: "r"}).GetLeases()
	w.drain(1, drainOf(true, h))
	again := h.at(1).poll(Poll{Wait: 20 * time.Second, TTL: long, Request: "r"}).GetLeases()
	if len(first) != 1 || len(again) != 1 || first[0].GetLeaseVersion() != again[0].GetLeaseVersion() {
		t.Fatalf("first %v, again %v", first, again)
	}
	h.succeed(again[0])
	h.drained()
}

// What is no drain is refused and changes nothing.
func TestDrain_Refusals(t *testing.T) {
	t.Parallel()
	w := newPair(t)
	h := w.on(0, "one", "n1", "v1")
	for what, r := range map[string]*leaseholdv1.SetWorkerDrainRequest{
		"INVALID_FIELD nothing":               {Draining: true},
		"INVALID_FIELD no uuid":               {Draining: true, Target: &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: "x"}},
		"INVALID_FIELD empty node":            {Draining: true, Target: &leaseholdv1.SetWorkerDrainRequest_Node{}},
		"INVALID_FIELD long reason":           {Draining: true, Target: &leaseholdv1.SetWorkerDrainRequest_Node{Node: "n1"}, Reason: strings.Repeat("x", 1025)},
		"WORKER_NOT_FOUND unknown":            {Draining: true, Target: &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f"}},
		"WORKER_NOT_FOUND of other namespace": {Namespace: "elsewhere", Draining: true, Target: &leaseholdv1.SetWorkerDrainRequest_WorkerId{WorkerId: h.ID}},
	} {
		reason, _, _ := strings.Cut(what, " ")
		code := codes.InvalidArgument
		if reason == "WORKER_NOT_FOUND" {
			code = codes.NotFound
		}
		_, err := w.Client(0).Operators.SetWorkerDrain(w.ctx, r)
		refused(t, err, code, reason)
	}
	elsewhere := drainOf(true, nodeName("n1"))
	elsewhere.Namespace = "elsewhere"
	w.drain(0, elsewhere)
	want(t, "drained", w.workerOf(h).GetDrained(), false)
	_, err := w.Client(0).Operators.GetWorker(w.ctx, &leaseholdv1.GetWorkerRequest{WorkerId: "6d1c3e2a-7f1b-4c55-9a53-0f3a3c1d2e4f"})
	refused(t, err, codes.NotFound, "WORKER_NOT_FOUND")
}
