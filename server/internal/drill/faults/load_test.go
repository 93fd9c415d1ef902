package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// loadConfig says how much work there is. Zero values are usable.
type loadConfig struct {
	producers  int           // default 4
	workers    int           // default 20
	slots      int           // of each worker; default 4
	executions int           // at least so many, and more until finish is called
	pause      time.Duration // of a producer between two executions
	lease      time.Duration // default 2 s
	call       time.Duration // patience with a call; default callLimit
	poll       time.Duration // how long polls wait; default pollWait
	tame       bool          // no attempt lapses
	chain      bool          // each execution is two steps after each other
	steps      int           // of each execution; 0: single steps, chains and diamonds
}

// load is producers that enqueue, and workers of which a random third of the attempts fails or
// lapses. Every call is recorded; enqueues, polls and reports are repeated until they are answered.
type load struct {
	t       *testing.T
	c       *cluster
	cfg     loadConfig
	rec     *recorder
	watch   *watcher
	ids     sync.Map // of the executions that were answered OK: key → id
	started atomic.Int64

	enough    chan struct{} // closed: producers end once there are enough executions
	once      sync.Once
	producers sync.WaitGroup
	workers   sync.WaitGroup
	stop      context.CancelFunc // of the workers
}

// The limits of calls: well above what a call takes, well below how long a freeze lasts.
const (
	callLimit = 3 * time.Second
	pollWait  = 5 * time.Second
	pollSlack = 2 * time.Second // beyond its wait
)

var capabilities = [...]string{"load.a", "load.b", "load.c"}

// startLoad starts it.
func startLoad(t *testing.T, c *cluster, cfg loadConfig) *load {
	t.Helper()
	if cfg.producers == 0 {
		cfg.producers = 4
	}
	if cfg.workers == 0 {
		cfg.workers = 20
	}
	if cfg.slots == 0 {
		cfg.slots = 4
	}
	if cfg.lease == 0 {
		cfg.lease = 2 * time.Second
	}
	if cfg.call == 0 {
		cfg.call = callLimit
	}
	if cfg.poll == 0 {
		cfg.poll = pollWait
	}
	l := &load{t: t, c: c, cfg: cfg, rec: &recorder{}, enough: make(chan struct{})}
	l.watch = startWatcher(t, c)
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	t.Cleanup(func() {
		l.stopWhenEnough()
		stop()
		l.producers.Wait()
		l.workers.Wait()
	})
	for range cfg.producers {
		producer := newClient(t, l.rec, c.addresses())
		l.producers.Go(func() { l.produce(ctx, producer) })
	}
	for i := range cfg.workers {
		w := &worker{load: l, client: newClient(t, l.rec, c.addresses()), name: fmt.Sprintf("worker-%d", i), slots: cfg.slots}
		l.workers.Go(func() { w.run(ctx) })
	}
	return l
}

// stopWhenEnough lets the producers end once the number of executions is reached.
func (l *load) stopWhenEnough() { l.once.Do(func() { close(l.enough) }) }

func (l *load) wantsMore() bool {
	n := l.started.Add(1)
	select {
	case <-l.enough:
		return n <= int64(l.cfg.executions)
	default:
		return true
	}
}

// produce enqueues, each execution until it is answered OK.
func (l *load) produce(ctx context.Context, c *client) {
	for l.wantsMore() && ctx.Err() == nil {
		req := &leaseholdv1.EnqueueExecutionRequest{
			Name: "load", IdempotencyKey: uuid.NewString(), Steps: l.graph(), Priority: rand.Int32N(3),
		}
		note := insist(ctx, c, l.cfg.call, call{kind: kindEnqueue, key: req.IdempotencyKey}, func(ctx context.Context, p *peer, note *call) error {
			answer, err := p.executions.EnqueueExecution(ctx, req)
			note.execution = answer.GetExecution().GetId()
			return err
		})
		if note.execution != "" {
			l.ids.Store(req.IdempotencyKey, note.execution)
		}
		if l.cfg.pause > 0 {
			pause(ctx, l.cfg.pause)
		}
	}
}

// graph is a single step, a chain of three, a diamond, or a random graph.
func (l *load) graph() []*leaseholdv1.StepSpec {
	if n := l.cfg.steps; n > 0 {
		steps := make([]*leaseholdv1.StepSpec, n)
		for i := range steps {
			steps[i] = newStep(fmt.Sprintf("s%d", i))
			for p := range i {
				if rand.IntN(n) == 0 {
					steps[i].DependsOn = append(steps[i].DependsOn, steps[p].GetName())
				}
			}
		}
		return steps
	}
	if l.cfg.chain {
		return []*leaseholdv1.StepSpec{newStep("a"), newStep("b", "a")}
	}
	switch rand.IntN(10) {
	case 0, 1, 2:
		return []*leaseholdv1.StepSpec{newStep("a"), newStep("b", "a"), newStep("c", "b")}
	case 3, 4:
		return []*leaseholdv1.StepSpec{newStep("d", "b", "c"), newStep("b", "a"), newStep("c", "a"), newStep("a")}
	default:
		return []*leaseholdv1.StepSpec{newStep("a")}
	}
}

// newStep is a step that is retried soon; some are given up after three attempts.
func newStep(name string, parents ...string) *leaseholdv1.StepSpec {
	attempts := int32(3)
	if rand.IntN(2) == 0 {
		attempts = 6
	}
	jitter := 0.5
	return &leaseholdv1.StepSpec{
		Name: name, Capability: capabilities[rand.IntN(len(capabilities))], DependsOn: parents,
		RetryPolicy: &leaseholdv1.RetryPolicy{
			InitialInterval: durationpb.New(100 * time.Millisecond), BackoffCoefficient: 1.5,
			MaximumInterval: durationpb.New(time.Second), MaximumAttempts: attempts, Jitter: &jitter,
		},
	}
}

// finish waits until all work has ended, then compares tables and answers. It fails the test
// when nothing moves for much longer than a lease.
func (l *load) finish() {
	l.t.Helper()
	l.stopWhenEnough()
	l.producers.Wait()
	const query = `SELECT (SELECT count(*) FROM executions WHERE ended_at IS NULL),
		(SELECT count(*) + coalesce(sum(attempts_ended), 0) FROM steps)`
	var before int64
	moved := time.Now()
	for {
		var open, events int64
		if err := l.c.db.QueryRow(l.t.Context(), query).Scan(&open, &events); err != nil {
			l.t.Logf("look for what is open: %v", err) // a connection from before a fault
		} else if open == 0 {
			break
		}
		if events != before {
			before, moved = events, time.Now()
		}
		if limit := time.Minute + 2*l.cfg.lease; time.Since(moved) > limit { // one that is held lasts that long
			l.t.Fatalf("stuck: %d executions are open and nothing has moved for %s\n%s", open, limit, describeOpen(l.t, l.c))
		}
		time.Sleep(200 * time.Millisecond)
	}
	l.stop()
	l.workers.Wait()
	l.watch.end()
	checkTables(l.t, l.c)
	checkAnswers(l.t, l)
}

// progress waits until work goes on: reports and enqueues are answered OK.
func (l *load) progress(limit time.Duration, what string) time.Duration {
	l.t.Helper()
	reports, enqueues := l.rec.reports.Load(), l.rec.enqueues.Load()
	return eventually(l.t, limit, what+": 10 reports and 5 enqueues were answered OK", func() bool {
		return l.rec.reports.Load() >= reports+10 && l.rec.enqueues.Load() >= enqueues+5
	})
}
