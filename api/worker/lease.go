package worker

import (
	"context"
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
	failures int   // renewals in a row without an answer
	calls    int   // to renew it, so far
	counted  int   // the one that end was computed from; 0: none yet
	renewing bool  // the last of them is under way, and not for long
	closed   error // not nil: it is not renewed any more, and why
	removed  bool
	pending  *note       // to go along with a renewal; nil: nothing
	sent     *note       // on the way; nil: nothing
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
	l.close(errReported)
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
	cause := ErrLeaseLost
	if !l.deadline.IsZero() && l.deadline.Sub(l.cutoff) < nearDeadline {
		cause = ErrDeadline
	}
	l.close(cause)
	t.mu.Unlock()
	l.cancel(cause)
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
