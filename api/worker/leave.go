package worker

import (
	"context"
	"time"
)

const (
	// pollTail is how long, of the grace, the poll under way is waited for when the worker is
	// told to stop: the servers answer it when they hear that the session takes no more.
	pollTail = 2 * time.Second
	// pollTailAtLeast is that without a grace.
	pollTailAtLeast = 100 * time.Millisecond
)

// leaving is the end of polling. A poll that is cut off at once may be one whose grants are on
// their way: they would run out unseen, and count as tries of steps that nobody has begun. So the
// servers hear first that the session takes no more, and answer the poll.
type leaving struct {
	endAll context.CancelFunc
	forget func() bool
	began  chan time.Time // has room for the one instant
	over   chan struct{}
}

// prepareLeaving waits for the end of ctx in the background. polling is for the calls of polls.
func (r *run) prepareLeaving(ctx context.Context) (polling context.Context, l *leaving) {
	telling, endTelling := context.WithCancel(context.WithoutCancel(ctx))
	polling, endPolling := context.WithCancel(telling)
	l = &leaving{endAll: endTelling, began: make(chan time.Time, 1), over: make(chan struct{})}
	l.forget = context.AfterFunc(ctx, func() {
		defer close(l.over)
		l.began <- time.Now()
		cut := time.AfterFunc(max(min(r.cfg.Grace, pollTail), pollTailAtLeast), endPolling)
		defer cut.Stop()
		if err := r.drain(telling, r.session.Load()); err != nil {
			endPolling() // no answer is to be expected
		}
		<-polling.Done()
	})
	return polling, l
}

// begun is how long ago ctx ended; it has, or else polling ended by itself, just now.
func (l *leaving) begun() time.Duration {
	if l.forget() {
		close(l.over)
		return 0
	}
	return time.Since(<-l.began)
}

// end leaves nothing running. It comes after begun.
func (l *leaving) end() {
	l.endAll()
	<-l.over
}
