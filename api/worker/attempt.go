package worker

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// noHandlerDelay keeps a step that this worker cannot do from coming back at once: it can
// only be granted by mistake, as when another program registered under the same name.
const noHandlerDelay = 10 * time.Second

var errGoexit = errors.New("handler ended its goroutine by runtime.Goexit")

// result is what a handler returned.
type result struct {
	output   *leaseholdv1.Payload
	err      error
	panicked *panicError
}

// launch takes a lease in and runs its attempt on a goroutine of its own. An attempt that is
// here already is a repeat of its grant, and is left alone.
func (r *run) launch(handling, reporting context.Context, l *lease) {
	ctx, cancel := context.WithCancelCause(handling)
	l.cancel = cancel
	if !r.leases.add(l) {
		cancel(nil)
		return
	}
	r.counts.leased.Add(1)
	r.attempts.Go(func() {
		defer r.leases.remove(l)
		defer cancel(nil)
		if report := r.perform(ctx, l); report != nil {
			r.report(reporting, l, report)
		}
	})
}

// perform runs the handler and returns what is to be reported, or nil.
func (r *run) perform(ctx context.Context, l *lease) *leaseholdv1.ReportAttemptRequest {
	h, ok := r.handlers[l.pb.GetCapability()]
	if !ok && l.handBack == nil {
		l.handBack = release("the worker does not offer "+l.pb.GetCapability(), noHandlerDelay)
	}
	if l.handBack != nil {
		r.log.Warn("lease handed back", append(l.attrs(), "reason", l.handBack.reason)...)
		return reportOf(l, outcome{released: l.handBack}, nil)
	}

	if !l.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, l.deadline, ErrDeadline)
		defer cancel()
	}
	done := make(chan result, 1) // never blocks a handler that was left behind
	go invoke(ctx, h, &Attempt{lease: l, leases: r.leases, servers: r.servers}, done)
	var res result
	select {
	case res = <-done:
	case <-r.abandoned:
		r.log.Warn("handler ignores its context, its attempt is handed back", l.attrs()...)
		res.err = context.Cause(ctx)
	}
	return r.conclude(ctx, l, res)
}

// invoke calls the handler and sends exactly one result, whatever the handler does.
func invoke(ctx context.Context, h Handler, a *Attempt, done chan<- result) {
	res := result{err: errGoexit}
	defer func() {
		if v := recover(); v != nil {
			res = result{panicked: &panicError{value: v, stack: debug.Stack()}}
		}
		done <- res
	}()
	output, err := h(ctx, a)
	res = result{output: output, err: err}
}

// conclude makes a report of what a handler returned, or nil if there is nothing to say.
func (r *run) conclude(ctx context.Context, l *lease, res result) *leaseholdv1.ReportAttemptRequest {
	o, dropped := judged(ctx, r.leases.standing(l), res, l.session)
	if dropped != "" {
		r.counts.unreported.Add(1)
		r.log.Warn("nothing reported: "+dropped, append(l.attrs(), "error", res.err, "cause", context.Cause(ctx))...)
		return nil
	}
	if o.failure != nil {
		r.log.Warn("attempt failed", append(l.attrs(), "type", o.failure.GetType(), "error", o.failure.GetMessage())...)
	}
	return reportOf(l, o, r.leases.unsaved(l))
}

// judged is what a handler's result comes to. A result may itself panic when it is looked at, as
// an error does that is a nil pointer: that ends the attempt, and not the process with all others.
func judged(ctx context.Context, s standing, res result, of *session) (o outcome, dropped string) {
	defer func() {
		if v := recover(); v != nil {
			o = outcome{failure: panicFailure(&panicError{value: v, stack: debug.Stack()})}
		}
	}()
	if o, dropped = outcomeOf(ctx, s, res); o.succeeded {
		o = checkedOutput(o, of)
	}
	return o, dropped
}
