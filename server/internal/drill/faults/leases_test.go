package faults

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const sweepEvery = 200 * time.Millisecond

// TestB06_HandedOutNeverStarted: a client that was killed with its answer in hand keeps the
// step for its lease, and no longer.
func TestB06_HandedOutNeverStarted(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 1})
	p := dial(t, c.replicas[0].addr)
	ttl := sized(2*time.Second, 5*time.Second)
	enqueue(t, p, 1, "b06")
	began := time.Now()
	dead := startClient(t, clientJob{Addr: c.replicas[0].addr, Capability: "b06", Lease: ttl})
	line := dead.next(t)
	leased := time.Now()
	if line.Attempt == "" {
		t.Fatalf("the client said %+v", line)
	}
	dead.kill(t)
	got := newHand(t, p, 1, "b06").poll(t.Context(), p, 1, 20*time.Second, ttl)
	if got.err != nil || len(got.leases) != 1 || got.leases[0].GetAttemptNumber() != 2 {
		t.Fatalf("got %v, %v; want attempt 2", got.leases, got.err)
	}
	if waited := got.at.Sub(leased); waited > ttl+sweepEvery+slack() {
		t.Errorf("leasable again after %s, want within %s and one sweep", waited, ttl)
	}
	if waited := got.at.Sub(began); waited < ttl {
		t.Errorf("leased anew %s after the first lease at the earliest, before its end after %s", waited, ttl)
	}
	if n := c.number(`SELECT count(*) FROM attempts WHERE id = $1 AND state = 'LOST'`, line.Attempt); n != 1 {
		t.Error("the first attempt is not LOST")
	}
}

// TestB08_PollOfADeadClient: work that comes when a polling client is dead goes to another one
// soon: at once if the connection is known to have ended, else when the lease runs out.
func TestB08_PollOfADeadClient(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 1})
	p := dial(t, c.replicas[0].addr)
	ttl := sized(3*time.Second, 5*time.Second)
	polled := sized(time.Second, 5*time.Second) // for so long the dead client polls before

	// within checks when b, which polls too, has the step that is enqueued now.
	within := func(t *testing.T, capability string, limit time.Duration) {
		t.Helper()
		parked := newHand(t, p, 1, capability).park(p, 20*time.Second, ttl)
		time.Sleep(time.Second) // as in the case: the work comes a second after the end
		sent := time.Now()
		enqueue(t, p, 1, capability)
		got := <-parked
		if got.err != nil || len(got.leases) != 1 {
			t.Fatalf("got %v, %v; want a lease", got.leases, got.err)
		}
		waited := got.at.Sub(sent)
		t.Logf("attempt %d was leased after %s", got.leases[0].GetAttemptNumber(), waited)
		if waited > limit {
			t.Errorf("leased after %s, want within %s", waited, limit)
		}
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		dead := startClient(t, clientJob{Addr: c.replicas[0].addr, Capability: "b08.killed", Lease: ttl})
		time.Sleep(polled)
		dead.kill(t)
		within(t, "b08.killed", time.Second+slack())
	})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		between := newProxy(t, c.replicas[0].addr)
		far := dial(t, between.Addr())
		answer := newHand(t, far, 1, "b08.cut").park(far, 30*time.Second, ttl)
		time.Sleep(polled)
		between.Cut()
		if got := <-answer; status.Code(got.err) != codes.Unavailable {
			t.Fatalf("the poll that was cut got %v, %v", got.leases, got.err)
		}
		within(t, "b08.cut", time.Second+slack())
	})
	t.Run("packets dropped", func(t *testing.T) {
		t.Parallel()
		between := newProxy(t, c.replicas[0].addr)
		far := dial(t, between.Addr())
		_ = newHand(t, far, 1, "b08.dropped").park(far, 30*time.Second, ttl) // nobody ever hears of it
		time.Sleep(polled)
		between.Swallow()
		within(t, "b08.dropped", ttl+sweepEvery+slack())
	})
}

// TestB11_RenewThroughAnyReplica: the replica that granted a lease is gone, and no poll is
// open; renewals through another one keep the lease for as long as they come.
func TestB11_RenewThroughAnyReplica(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 2})
	a, b := dial(t, c.replicas[0].addr), dial(t, c.replicas[1].addr)
	ttl := sized(3*time.Second, 5*time.Second)
	enqueue(t, a, 1, "b11")
	h := newHand(t, a, 1, "b11")
	lease := h.take(a, 1, ttl)[0]
	c.replicas[0].kill()
	other := newHand(t, b, 1, "b11").park(b, 50*time.Second, ttl)
	for began := time.Now(); time.Since(began) < 2*ttl+sweepEvery; {
		if err := h.renew(t.Context(), b, lease, ttl); err != nil {
			t.Fatalf("renew through the other replica: %v", err)
		}
		select {
		case got := <-other:
			t.Fatalf("the step went to another worker: %v, %v", got.leases, got.err)
		case <-time.After(ttl / 6):
		}
	}
	if err := h.succeed(t.Context(), b, lease); err != nil {
		t.Fatalf("report through the other replica: %v", err)
	}
	if n := c.number(`SELECT count(*) FROM attempts`); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
}

// TestB13_OutageLongerThanTheLease: all replicas are gone for longer than any lease lasts. The
// workers that renew soon after keep theirs; the one that does not loses its own in the end.
func TestB13_OutageLongerThanTheLease(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 3})
	workers := sized(12, 50)
	ttl, outage := sized(4*time.Second, 10*time.Second), sized(8*time.Second, 30*time.Second)
	p := dial(t, c.replicas[0].addr)
	enqueue(t, p, workers+1, "b13")
	hands := make([]*hand, workers+1)
	leases := make([]*leaseholdv1.Lease, workers+1)
	for i := range hands {
		hands[i] = newHand(t, p, 1, "b13")
		leases[i] = hands[i].take(p, 1, ttl)[0]
	}
	for i := range hands { // all are fresh when the outage begins
		if err := hands[i].renew(t.Context(), p, leases[i], ttl); err != nil {
			t.Fatalf("renew before the outage: %v", err)
		}
	}
	swept := c.number(`SELECT extract(epoch FROM swept_at)::bigint FROM sweeps`)
	eventually(t, 10*time.Second, "swept after the last renewal", func() bool {
		return c.number(`SELECT extract(epoch FROM swept_at)::bigint FROM sweeps`) > swept
	})
	for _, r := range c.replicas {
		r.kill()
	}
	time.Sleep(outage)
	for _, r := range c.replicas {
		r.launch()
	}
	for _, r := range c.replicas {
		r.awaitReady()
	}
	keepAll(t, c, hands[:workers], leases[:workers], ttl)
	eventually(t, 2*ttl+10*time.Second, "the lease that nobody renews over", func() bool {
		return c.number(`SELECT count(*) FROM attempts WHERE id = $1 AND state = 'LOST'`, leases[workers].GetAttemptId()) == 1
	})
	for i := range hands[:workers] {
		if err := hands[i].succeed(t.Context(), p, leases[i]); err != nil {
			t.Errorf("report after the outage: %v", err)
		}
	}
}

// keepAll renews all leases, each through any replica, for longer than they last.
func keepAll(t *testing.T, c *cluster, hands []*hand, leases []*leaseholdv1.Lease, ttl time.Duration) {
	t.Helper()
	var peers []*peer
	for _, addr := range c.addresses() {
		peers = append(peers, dial(t, addr))
	}
	for began, round := time.Now(), 0; time.Since(began) < ttl*5/4; round++ {
		for i, h := range hands {
			if err := h.renew(t.Context(), peers[(i+round)%len(peers)], leases[i], ttl); err != nil {
				t.Fatalf("worker %d lost its lease %s after the restart: %v", i, time.Since(began), err)
			}
		}
		time.Sleep(ttl / 10)
	}
}
