package devpg

import (
	"context"
	"sync"
	"syscall"
	"time"
)

const (
	// fastLimit bounds a fast shutdown, which ends with a checkpoint;
	// immediateLimit the one without.
	fastLimit      = 30 * time.Second
	immediateLimit = 5 * time.Second

	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 2 * time.Second
	// steadyAfter is how long PostgreSQL has to live for its next end to count
	// as a first one; maxFailures how many failed starts in a row are put up with.
	steadyAfter = 5 * time.Second
	maxFailures = 10
)

// run is one time of PostgreSQL being up: from a start to the end that was asked
// for, or that it could not be brought back from. One goroutine, keep, owns the
// child for its whole length, restarts by the supervisor included.
type run struct {
	cancel context.CancelFunc
	// ending guards how: the first who asks for the end says how it is done.
	ending sync.Once
	how    ending
	done   chan struct{}
	// err is to be read after done is closed; nil if the end was asked for.
	err error
}

type ending struct {
	crash bool
	// hurry cuts a fast shutdown short.
	hurry <-chan struct{}
}

// begin hands a child that is ready over to a new run.
func (s *Server) begin(c *child) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	s.run, s.pid = r, c.pid
	s.mu.Unlock()
	go s.keep(ctx, r, c)
}

// end asks for the end of the run and waits for it.
func (r *run) end(how ending) {
	r.ending.Do(func() {
		r.how = how
		r.cancel()
	})
	<-r.done
}

// keep waits for the end of the child, or for the wish to end it.
func (s *Server) keep(ctx context.Context, r *run, c *child) {
	defer close(r.done)
	defer r.cancel()
	ends := 0
	for c != nil {
		born := time.Now()
		select {
		case <-ctx.Done():
			s.shutDown(c, r.how)
			s.setPID(0)
			return
		case <-c.exited:
		}
		s.setPID(0)
		exit := &ExitError{PID: c.pid, Status: c.status()}
		s.logf("%v", exit)
		if !s.cfg.Supervise {
			r.err = exit
			return
		}
		ends++
		if time.Since(born) > steadyAfter {
			ends = 1
		}
		if c, exit.Err = s.revive(ctx, ends); exit.Err != nil && ctx.Err() == nil {
			s.logf("%v", exit)
			r.err = exit
		}
	}
}

// revive starts PostgreSQL again, at once after a first end, else after pauses
// that grow. It returns no child when the run is to end, or when too many starts
// failed in a row.
func (s *Server) revive(ctx context.Context, ends int) (*child, error) {
	for failures := 0; ; failures++ {
		if err := sleep(ctx, backoff(ends+failures)); err != nil {
			return nil, err
		}
		c, err := s.launch(ctx)
		if err == nil {
			s.setPID(c.pid)
			s.logf("PostgreSQL was started again on port %d (process %d)", s.port, c.pid)
			return c, nil
		}
		if ctx.Err() != nil || failures+1 >= maxFailures {
			return nil, err
		}
		s.logf("%v", err)
	}
}

// backoff is the pause before the n-th start in a row, n from 1.
func backoff(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	return min(firstBackoff<<min(n-2, 10), lastBackoff)
}

// shutDown ends the child: by a fast shutdown, then by one without a checkpoint,
// then by force.
func (s *Server) shutDown(c *child, how ending) {
	if how.crash {
		s.crash(c)
		return
	}
	steps := []struct {
		signal syscall.Signal
		limit  time.Duration
		hurry  <-chan struct{}
	}{
		{syscall.SIGINT, fastLimit, how.hurry},
		{syscall.SIGQUIT, immediateLimit, nil},
	}
	for _, step := range steps {
		if err := c.signal(step.signal); err != nil {
			s.logf("%v", err)
		}
		timer := time.NewTimer(step.limit)
		select {
		case <-c.exited:
			timer.Stop()
			return
		case <-step.hurry:
			timer.Stop()
		case <-timer.C:
		}
	}
	s.crash(c)
}
