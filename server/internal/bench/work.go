package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	pollTime      = 20 * time.Second // that a poll waits for work
	registrations = 32               // at once
)

// crewConfig says who works, and how.
type crewConfig struct {
	workers    int
	conns      int                                      // that they share; 0: each has its own
	wait       time.Duration                            // of a poll; default pollTime
	slots      int                                      // of each
	most       int                                      // leases of one poll
	batch      bool                                     // reports what a poll brought in one call; else one by one
	capability string                                   // default: capability
	reports    *stopwatch                               // of the calls; nil: nobody asks
	held       func(l *leaseholdv1.Lease, at time.Time) // hears of each lease when it arrives, before it is reported
}

// crew is workers at work.
type crew struct {
	ctx    context.Context // of the workers
	cancel context.CancelFunc
	group  *errgroup.Group
}

// hire starts workers, each with a connection of its own.
func (s *site) hire(ctx context.Context, cfg crewConfig) (*crew, error) {
	if cfg.capability == "" {
		cfg.capability = capability
	}
	if cfg.wait == 0 {
		cfg.wait = pollTime
	}
	if cfg.conns == 0 {
		cfg.conns = cfg.workers
	}
	workers, err := s.registerAll(ctx, cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range workers {
		group.Go(func() error { return w.work(ctx) })
	}
	return &crew{ctx: ctx, cancel: cancel, group: group}, nil
}

// staffed has workers at work while f runs, whose context ends when one of them cannot go on.
func (s *site) staffed(ctx context.Context, cfg crewConfig, f func(ctx context.Context) error) error {
	c, err := s.hire(ctx, cfg)
	if err != nil {
		return err
	}
	err = f(c.ctx)
	if failed := c.dismiss(); failed != nil {
		return failed // It is what ended f.
	}
	return err
}

// dismiss ends all workers, and says what was wrong with them meanwhile.
func (c *crew) dismiss() error {
	c.cancel()
	return c.group.Wait()
}

// worker leases, and reports each lease as a success at once.
type worker struct {
	site    *site
	cfg     crewConfig
	client  leaseholdv1.WorkerServiceClient
	session *leaseholdv1.RegisterWorkerResponse

	room    chan struct{} // is told when slots became free
	mu      sync.Mutex
	holding int
	reports sync.WaitGroup
}

// registerAll opens the workers' sessions, several at once.
func (s *site) registerAll(ctx context.Context, cfg crewConfig) ([]*worker, error) {
	clients := make([]leaseholdv1.WorkerServiceClient, cfg.conns)
	for i := range clients {
		conn, err := s.dial(i)
		if err != nil {
			return nil, err
		}
		clients[i] = leaseholdv1.NewWorkerServiceClient(conn)
	}
	workers := make([]*worker, cfg.workers)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(registrations)
	for i := range workers {
		w := &worker{site: s, cfg: cfg, client: clients[i%len(clients)], room: make(chan struct{}, 1)}
		workers[i] = w
		group.Go(func() (err error) {
			w.session, err = s.register(ctx, w.client, cfg.capability, cfg.slots)
			return err
		})
	}
	return workers, group.Wait()
}

func (s *site) register(ctx context.Context, client leaseholdv1.WorkerServiceClient, capability string, slots int) (session *leaseholdv1.RegisterWorkerResponse, err error) {
	req := &leaseholdv1.RegisterWorkerRequest{Capabilities: []string{capability}, Slots: int32(slots), RequestId: uuid.NewString()}
	err = s.insist(ctx, func(ctx context.Context) (err error) {
		session, err = client.RegisterWorker(ctx, req)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("register a worker: %w", err)
	}
	return session, nil
}

// work leases until ctx ends. It asks when a whole poll's leases fit into its slots: with more
// slots than that, some are worked on while others are asked for.
func (w *worker) work(ctx context.Context) error {
	defer w.reports.Wait()
	for ctx.Err() == nil {
		most := min(w.cfg.most, w.cfg.slots)
		if !w.awaitRoom(ctx, most) {
			return nil
		}
		leases, err := w.site.lease(ctx, w.client, w.session, most, w.cfg.wait)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if len(leases) == 0 {
			continue
		}
		if at := time.Now(); w.cfg.held != nil { // monotonic
			for _, l := range leases {
				w.cfg.held(l, at)
			}
		}
		w.take(len(leases))
		w.reports.Go(func() {
			defer w.take(-len(leases))
			w.report(ctx, leases)
		})
	}
	return nil
}

// awaitRoom waits until so many slots are free.
func (w *worker) awaitRoom(ctx context.Context, n int) bool {
	for {
		w.mu.Lock()
		free := w.cfg.slots - w.holding
		w.mu.Unlock()
		if free >= n {
			return true
		}
		select {
		case <-w.room:
		case <-ctx.Done():
			return false
		}
	}
}

func (w *worker) take(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holding += n
	select {
	case w.room <- struct{}{}:
	default:
	}
}

// lease polls once, and notes what it gets: that is when a handler would run.
func (s *site) lease(ctx context.Context, client leaseholdv1.WorkerServiceClient, session *leaseholdv1.RegisterWorkerResponse, most int, wait time.Duration) (leases []*leaseholdv1.Lease, err error) {
	req := &leaseholdv1.LeaseAttemptRequest{
		WorkerId: session.GetWorkerId(), SessionId: session.GetSessionId(), RequestId: uuid.NewString(), MaxLeases: int32(most),
		WaitTimeout: durationpb.New(wait), LeaseDuration: durationpb.New(leaseTime),
	}
	err = s.insist(ctx, func(ctx context.Context) error {
		answer, err := client.LeaseAttempt(ctx, req)
		leases = answer.GetLeases()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	for _, l := range leases {
		s.ledger.run(l.GetStepId())
	}
	return leases, nil
}

// report reports leases as successes, until all are answered OK or refused for good.
func (w *worker) report(ctx context.Context, leases []*leaseholdv1.Lease) {
	if w.cfg.batch {
		w.site.reportBatch(ctx, w.client, leases, w.cfg.reports)
		return
	}
	var calls sync.WaitGroup
	for _, l := range leases {
		calls.Go(func() { w.site.reportOne(ctx, w.client, l, w.cfg.reports) })
	}
	calls.Wait()
}

func success(l *leaseholdv1.Lease) *leaseholdv1.ReportAttemptRequest {
	return &leaseholdv1.ReportAttemptRequest{
		AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(),
		Outcome: &leaseholdv1.ReportAttemptRequest_Succeeded_{Succeeded: &leaseholdv1.ReportAttemptRequest_Succeeded{}},
	}
}

func (s *site) reportOne(ctx context.Context, client leaseholdv1.WorkerServiceClient, l *leaseholdv1.Lease, times *stopwatch) {
	began := time.Now() // monotonic
	err := s.insist(ctx, func(ctx context.Context) error {
		_, err := client.ReportAttempt(ctx, success(l))
		return err
	})
	if err != nil {
		return // It is counted, and missed.
	}
	if times != nil {
		times.record(time.Since(began))
	}
	s.ledger.report(l.GetStepId())
	s.progress.add(1)
}

func (s *site) reportBatch(ctx context.Context, client leaseholdv1.WorkerServiceClient, leases []*leaseholdv1.Lease, times *stopwatch) {
	began := time.Now() // monotonic
	for len(leases) > 0 {
		batch := &leaseholdv1.BatchReportAttemptsRequest{}
		for _, l := range leases {
			batch.Reports = append(batch.Reports, success(l))
		}
		var answer *leaseholdv1.BatchReportAttemptsResponse
		err := s.insist(ctx, func(ctx context.Context) (err error) {
			answer, err = client.BatchReportAttempts(ctx, batch)
			return err
		})
		if err != nil {
			return // It is counted, and they are missed.
		}
		if leases = s.settle(leases, answer); len(leases) > 0 && !pause(ctx, askAgain) {
			return
		}
	}
	if times != nil {
		times.record(time.Since(began))
	}
}

// settle notes what was answered OK, and returns what can be reported again.
func (s *site) settle(leases []*leaseholdv1.Lease, answer *leaseholdv1.BatchReportAttemptsResponse) (again []*leaseholdv1.Lease) {
	ok := 0
	for i, one := range answer.GetResults() {
		refused := one.GetError()
		if refused == nil {
			s.ledger.report(leases[i].GetStepId())
			ok++
			continue
		}
		err := status.ErrorProto(refused)
		s.failed(err)
		if repeatable(err) {
			again = append(again, leases[i])
		}
	}
	s.progress.add(int64(ok))
	return again
}
