package worker

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/connectivity"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Stats is how a worker stands, for the host program's metrics and its health. Counts go on
// over several calls of Run.
type Stats struct {
	// Running: Run has been called and has not returned.
	Running bool
	// WorkerID, SessionID and Name are those of the last registration; empty before the first.
	WorkerID, SessionID, Name string
	// Server is the address that answered last; empty before the first answer, and with a Conn.
	Server string
	// LastAnswer is when that was; zero before the first answer. A poll that waits for work
	// is answered after Config.WaitTimeout.
	LastAnswer time.Time
	// FailingSince is when calls began to fail, if no server has answered since and none is
	// connected; zero while all is well.
	FailingSince time.Time
	// Drained: the servers give this worker no more work, by an operator's word.
	Drained bool
	// Slots is Config.Slots, and Busy how many of them are taken by attempts, until their
	// reports are answered.
	Slots, Busy int

	// Leased is how many attempts were granted. Each is reported Succeeded, Failed, Released
	// or Canceled in the end, or Unreported: its lease was lost, or no server answered in time.
	Leased, Succeeded, Failed, Released, Canceled, Unreported int64
	// Renewed and NotRenewed are renewals that were answered well, and that were refused or
	// not answered.
	Renewed, NotRenewed int64
}

// ErrNotRunning is the health of a worker whose Run has not been called, or has returned.
var ErrNotRunning = errors.New("leasehold: worker does not run")

// Stats is how the worker stands. It may be called at any time.
func (w *Worker) Stats() Stats {
	s := w.counts.stats()
	w.mu.Lock()
	s.Running, s.Slots = w.running, w.cfg.Slots
	r := w.run
	w.mu.Unlock()
	if r == nil {
		return s
	}
	if session := r.session.Load(); session != nil {
		s.WorkerID, s.SessionID, s.Name = session.workerID, session.id, session.name
	}
	reached := r.servers.reached()
	s.Server, s.LastAnswer, s.FailingSince = reached.address, reached.answer, reached.since
	s.Drained = r.drained.Load()
	s.Busy = r.leases.count()
	return s
}

// Health is nil while the worker runs, is registered, and is answered by a server; otherwise
// it says what is wrong. It is meant for a readiness check, not for one that ends the process:
// the worker comes back by itself.
func (w *Worker) Health() error {
	w.mu.Lock()
	running, r := w.running, w.run
	w.mu.Unlock()
	if !running {
		return ErrNotRunning
	}
	if reached := r.servers.reached(); !reached.since.IsZero() {
		return fmt.Errorf("leasehold: no server has answered for %v: %w", time.Since(reached.since).Round(time.Millisecond), reached.err)
	}
	if r.session.Load() == nil {
		return errors.New("leasehold: worker is not registered yet")
	}
	return nil
}

// reach is what calls have told about the servers as a whole. It is guarded by servers.mu.
type reach struct {
	address string
	answer  time.Time // the last one
	since   time.Time // when the calls began to fail; zero: they do not
	err     error     // of the last that failed
}

func (r *reach) answered(address string) {
	*r = reach{address: address, answer: time.Now()}
}

func (r *reach) failed(err error) {
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.err = err
}

// reached is reach as of now. A poll that waits tells nothing for long, so a connection that
// stands, and on which no call has failed, counts as an answer.
func (s *servers) reached() reach {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range s.list {
		if l := srv.link; l != nil && !l.failed && l.own != nil && l.own.GetState() == connectivity.Ready {
			r := s.reach
			r.since, r.err = time.Time{}, nil
			return r
		}
	}
	return s.reach
}

// counters count what becomes of attempts and renewals.
type counters struct {
	leased, succeeded, failed, released, canceled, unreported atomic.Int64
	renewed, notRenewed                                       atomic.Int64
}

// reported counts a report that was answered.
func (c *counters) reported(req *leaseholdv1.ReportAttemptRequest) {
	switch req.GetOutcome().(type) {
	case *leaseholdv1.ReportAttemptRequest_Succeeded_:
		c.succeeded.Add(1)
	case *leaseholdv1.ReportAttemptRequest_Failed_:
		c.failed.Add(1)
	case *leaseholdv1.ReportAttemptRequest_Released_:
		c.released.Add(1)
	default:
		c.canceled.Add(1)
	}
}

func (c *counters) stats() Stats {
	return Stats{
		Leased: c.leased.Load(), Succeeded: c.succeeded.Load(), Failed: c.failed.Load(), Released: c.released.Load(),
		Canceled: c.canceled.Load(), Unreported: c.unreported.Load(), Renewed: c.renewed.Load(), NotRenewed: c.notRenewed.Load(),
	}
}
