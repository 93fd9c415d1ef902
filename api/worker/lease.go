package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// minRenewGap keeps a lease that cannot be made longer, because a deadline caps it, from being
// renewed faster and faster towards its end.
const minRenewGap = 200 * time.Millisecond

// nearDeadline is how close to the attempt's deadline a lease's end counts as that deadline:
// the end is computed from later and shorter times than the deadline.
const nearDeadline = time.Second

// lease is one granted attempt, from its grant until its report is done.
type lease struct {
	pb       *leaseholdv1.Lease
	session  *session
	deadline time.Time     // when the handler's context ends whatever is renewed; zero: never
	handBack *releaseError // not nil: it is not to be started
	cancel   context.CancelCauseFunc

	// Guarded by leaseTable.mu.
	end      time.Time // when the lease is over for the server, at the earliest
	cutoff   time.Time // when the handler's context ends: end less a margin
	renewAt  time.Time
	failures int  // renewals in a row without an answer
	renewing bool // a call is under way
	fixed    bool // not to be renewed any more
	removed  bool
	lost     error       // the server's word that it is not ours any more; wraps ErrLeaseLost
	canceled bool        // the server asked to stop
	timer    *time.Timer // fires at cutoff
}

// newLease counts a grant from the time from on.
func newLease(granted *leaseholdv1.Lease, s *session, from time.Time) *lease {
	l := &lease{pb: granted, session: s}
	l.extend(from, granted.GetLeaseDuration().AsDuration(), granted.GetRenewAfter().AsDuration())
	if granted.GetStartToCloseRemaining() != nil {
		left := granted.GetStartToCloseRemaining().AsDuration()
		l.deadline = from.Add(left - margin(left))
	}
	return l
}

func (l *lease) extend(from time.Time, d, renewAfter time.Duration) {
	if renewAfter <= 0 {
		renewAfter = d / 3
	}
	l.end = from.Add(d)
	l.cutoff = l.end.Add(-margin(d))
	l.renewAt = from.Add(renewAfter)
}

// margin is how much earlier than a lease its handler's context ends, for timers that fire
// late and clocks that run unequally fast.
func margin(d time.Duration) time.Duration {
	return min(max(d/20, 0), 500*time.Millisecond)
}

// standing is what is known of a lease when its handler has returned.
type standing struct {
	lost     error
	canceled bool
}

// leaseTable holds the leases of all attempts that occupy a slot. Its lock is never held
// while anything else is waited for, and no user code runs under it.
type leaseTable struct {
	slots int
	freed chan struct{} // a slot became free
	wake  chan struct{} // a renewal is due earlier than the loop knows

	mu   sync.Mutex
	held map[string]*lease // by attempt id
	next time.Time         // when the renewal loop looks again
}

func newLeaseTable(slots int) *leaseTable {
	return &leaseTable{
		slots: slots,
		freed: make(chan struct{}, 1),
		wake:  make(chan struct{}, 1),
		held:  make(map[string]*lease),
	}
}

// add takes a lease in and starts its clock. It reports false if the attempt is here already.
func (t *leaseTable) add(l *lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := l.pb.GetAttemptId()
	if _, known := t.held[id]; known {
		return false
	}
	t.held[id] = l
	l.timer = time.AfterFunc(time.Until(l.cutoff), func() { t.expire(l) })
	if l.renewAt.Before(t.next) {
		signal(t.wake)
	}
	return true
}

// remove gives the slot back.
func (t *leaseTable) remove(l *lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, l.pb.GetAttemptId())
	l.removed = true
	l.timer.Stop()
	signal(t.freed)
}

// waitFree waits until a slot is free or ctx has ended, and returns how many are.
func (t *leaseTable) waitFree(ctx context.Context) int {
	for {
		if free := t.slots - t.count(); free > 0 || ctx.Err() != nil {
			return free
		}
		select {
		case <-t.freed:
		case <-ctx.Done():
		}
	}
}

func (t *leaseTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held)
}

// expire ends the handler's context at the cutoff, unless a renewal has moved that.
func (t *leaseTable) expire(l *lease) {
	t.mu.Lock()
	if l.removed {
		t.mu.Unlock()
		return
	}
	if left := time.Until(l.cutoff); left > 0 {
		l.timer.Reset(left)
		t.mu.Unlock()
		return
	}
	l.fixed = true
	cause := ErrLeaseLost
	if !l.deadline.IsZero() && l.deadline.Sub(l.cutoff) < nearDeadline {
		cause = ErrDeadline
	}
	t.mu.Unlock()
	l.cancel(cause)
}

// due returns the leases to renew now, marked as under way, and when to look again. What is
// due within slack goes along, so that renewals gather into batches.
func (t *leaseTable) due(now time.Time, slack time.Duration) (due []*lease, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next = now.Add(time.Hour)
	for _, l := range t.held {
		switch {
		case l.renewing || l.fixed:
		case l.renewAt.Before(now.Add(slack)):
			l.renewing = true
			due = append(due, l)
		case l.renewAt.Before(next):
			next = l.renewAt
		}
	}
	t.next = next
	return due, next
}

// renewed takes in the answer to a renewal that was sent at sent.
func (t *leaseTable) renewed(l *lease, sent time.Time, resp *leaseholdv1.RenewLeaseResponse) {
	t.mu.Lock()
	l.renewing, l.failures = false, 0
	l.extend(sent, resp.GetLeaseDuration().AsDuration(), resp.GetRenewAfter().AsDuration())
	l.renewAt = later(l.renewAt, time.Now().Add(minRenewGap))
	if !l.removed {
		l.timer.Reset(time.Until(l.cutoff))
	}
	// A drain is heard by the polls: it asks nothing of an attempt.
	cancel := resp.GetDirective() == leaseholdv1.Directive_DIRECTIVE_CANCEL && !l.canceled
	l.canceled = l.canceled || cancel
	t.mu.Unlock()
	if cancel {
		l.cancel(ErrCanceled)
	}
}

// refused takes in that a renewal was answered with an error, and reports whether the lease
// was still held: after a report nobody wonders.
func (t *leaseTable) refused(l *lease, err error) bool {
	t.mu.Lock()
	l.renewing = false
	removed := l.removed
	var lost error
	switch {
	case errors.Is(err, ErrSuperseded), errors.Is(err, errSessionNotFound):
		// The session cannot renew, but the lease is still ours until it runs out, and its
		// report will be taken. Whether the worker itself is superseded, its polls find out.
		l.fixed = true
	case errors.Is(err, ErrLeaseLost):
		lost = err
	case isFinal(err):
		lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	default:
		l.retryRenewal()
	}
	if lost != nil {
		l.fixed, l.lost = true, lost
	}
	t.mu.Unlock()
	if lost != nil {
		l.cancel(lost)
	}
	return !removed
}

// unanswered takes in that nothing was heard of a renewal.
func (t *leaseTable) unanswered(l *lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.renewing = false
	l.retryRenewal()
}

// retryRenewal is called under the table's lock.
func (l *lease) retryRenewal() {
	l.renewAt = time.Now().Add(retryWait(l.failures, min(retryCap, l.session.lease/10)))
	l.failures++
}

// attrs name the attempt in the log.
func (l *lease) attrs() []any {
	return []any{
		"execution_id", l.pb.GetExecutionId(), "step", l.pb.GetStepName(), "attempt", l.pb.GetAttemptNumber(),
		"attempt_id", l.pb.GetAttemptId(), "lease_version", l.pb.GetLeaseVersion(),
	}
}

// standing says how a lease stands.
func (t *leaseTable) standing(l *lease) standing {
	t.mu.Lock()
	defer t.mu.Unlock()
	return standing{lost: l.lost, canceled: l.canceled}
}

// left is how long the lease lasts still.
func (t *leaseTable) left(l *lease) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Until(l.end)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// signal leaves a mark for one waiter; it never waits.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
