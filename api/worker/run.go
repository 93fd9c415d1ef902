package worker

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// tail is what Run may take after the grace, for all of what follows together.
	tail = 850 * time.Millisecond
	// stopWait of it is for handlers to return after their contexts ended with ErrStopping,
	// handBackWait for the reports of those that did not.
	stopWait     = 300 * time.Millisecond
	handBackWait = 400 * time.Millisecond
)

// run is one call of Run. Its goroutines: serve itself, which polls; the renewal loop and its
// calls; the calls that report; one for each attempt, and one for each attempt's handler.
type run struct {
	cfg      Config
	handlers map[string]Handler
	servers  *servers
	log      *slog.Logger
	counts   *counters

	outage    outage
	session   atomic.Pointer[session] // the newest; nil: none yet
	drained   atomic.Bool             // as the last poll was told
	leases    *leaseTable
	reports   *reports
	attempts  sync.WaitGroup
	abandoned chan struct{} // closed: attempts no longer wait for their handlers
}

func newRun(cfg Config, handlers map[string]Handler, s *servers, counts *counters) *run {
	return &run{
		cfg:       cfg,
		handlers:  handlers,
		servers:   s,
		log:       cfg.Logger,
		counts:    counts,
		leases:    newLeaseTable(cfg.Slots),
		reports:   &reports{servers: s},
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
	defer r.reports.wg.Wait()
	defer renewals.Wait()
	defer endReporting()

	p := &poller{run: r, session: s, launch: func(l *lease) { r.launch(handling, reporting, l) }}
	polling, leave := r.prepareLeaving(ctx)
	err = p.loop(ctx, polling)
	r.stop(base, stopping{
		session: p.session, orderly: err == nil, grace: r.cfg.Grace - leave.begun(), endLeaving: leave.end,
		endHandling: endHandling, endReporting: endReporting,
	})
	return err
}

// stopping is what stop needs to know of serve.
type stopping struct {
	session      *session
	orderly      bool // the session is still ours to end
	endHandling  context.CancelCauseFunc
	endReporting context.CancelFunc
	endLeaving   func()
	grace        time.Duration // that is left
}

// stop waits for attempts, first gladly, then less so, and ends the session.
func (r *run) stop(ctx context.Context, s stopping) {
	done := make(chan struct{})
	go func() {
		r.attempts.Wait()
		close(done)
	}()
	graceful := await(done, s.grace)
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
	<-done
	s.endLeaving()
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
