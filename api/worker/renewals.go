package worker

import (
	"errors"
	"fmt"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// errReported is why the lease of an attempt is not renewed any more that has ended.
var errReported = fmt.Errorf("%w: the attempt has ended", ErrLeaseLost)

// renewal is a lease's part in a call.
type renewal struct {
	*lease
	call int   // which of the calls to renew the lease it is, from 1
	note *note // what goes along; nil: nothing
}

// due returns what to renew now, marked as under way, and when to look again. If something is
// due, what is due within slack goes along, so that renewals gather into batches.
func (t *leaseTable) due(now time.Time, slack time.Duration) (due []renewal, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next = t.nextDue(now)
	if t.next.After(now) {
		return nil, t.next
	}
	for _, l := range t.held {
		if l.idle() && l.renewAt.Before(now.Add(slack)) {
			l.renewing = true
			l.calls++
			due = append(due, renewal{lease: l, call: l.calls, note: l.attach()})
		}
	}
	t.next = t.nextDue(now)
	return due, t.next
}

// nextDue is when the first renewal is due. mu is held.
func (t *leaseTable) nextDue(now time.Time) time.Time {
	next := now.Add(time.Hour)
	for _, l := range t.held {
		if l.idle() && l.renewAt.Before(next) {
			next = l.renewAt
		}
	}
	return next
}

// idle reports whether a lease will be renewed, and is not being renewed. mu is held.
func (l *lease) idle() bool { return !l.renewing && l.closed == nil }

// renewed takes in the answer to a renewal that was sent at sent.
func (t *leaseTable) renewed(rn renewal, sent time.Time, resp *leaseholdv1.RenewLeaseResponse) {
	l := rn.lease
	t.mu.Lock()
	l.kept(rn.note)
	if rn.call > l.counted { // else a later one was answered first, and says more
		l.counted = rn.call
		l.renewing, l.failures = false, 0
		l.extend(sent, resp.GetLeaseDuration().AsDuration(), resp.GetRenewAfter().AsDuration())
		l.renewAt = later(l.renewAt, time.Now().Add(minRenewGap))
	}
	l.hurry()
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

// refused takes in that a renewal was answered with an error, and reports whether that is
// news: after a report nobody wonders.
func (t *leaseTable) refused(rn renewal, err error) bool {
	l := rn.lease
	t.mu.Lock()
	removed := l.removed
	var lost error
	dropped := l.notKept(rn.note, err)
	switch {
	case dropped != nil: // the lease is fine
		l.renewing, l.renewAt = false, time.Now()
	case errors.Is(err, ErrSuperseded), errors.Is(err, errSessionNotFound):
		// The session cannot renew, but the lease is still ours until it runs out, and its
		// report will be taken. Whether the worker itself is superseded, its polls find out.
		l.close(err)
	case errors.Is(err, ErrLeaseLost):
		lost = err
	case isFinal(err):
		lost = fmt.Errorf("%w: %w", ErrLeaseLost, err)
	default:
		l.retry(rn.call)
	}
	if lost != nil {
		l.lost = lost
		l.close(lost)
	}
	t.mu.Unlock()
	if lost != nil {
		l.cancel(lost)
	}
	return !removed
}

// unanswered takes in that a call failed. That is no word about the lease.
func (t *leaseTable) unanswered(rn renewal, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := rn.lease; l.notKept(rn.note, err) != nil {
		l.renewing, l.renewAt = false, time.Now()
	} else {
		l.retry(rn.call)
	}
}

// overdue takes in that the answer to a renewal takes long: another is sent, while that one
// is still awaited. What went along with it does not go twice at a time.
func (t *leaseTable) overdue(rn renewal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := rn.lease; l.calls == rn.call && l.renewing {
		l.renewing, l.renewAt = false, time.Now()
		l.failures++
	}
}

// retry puts off the next renewal after one that failed, unless there was one already. mu is
// held.
func (l *lease) retry(call int) {
	if l.calls != call || !l.renewing {
		return
	}
	l.renewing = false
	l.renewAt = time.Now().Add(retryWait(l.failures, min(retryCap, l.session.lease/10)))
	l.failures++
}
