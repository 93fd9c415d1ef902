package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB91_SmallPoolManyPolls: four connections carry 300 parked polls, 50 that enqueue and 50
// that take work and report it, and nothing stalls.
func TestB91_SmallPoolManyPolls(t *testing.T) {
	const conns, limit = 4, 5 * time.Second
	c := newCluster(t, clusterConfig{replicas: 1, args: []string{"--database-max-conns", fmt.Sprint(conns)}})
	var peers []*peer
	for range 10 {
		peers = append(peers, dial(t, c.replicas[0].addr))
	}
	parkMany(t, peers, 300)
	ctx, stop := context.WithCancel(t.Context()) // no deadline: the server would answer by it
	time.AfterFunc(sized(12*time.Second, 2*time.Minute), stop)
	m := &meter{}
	var busy sync.WaitGroup
	for i := range 50 {
		p, h := peers[i%len(peers)], newHand(t, peers[0], 1, "b91")
		busy.Go(func() { enqueueUntil(ctx, t, p, m) })
		busy.Go(func() { reportUntil(ctx, t, p, h, m) })
	}
	most := int64(0)
	for ctx.Err() == nil {
		most = max(most, c.number(`SELECT count(*) FROM pg_stat_activity WHERE usename = $1`, c.replicas[0].role))
		pause(ctx, 100*time.Millisecond)
	}
	busy.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.durations)
	slices.SortFunc(m.reported, time.Time.Compare)
	gap := time.Duration(0)
	for i := 1; i < len(m.reported); i++ {
		gap = max(gap, m.reported[i].Sub(m.reported[i-1]))
	}
	n := len(m.durations)
	if n < 1000 || len(m.reported) < 100 {
		t.Fatalf("only %d calls, %d reports", n, len(m.reported))
	}
	t.Logf("%d calls, %d reports, p50 %s, p99 %s, slowest %s, longest pause between reports %s, %d connections at most",
		n, len(m.reported), m.durations[n/2], m.durations[n*99/100], m.durations[n-1], gap, most)
	if m.durations[n-1] > limit || gap > limit {
		t.Errorf("slowest call %s, longest pause between reports %s; want less than %s", m.durations[n-1], gap, limit)
	}
	if most > conns+1 {
		t.Errorf("%d connections, want %d and one that listens", most, conns)
	}
}

// meter gathers how long calls took.
type meter struct {
	mu        sync.Mutex
	durations []time.Duration
	reported  []time.Time
}

func (m *meter) add(d time.Duration, report bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.durations = append(m.durations, d)
	if report {
		m.reported = append(m.reported, time.Now())
	}
}

// parkMany parks polls of as many workers, over and over until the test ends.
func parkMany(t *testing.T, peers []*peer, n int) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var parked, ready sync.WaitGroup
	t.Cleanup(func() { stop(); parked.Wait() })
	for i := range n {
		p := peers[i%len(peers)]
		ready.Add(1)
		parked.Go(func() {
			answer, err := p.workers.RegisterWorker(ctx, &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{"idle"}})
			ready.Done()
			if err != nil {
				t.Errorf("register: %v", err)
				return
			}
			h := &hand{t: t, id: answer.GetWorkerId(), session: answer.GetSessionId()}
			for ctx.Err() == nil {
				if got := h.poll(ctx, p, 1, 20*time.Second, time.Minute); got.err != nil && ctx.Err() == nil {
					t.Errorf("parked poll: %v", got.err)
					return
				}
			}
		})
	}
	ready.Wait()
}

func enqueueUntil(ctx context.Context, t *testing.T, p *peer, m *meter) {
	for ctx.Err() == nil {
		began := time.Now()
		_, err := p.executions.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{
			Name: "b91", IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "b91"}},
		})
		m.add(time.Since(began), false)
		if err != nil {
			t.Errorf("enqueue: %v", err)
			return
		}
		pause(ctx, 20*time.Millisecond)
	}
}

func reportUntil(ctx context.Context, t *testing.T, p *peer, h *hand, m *meter) {
	for ctx.Err() == nil {
		got := h.poll(ctx, p, 1, 20*time.Second, time.Minute)
		if got.err != nil && ctx.Err() == nil {
			t.Errorf("poll: %v", got.err)
			return
		}
		for _, lease := range got.leases {
			began := time.Now()
			err := h.succeed(t.Context(), p, lease)
			m.add(time.Since(began), true)
			if err != nil {
				t.Errorf("report: %v", err)
				return
			}
		}
	}
}

// TestFullWorker_ParkedPollCostsNothing: work is ready, a worker's poll is parked, and its one
// slot is in use. That causes no loop of claims; and when the slot is freed through another
// replica, the parked poll has work soon.
func TestFullWorker_ParkedPollCostsNothing(t *testing.T) {
	c := newCluster(t, clusterConfig{replicas: 2, sweep: time.Second})
	a, b := dial(t, c.replicas[0].addr), dial(t, c.replicas[1].addr)
	enqueue(t, a, 20, "full")
	h := newHand(t, a, 1, "full")
	lease := h.take(a, 1, time.Minute)[0]
	for round := range 3 {
		var over atomic.Bool
		answer := make(chan polled, 1)
		go func() {
			got := h.poll(t.Context(), a, 1, 50*time.Second, time.Minute)
			over.Store(true)
			answer <- got
		}()
		if round == 0 {
			measureCommits(t, c)
		} else {
			time.Sleep(1500 * time.Millisecond) // the poll is parked and known to have no slot
		}
		if over.Load() {
			t.Fatal("a worker without a free slot got an answer")
		}
		if err := h.succeed(t.Context(), b, lease); err != nil {
			t.Fatalf("report: %v", err)
		}
		freed := time.Now()
		got := <-answer
		if got.err != nil || len(got.leases) != 1 {
			t.Fatalf("got %v, %v; want a lease", got.leases, got.err)
		}
		t.Logf("work came %s after the slot was freed through another replica", got.at.Sub(freed))
		if waited := got.at.Sub(freed); waited > time.Second+slack() {
			t.Errorf("work came %s after the slot was freed, want about a second at most", waited)
		}
		lease = got.leases[0]
	}
}

// measureCommits counts transactions while nothing can be done. Each replica sweeps, and looks
// once a second; a loop would make hundreds a second.
func measureCommits(t *testing.T, c *cluster) {
	t.Helper()
	const commits = `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`
	time.Sleep(2 * time.Second) // what went before is counted late
	before, began := c.number(commits), time.Now()
	time.Sleep(sized(4*time.Second, 20*time.Second))
	n, seconds := c.number(commits)-before, time.Since(began).Seconds()
	t.Logf("%d transactions in %.1f s with a full worker's poll parked", n, seconds)
	if float64(n) > 20*seconds {
		t.Errorf("%d transactions in %.1f s: is there a loop of claims?", n, seconds)
	}
}
