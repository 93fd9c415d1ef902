package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/leasehold/leasehold/api/client"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
)

// loadConfig says how much is going on during a drill. Zero values are usable.
type loadConfig struct {
	workers int           // processes; default 3, -1: none
	pace    time.Duration // that a step takes a worker; default 10 ms
	slots   int           // of each worker; default 8
	batch   int           // executions that a producer asks for at once; default 1
	open    int64         // producers wait while more executions than that are open; 0: never
	apart   bool          // producers call the first server only, workers the second
	failing float64       // share of the steps that fail now and then
}

const (
	producers   = 3
	producePace = 40 * time.Millisecond // of each producer, between two executions
	callLimit   = 3 * time.Second       // of a producer's call; then it asks again, with the same key
	holdingPace = 150 * time.Millisecond
	longShare   = 0.03 // of the steps: they need renewals

	goOnLimit     = 30 * time.Second // until work goes on
	takeOverLimit = 30 * time.Second // until others have what was lost
	settleLimit   = 60 * time.Second // until all that was accepted has ended
)

// span is a call that was answered OK: when it was sent, and when that was known.
type span struct{ sent, got int64 }

func firstAfter(list []span, instant int64) (first span, found bool) {
	for _, s := range list {
		if s.sent > instant && (!found || s.got < first.got) {
			first, found = s, true
		}
	}
	return first, found
}

// latest keeps of many spans those that somebody may still wait for.
func latest(list []span) []span {
	const most = 20_000
	if len(list) < 2*most {
		return list
	}
	return append([]span(nil), list[len(list)-most:]...)
}

// load is producers in this process and workers in others.
type load struct {
	x         *exercise
	cfg       loadConfig
	workers   []*workerProcess
	hired     int
	histories []string // files of the workers
	enough    chan struct{}
	full      atomic.Bool // enough is open
	once      sync.Once
	producing sync.WaitGroup
	clients   []*client.Client

	mu       sync.Mutex
	enqueues []span
}

// start starts everybody.
func (l *load) start(ctx context.Context) error {
	if l.cfg.workers == 0 {
		l.cfg.workers = 3
	}
	if l.cfg.pace == 0 {
		l.cfg.pace = 10 * time.Millisecond
	}
	if l.cfg.slots == 0 {
		l.cfg.slots = 8
	}
	l.enough = make(chan struct{})
	if l.cfg.open > 0 {
		l.producing.Go(func() { l.mind(ctx) })
	}
	for i := range max(l.cfg.workers, 0) {
		if _, err := l.hire(l.servers(i, 1)); err != nil {
			return err
		}
	}
	for i := range producers {
		c, err := client.Dial(l.servers(i, 0), grpc.WithChainUnaryInterceptor(l.x.recorder.Unary(fmt.Sprintf("producer-%d", i+1))))
		if err != nil {
			return err
		}
		l.clients = append(l.clients, c)
		l.producing.Go(func() { l.produce(ctx, c) })
	}
	return nil
}

// servers are the addresses for the one with the index: all, or if they are to be apart just one.
func (l *load) servers(i, apart int) []string {
	if l.cfg.apart {
		return l.x.addresses(apart)[:1]
	}
	return l.x.addresses(i)
}

// mind looks how much is open.
func (l *load) mind(ctx context.Context) {
	for {
		select {
		case <-l.enough:
			return
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		open, err := l.x.number(ctx, `SELECT count(*) FROM executions WHERE namespace = $1 AND ended_at IS NULL`, l.x.namespace)
		l.full.Store(err == nil && open > l.cfg.open)
	}
}

// produce enqueues executions, each until it is accepted.
func (l *load) produce(ctx context.Context, c *client.Client) {
	for {
		select {
		case <-l.enough:
			return
		case <-ctx.Done():
			return
		case <-time.After(producePace):
		}
		switch {
		case l.full.Load():
		case l.cfg.batch > 1:
			l.enqueueMany(ctx, c)
		default:
			l.enqueue(ctx, c, l.request())
		}
	}
}

// enqueue asks until it is answered OK.
func (l *load) enqueue(ctx context.Context, c *client.Client, req *leaseholdv1.EnqueueExecutionRequest) *leaseholdv1.Execution {
	var accepted *leaseholdv1.Execution
	l.insist(ctx, func(ctx context.Context) error {
		answer, err := c.EnqueueExecution(ctx, req)
		accepted = answer.GetExecution()
		return err
	})
	return accepted
}

// enqueueMany does so with a batch, of which some may be refused for the time being.
func (l *load) enqueueMany(ctx context.Context, c *client.Client) {
	batch := &leaseholdv1.BatchEnqueueExecutionsRequest{}
	for range l.cfg.batch {
		batch.Requests = append(batch.Requests, l.request())
	}
	l.insist(ctx, func(ctx context.Context) error {
		answer, err := c.BatchEnqueueExecutions(ctx, batch)
		if err != nil {
			return err
		}
		for _, one := range answer.GetResults() {
			if refused := one.GetError(); refused != nil {
				return status.ErrorProto(refused)
			}
		}
		return nil
	})
}

// insist calls until it is answered OK, and keeps when that was.
func (l *load) insist(ctx context.Context, call func(context.Context) error) {
	for {
		limited, cancel := context.WithTimeout(ctx, callLimit)
		s := span{sent: now()}
		err := call(limited)
		cancel()
		if err == nil {
			s.got = now()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.enqueues = latest(append(l.enqueues, s))
			return
		}
		if !pause(ctx, producePace) {
			return
		}
	}
}

// request is an execution of one step, or of two after each other.
func (l *load) request() *leaseholdv1.EnqueueExecutionRequest {
	req := &leaseholdv1.EnqueueExecutionRequest{
		Namespace: l.x.namespace, Name: "drill", IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{step("first")},
	}
	if rand.IntN(4) == 0 {
		req.Steps = append(req.Steps, step("second", "first"))
	}
	for _, s := range req.Steps {
		switch chance := rand.Float64(); {
		case chance < l.cfg.failing:
			s.Input = core.JSON(`{"moody": true}`)
		case chance > 1-longShare:
			s.Input = core.JSON(`{"long": true}`)
		}
	}
	return req
}

// step is one that is tried again soon, and more often than anything here can go wrong.
func step(name string, parents ...string) *leaseholdv1.StepSpec {
	return &leaseholdv1.StepSpec{
		Name: name, Capability: capability, DependsOn: parents,
		RetryPolicy: &leaseholdv1.RetryPolicy{
			InitialInterval: durationpb.New(100 * time.Millisecond), MaximumInterval: durationpb.New(time.Second), MaximumAttempts: 50,
		},
	}
}

func (l *load) enqueueAfter(instant int64) (span, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return firstAfter(l.enqueues, instant)
}

// goesOn waits until calls that were sent after an instant are answered OK: an enqueue and a
// report. It says how long after the instant that was.
func (l *load) goesOn(ctx context.Context, instant int64, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		enqueue, enqueued := l.enqueueAfter(instant)
		report, reported := l.reportAfter(instant)
		if enqueued && (reported || len(l.workers) == 0) {
			return time.Duration(max(enqueue.got, report.got) - instant), nil
		}
		if !pause(ctx, lookAgain) {
			return 0, fmt.Errorf("work does not go on within %s: enqueues answered OK %t, reports %t", limit, enqueued, reported)
		}
	}
}

func (l *load) reportAfter(instant int64) (first span, found bool) {
	for _, w := range l.workers {
		if s, ok := w.reportAfter(instant); ok && (!found || s.got < first.got) {
			first, found = s, true
		}
	}
	return first, found
}

// stopProducing ends the producers; what they are asking for they ask until it is accepted.
func (l *load) stopProducing() {
	l.once.Do(func() { close(l.enough) })
	l.producing.Wait()
}

// end ends everybody, in good order.
func (l *load) end() error {
	l.stopProducing()
	var stopping sync.WaitGroup
	for _, w := range l.workers {
		stopping.Go(w.Stop)
	}
	stopping.Wait()
	var errs []error
	for _, w := range l.workers {
		w.reading.Wait()
	}
	for _, c := range l.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
