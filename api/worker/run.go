package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// tail is what Run may take after the grace, for all of what follows together.
	tail = 900 * time.Millisecond
	// stopWait of it is for handlers to return after their contexts ended with ErrStopping,
	// handBackWait for the reports of those that did not.
	stopWait     = 300 * time.Millisecond
	handBackWait = 400 * time.Millisecond

	// connectLead is how long before a further try the connection is told to try, too.
	connectLead = 500 * time.Millisecond
)

// run is one call of Run. Its goroutines: serve itself, which polls; the renewal loop and its
// calls; one for each attempt, which reports, and one for each attempt's handler.
type run struct {
	cfg      Config
	handlers map[string]handler
	conn     grpc.ClientConnInterface
	client   leaseholdv1.WorkerServiceClient
	log      *slog.Logger

	outage    outage
	leases    *leaseTable
	attempts  sync.WaitGroup
	abandoned chan struct{} // closed: attempts no longer wait for their handlers
}

func newRun(cfg Config, handlers map[string]handler, conn grpc.ClientConnInterface) *run {
	return &run{
		cfg:       cfg,
		handlers:  handlers,
		conn:      conn,
		client:    leaseholdv1.NewWorkerServiceClient(conn),
		log:       cfg.Logger,
		leases:    newLeaseTable(cfg.Slots),
		abandoned: make(chan struct{}),
	}
}

// serve registers, works until ctx ends or the session is superseded, and stops in order.
func (r *run) serve(ctx context.Context) error {
	s, err := r.register(ctx, r.cfg.Name, true)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before there was anything to do
		}
		return err
	}
	base := context.WithoutCancel(ctx)
	handling, endHandling := context.WithCancelCause(base) // of all handlers
	defer endHandling(nil)
	reporting, endReporting := context.WithCancel(base) // of what is told to the server about attempts
	defer endReporting()

	var renewals sync.WaitGroup
	renewals.Go(func() { r.renewLoop(reporting) })
	defer renewals.Wait()
	defer endReporting()

	p := &poller{run: r, session: s, launch: func(l *lease) { r.launch(handling, reporting, l) }}
	err = p.loop(ctx)
	r.stop(base, stopping{session: p.session, orderly: err == nil, endHandling: endHandling, endReporting: endReporting})
	return err
}

// stopping is what stop needs to know of serve.
type stopping struct {
	session      *session
	orderly      bool // the session is still ours to end
	endHandling  context.CancelCauseFunc
	endReporting context.CancelFunc
}

// stop waits for attempts, first gladly, then less so, and ends the session.
func (r *run) stop(ctx context.Context, s stopping) {
	done := make(chan struct{})
	go func() {
		r.attempts.Wait()
		close(done)
	}()
	var draining sync.WaitGroup
	drainCtx, endDrain := context.WithTimeout(ctx, max(r.cfg.Grace, tail))
	if s.orderly {
		draining.Go(func() { r.drain(drainCtx, s.session) })
	}
	graceful := await(done, r.cfg.Grace)
	ctx, cancel := context.WithTimeout(ctx, tail)
	defer cancel()
	if !graceful {
		r.log.Info("grace is over, handing back what is left", "attempts", r.leases.count())
		s.endHandling(ErrStopping)
		if !await(done, stopWait) {
			close(r.abandoned)
			await(done, handBackWait)
		}
	}
	s.endReporting()
	endDrain()
	<-done
	draining.Wait()
	if s.orderly {
		r.deregister(ctx, s.session)
	}
}

// await waits until done is closed, for at most d, and reports whether it was.
func await(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// pause waits before the next try of a call that found no server, and reports false if ctx
// ended. A connection that a caller gave may itself be waiting for up to two minutes, and
// fails calls meanwhile; it is told to try now, a little before the call.
func (r *run) pause(ctx context.Context, try int) bool {
	wait := retryWait(try, backoffCap)
	lead := min(wait, connectLead)
	if !sleep(ctx, wait-lead) {
		return false
	}
	if c, ok := r.conn.(interface{ ResetConnectBackoff() }); ok {
		c.ResetConnectBackoff()
	}
	return sleep(ctx, lead)
}
