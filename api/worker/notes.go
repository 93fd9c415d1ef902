package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// note is what a handler has to say while it works. It travels with the next renewal; what
// is left of it when the attempt ends, with the report.
type note struct {
	checkpoint *leaseholdv1.Payload // nil: as before
	progress   *float64             // nil: as before
	message    string               // empty: as before
	waiters    []chan error         // of those who wait until it is kept; each has room for one
	failures   int                  // tries of which nobody knows what came
	exhausted  int                  // those of them that gRPC called too large
}

// SaveCheckpoint keeps v for the next attempt of the step, and returns when a server has it. v
// becomes JSON, unless it is a *leaseholdv1.Payload, which is kept as it is. An attempt that
// ends without a success leaves its last checkpoint to the next, which reads it by
// DecodeCheckpoint.
//
// Errors: ErrInvalidPayload and ErrPayloadTooLarge, of which nothing is kept and after which
// the lease lives on; ErrLeaseLost; ErrDeadline; ErrSuperseded; the cause of ctx's end. After
// the last two v still travels with the attempt's report.
func (a *Attempt) SaveCheckpoint(ctx context.Context, v any) error {
	checkpoint, err := a.checkpointOf(v)
	if err != nil {
		return err
	}
	kept := make(chan error, 1)
	if err := a.leases.note(a.lease, note{checkpoint: checkpoint, waiters: []chan error{kept}}); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	select {
	case err := <-kept:
		if err != nil {
			return fmt.Errorf("save checkpoint: %w", err)
		}
		return nil
	case <-ctx.Done():
		a.leases.forget(a.lease, kept)
		return fmt.Errorf("save checkpoint: %w", context.Cause(ctx))
	}
}

// SetCheckpoint is SaveCheckpoint for those who call it often and do not wait: the newest one
// travels with the next renewal, after about a third of the lease, or with the report. Errors:
// ErrInvalidPayload and ErrPayloadTooLarge. One that the server refuses later is logged.
func (a *Attempt) SetCheckpoint(v any) error {
	checkpoint, err := a.checkpointOf(v)
	if err != nil {
		return err
	}
	_ = a.leases.note(a.lease, note{checkpoint: checkpoint}) // the report takes it along in any case
	return nil
}

// Progress says how far the attempt is, from 0 to 1, and, for people, what it does. It travels
// with the next renewal; what lies outside is held to 0 and 1. The message is cut at 1 KiB; an
// empty one leaves the one before.
func (a *Attempt) Progress(fraction float64, message string) {
	n := note{message: cut(message, maxReasonBytes)}
	if !math.IsNaN(fraction) {
		fraction = min(max(fraction, 0), 1)
		n.progress = &fraction
	}
	_ = a.leases.note(a.lease, n) // nobody is told of the progress of an attempt that is over
}

// checkpointOf encodes a checkpoint and checks it as the server will.
func (a *Attempt) checkpointOf(v any) (*leaseholdv1.Payload, error) {
	checkpoint, err := payloadOf(v)
	if err == nil {
		err = checkPayload("checkpoint", checkpoint, a.lease.session)
	}
	return checkpoint, err
}

func payloadOf(v any) (*leaseholdv1.Payload, error) {
	if p, raw := v.(*leaseholdv1.Payload); raw {
		return proto.CloneOf(p), nil // it is sent while the handler goes on
	}
	p, err := EncodePayload(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	}
	return p, nil
}

// absorb takes in a later note: what it says replaces what was said.
func (n *note) absorb(later *note) {
	if later.checkpoint != nil {
		n.checkpoint, n.exhausted = later.checkpoint, 0
	}
	if later.progress != nil {
		n.progress = later.progress
	}
	if later.message != "" {
		n.message = later.message
	}
	n.waiters = append(n.waiters, later.waiters...)
}

// resolve tells those who wait.
func (n *note) resolve(err error) {
	if n == nil {
		return
	}
	for _, w := range n.waiters {
		w <- err
	}
	n.waiters = nil
}

// size is what a note adds to a call, about.
func (n *note) size() int {
	if n == nil {
		return 0
	}
	return proto.Size(n.checkpoint) + len(n.message)
}

// writeTo puts a note on the wire.
func (n *note) writeTo(req *leaseholdv1.RenewLeaseRequest) {
	if n != nil {
		req.Checkpoint, req.Progress, req.ProgressMessage = n.checkpoint, n.progress, n.message
	}
}

// note takes in what a handler says. If somebody waits for it, it is sent at once, and the
// error says why it will not be.
func (t *leaseTable) note(l *lease, n note) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiters := n.waiters
	if l.closed != nil {
		n.waiters = nil
	}
	if l.pending == nil {
		l.pending = &note{}
	}
	l.pending.absorb(&n)
	if l.closed != nil || len(waiters) == 0 {
		return l.closed
	}
	l.hurry()
	signal(t.wake)
	return nil
}

// forget takes in that somebody does not wait any more.
func (t *leaseTable) forget(l *lease, waiter chan error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range []*note{l.pending, l.sent} {
		if n != nil {
			n.waiters = slices.DeleteFunc(n.waiters, func(w chan error) bool { return w == waiter })
		}
	}
}

// hurry has a note sent at once for which somebody waits, or soon if it failed before; not
// while another is on the way or renewing comes first. mu is held.
func (l *lease) hurry() {
	if l.pending == nil || len(l.pending.waiters) == 0 || l.sent != nil || l.failures > 0 {
		return
	}
	at := time.Now()
	if n := l.pending.failures; n > 0 {
		at = at.Add(retryWait(n-1, retryCap))
	}
	if at.Before(l.renewAt) {
		l.renewAt = at
	}
}

// attach takes the note that goes along with a renewal. There is one on the way at a time, so
// that an older one never arrives after a newer one; and none after a failure: renewing comes
// first. mu is held.
func (l *lease) attach() *note {
	if l.pending == nil || l.sent != nil || l.failures > 0 {
		return nil
	}
	l.sent, l.pending = l.pending, nil
	return l.sent
}

// kept takes in that a note has arrived. mu is held.
func (l *lease) kept(n *note) {
	if n == nil {
		return
	}
	l.sent = nil
	n.resolve(nil)
}

// notKept takes in that nobody knows whether a note has arrived, or that it was refused. It is
// sent again, with what is newer, unless it is what cannot be sent: then it is dropped, and
// dropped says why. mu is held.
func (l *lease) notKept(n *note, err error) (dropped error) {
	if n == nil {
		return nil
	}
	l.sent = nil
	if dropped = n.refusal(err); dropped != nil {
		n.resolve(dropped)
		return dropped
	}
	n.failures++
	if l.pending != nil {
		n.absorb(l.pending)
	}
	l.pending = n
	if l.closed != nil {
		n.resolve(l.closed)
	}
	l.hurry()
	return nil
}

// refusal is not nil if an error of a renewal is about its note, and not about the lease.
func (n *note) refusal(err error) error {
	switch code := status.Code(err); {
	case errors.Is(err, ErrPayloadTooLarge):
		return err
	case code == codes.InvalidArgument:
		return fmt.Errorf("%w: %w", ErrInvalidPayload, err)
	case code == codes.ResourceExhausted && !hasReason(err):
		if n.exhausted++; n.exhausted >= largeReportTries && n.size() >= largeReportBytes {
			return fmt.Errorf("%w: %w", ErrPayloadTooLarge, err)
		}
	}
	return nil
}

// close makes a lease one that is not renewed any more, and tells those who wait for that. mu
// is held.
func (l *lease) close(why error) {
	if l.closed != nil {
		return
	}
	l.closed = why
	l.pending.resolve(why)
	l.sent.resolve(why)
}

// unsaved is the checkpoint that a report has to take along: the last one, unless a server is
// known to have it.
func (t *leaseTable) unsaved(l *lease) *leaseholdv1.Payload {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range []*note{l.pending, l.sent} {
		if n != nil && n.checkpoint != nil {
			return n.checkpoint
		}
	}
	return nil
}
