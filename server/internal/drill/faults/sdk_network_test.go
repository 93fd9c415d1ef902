package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	sdk "github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/server/internal/netfault"
)

// runSDK starts a worker of the SDK in this process and stops it with the test.
func runSDK(t *testing.T, cfg sdk.Config, capability string, h func(context.Context, *sdk.Job[any]) (string, error)) *sdk.Worker {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	w := sdk.New(cfg)
	sdk.Handle(w, capability, h)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return w
}

// cutLease is the length of leases that are cut off; their margin is a twentieth.
const cutLease = 3 * time.Second

// cutting is workers of the SDK behind networks of their own, two for each capability, so that
// what one of them loses the other one gets.
type cutting struct {
	t      *testing.T
	c      *cluster
	stalls *stallWatch
	finish chan struct{}

	mu      sync.Mutex
	running map[string]string // by step: what runs
	ran     int
	byClock int // ended by this side's clock, and were looked at
}

// TestSDK_NoTwoHandlersOverRandomCuts: the networks between workers and servers are cut, frozen
// and lost, of both servers or of one, for as long as leases last and longer. A handler's context
// always ends before its lease does, no two handlers of a step run at a time, and when the
// networks are mended the workers finish all by themselves.
func TestSDK_NoTwoHandlersOverRandomCuts(t *testing.T) {
	alongside(t)
	pairs, cuts := sized(3, 10), sized(18, 500)
	d := &cutting{
		t: t, c: newCluster(t, clusterConfig{replicas: 2, sweep: 100 * time.Millisecond}),
		stalls: watchStalls(t), finish: make(chan struct{}), running: map[string]string{},
	}
	p := dial(t, d.c.replicas[0].addr)
	var executions []string
	var cutters sync.WaitGroup
	for i := range pairs {
		capability := fmt.Sprintf("cut.%d", i)
		executions = append(executions, d.order(p, capability), d.order(p, capability))
		for j := range 2 {
			networks := d.worker(fmt.Sprintf("%d%c", i, 'a'+j), capability)
			cutters.Go(func() {
				for range cuts / (2 * pairs) {
					cutOnce(networks)
				}
			})
		}
	}
	cutters.Wait()
	close(d.finish)
	eventually(t, time.Minute, "all executions succeeded after the mend", func() bool {
		return d.c.number(`SELECT count(*) FROM executions WHERE state = 'SUCCEEDED'`) == int64(len(executions))
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	t.Logf("%d handlers ran, %d contexts ended by the clock", d.ran, d.byClock)
	if d.byClock < cuts/8 {
		t.Errorf("%d contexts ended by the clock over %d cuts, too few to tell anything", d.byClock, cuts)
	}
}

// order enqueues a step that is tried again soon and without limit.
func (d *cutting) order(p *peer, capability string) string {
	d.t.Helper()
	answer, err := p.executions.EnqueueExecution(d.t.Context(), &leaseholdv1.EnqueueExecutionRequest{
		Name: "cut off", IdempotencyKey: uuid.NewString(),
		Steps: []*leaseholdv1.StepSpec{{
			Name: "only", Capability: capability, RetryPolicy: &leaseholdv1.RetryPolicy{
				MaximumAttempts: -1, InitialInterval: durationpb.New(20 * time.Millisecond), MaximumInterval: durationpb.New(100 * time.Millisecond),
			},
		}},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return answer.GetExecution().GetId()
}

// worker starts a worker, and returns its networks, one to each server.
func (d *cutting) worker(name, capability string) []*netfault.Proxy {
	var networks []*netfault.Proxy
	cfg := sdk.Config{Slots: 2, LeaseDuration: cutLease, WaitTimeout: 2 * time.Second}
	for _, r := range d.c.replicas {
		n := newProxy(d.t, r.addr)
		networks = append(networks, n)
		cfg.Addresses = append(cfg.Addresses, n.Addr())
	}
	runSDK(d.t, cfg, capability, func(ctx context.Context, job *sdk.Job[any]) (string, error) {
		return d.handle(ctx, job, fmt.Sprintf("attempt %d by %s", job.AttemptNumber(), name))
	})
	return networks
}

// handle works until its context ends, or for a while, and fails then; until all is over.
func (d *cutting) handle(ctx context.Context, job *sdk.Job[any], what string) (string, error) {
	d.mu.Lock()
	if other, runs := d.running[job.StepID()]; runs {
		d.t.Errorf("%s: %s runs while %s does", time.Now().Format(time.StampMilli), what, other)
	}
	d.running[job.StepID()] = what
	d.ran++
	d.mu.Unlock()
	leave := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running[job.StepID()] == what {
			delete(d.running, job.StepID())
		}
	}
	select {
	case <-ctx.Done():
		ended := time.Now()
		leave()
		if context.Cause(ctx) == sdk.ErrLeaseLost { //nolint:errorlint // the server's word would be wrapped
			d.checkEnd(job, what, ended)
		}
		return "", ctx.Err()
	case <-time.After(rand.N(10 * time.Second)):
		leave()
		return "", errors.New("try again")
	case <-d.finish:
		leave()
		return "done", nil
	}
}

// checkEnd compares when a context ended with when its lease does, or did, in the database,
// whose clock is this machine's.
func (d *cutting) checkEnd(job *sdk.Job[any], what string, ended time.Time) {
	var until time.Time
	err := d.c.db.QueryRow(context.WithoutCancel(d.t.Context()), `SELECT coalesce(
		(SELECT expires_at FROM leases WHERE attempt_id = $1 AND lease_version = $2),
		(SELECT ended_at FROM attempts WHERE id = $1))`, job.AttemptID(), job.LeaseVersion()).Scan(&until)
	if err != nil {
		d.t.Errorf("%s: %v", what, err)
		return
	}
	stood := d.stalls.before(ended)
	if late := ended.Sub(until); late > stood {
		d.t.Errorf("%s: its context ended %s after its lease, while the machine stood still for %s", what, late, stood)
	}
	d.mu.Lock()
	d.byClock++
	d.mu.Unlock()
}

// cutOnce does something to one worker's networks, for a while.
func cutOnce(networks []*netfault.Proxy) {
	time.Sleep(rand.N(1500 * time.Millisecond))
	hit := networks
	if rand.N(4) == 0 {
		hit = networks[:1]
	}
	kind := rand.N(3)
	for _, n := range hit {
		switch kind {
		case 0: // all connections break, and no new ones are made
			n.Refuse(true)
			n.Cut()
		case 1: // nothing gets through for now; it comes late
			n.Hold(true)
			n.Hold(false)
		default: // connections are forgotten, and nobody is told
			n.Refuse(true)
			n.Lose()
		}
	}
	time.Sleep(rand.N(2 * cutLease))
	for _, n := range hit {
		n.Refuse(false)
		n.Release()
	}
}

// stallWatch notes when this process did not get to run: timers are late then, through no
// fault of who set them.
type stallWatch struct {
	mu     sync.Mutex
	stalls []stall
}

type stall struct {
	at   time.Time
	late time.Duration
}

// watchStalls watches until the test ends.
func watchStalls(t *testing.T) *stallWatch {
	t.Helper()
	const every = 5 * time.Millisecond
	s := &stallWatch{}
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for last := time.Now(); !stopped.Load(); {
			time.Sleep(every)
			now := time.Now()
			if late := now.Sub(last) - every; late > 2*every {
				s.mu.Lock()
				s.stalls = append(s.stalls, stall{now, late})
				s.mu.Unlock()
			}
			last = now
		}
	}()
	t.Cleanup(func() { stopped.Store(true); <-done })
	return s
}

// before is for how long in all the process did not run within the second up to an instant.
func (s *stallWatch) before(at time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := time.Duration(0)
	for _, one := range s.stalls {
		if age := at.Sub(one.at); age > -100*time.Millisecond && age < time.Second {
			sum += one.late
		}
	}
	return sum
}

// TestSDK_AFrozenReplicaCostsNoLease: the replica that a worker uses is stopped in its tracks,
// with its connections open. The worker's leases are shorter than that lasts, and new work
// reaches it meanwhile.
func TestSDK_AFrozenReplicaCostsNoLease(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{})
	finish := make(chan struct{})
	w := runSDK(t, sdk.Config{Addresses: c.addresses(), Slots: 4, LeaseDuration: 2 * time.Second, WaitTimeout: 2 * time.Second}, "frozen",
		func(ctx context.Context, _ *sdk.Job[any]) (string, error) {
			select {
			case <-ctx.Done():
				return "", context.Cause(ctx)
			case <-finish:
				return "done", nil
			}
		})
	enqueue(t, dial(t, c.replicas[0].addr), 3, "frozen")
	eventually(t, 20*time.Second, "three attempts under way", func() bool { return w.Stats().Busy == 3 })
	var frozen *replica
	var other *peer
	for _, r := range c.replicas {
		if r.addr == w.Stats().Server {
			frozen = r
		} else {
			other = dial(t, r.addr)
		}
	}
	if frozen == nil {
		t.Fatalf("the worker uses none of the replicas: %+v", w.Stats())
	}
	frozen.freeze()
	began := time.Now()
	enqueue(t, other, 1, "frozen")
	took := eventually(t, 40*time.Second, "new work under way", func() bool { return w.Stats().Busy == 4 })
	t.Logf("with its replica frozen the worker had new work after %s", took)
	time.Sleep(sized(6*time.Second, 30*time.Second) - time.Since(began))
	frozen.thaw()
	close(finish)
	eventually(t, 20*time.Second, "four successes", func() bool { return w.Stats().Succeeded == 4 })
	if n := c.number(`SELECT count(*) FROM attempts`); n != 4 {
		t.Errorf("%d attempts, want 4: no lease is lost", n)
	}
}
