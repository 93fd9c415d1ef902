package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// Times are simulated here, so they can be compared exactly: nothing runs while a goroutine
// has something to do.

// The margin of a lease of 30 s.
const margin30 = 500 * time.Millisecond

// runUntilEnd runs one handler that waits for its context's end, and returns what it saw.
func runUntilEnd(t *testing.T, f *fakeServer, l *leaseholdv1.Lease) ended {
	t.Helper()
	_, conn := connect(t, f)
	w := worker.New(config(conn))
	ends := make(chan ended, 1)
	worker.HandleRaw(w, "x", untilEnd(ends))
	s := start(t, w)
	synctest.Wait()
	time.Sleep(5 * time.Second) // the poll is held for so long: its time does not count
	f.enqueue(l)
	e := <-ends
	time.Sleep(time.Second)
	s.mustStop(t)
	return e
}

func hang(ctx context.Context, _ int, _ *leaseholdv1.BatchRenewLeasesRequest) error {
	<-ctx.Done()
	return ctx.Err()
}

// No server answers renewals: the context ends before the lease can be given to another, by
// this side's clock alone.
func TestLease_EndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = hang
		e := runUntilEnd(t, f, lease("x", "1"))
		if !errors.Is(e.cause, worker.ErrLeaseLost) || e.after != 30*time.Second-margin30 {
			t.Errorf("context ended after %v with %v, want 29.5 s and ErrLeaseLost", e.after, e.cause)
		}
		if st := f.state(); st.reportCalls != 0 || len(st.renewCalls) < 3 {
			t.Errorf("%d reports, %d tries to renew; want 0 and at least 3", st.reportCalls, len(st.renewCalls))
		}
	})
}

// A renewal counts from when it was sent: the server may have taken it at once and have been
// slow to say so.
func TestLease_RenewalCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = func(ctx context.Context, n int, req *leaseholdv1.BatchRenewLeasesRequest) error {
			if n > 1 {
				return hang(ctx, n, req)
			}
			time.Sleep(3 * time.Second)
			return nil
		}
		e := runUntilEnd(t, f, lease("x", "1"))
		// Sent within a tenth of renew_after before it was due at 10 s.
		if low, high := 39*time.Second-margin30, 40*time.Second-margin30; e.after < low || e.after > high {
			t.Errorf("context ended after %v, want %v to %v", e.after, low, high)
		}
	})
}

// What the server held a poll for is not counted, but what it did not own up to is.
func TestLease_GrantCountsFromSendingPlusHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = hang
		f.onPoll = func(n int, _ *leaseholdv1.LeaseAttemptRequest) (*leaseholdv1.LeaseAttemptResponse, error) {
			if n > 1 {
				return nil, nil
			}
			time.Sleep(10 * time.Second) // 4 s until the grant, 6 s on the way back
			l := lease("x", "1")
			l.AttemptId, l.LeaseVersion, l.LeaseDuration = "a", 1, durationpb.New(30*time.Second)
			return &leaseholdv1.LeaseAttemptResponse{Leases: []*leaseholdv1.Lease{l}, HeldDuration: durationpb.New(4 * time.Second)}, nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		ends := make(chan ended, 1)
		worker.HandleRaw(w, "x", untilEnd(ends))
		s := start(t, w)
		if e := <-ends; e.after != 24*time.Second-margin30 {
			t.Errorf("context ended after %v, want 23.5 s: 30 less the 6 on the way", e.after)
		}
		s.mustStop(t)
	})
}

func TestLease_RefusedRenewalEndsTheContext(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{
		refuse(codes.FailedPrecondition, "LEASE_SUPERSEDED"), refuse(codes.FailedPrecondition, "LEASE_REVOKED"),
		refuse(codes.FailedPrecondition, "EXECUTION_CLOSED"), refuse(codes.NotFound, "ATTEMPT_NOT_FOUND"),
		refuse(codes.FailedPrecondition, "A_REASON_OF_LATER"),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.onRenewal = func(*leaseholdv1.RenewLeaseRequest, *leaseholdv1.RenewLeaseResponse) error { return refusal }
			e := runUntilEnd(t, f, lease("x", "1"))
			if !errors.Is(e.cause, worker.ErrLeaseLost) || e.after > 10*time.Second {
				t.Errorf("%v: context ended after %v with %v, want ErrLeaseLost at the first renewal", refusal, e.after, e.cause)
			}
			if st := f.state(); st.reportCalls != 0 || len(st.renewals) != 1 {
				t.Errorf("%v: %d reports, %d renewals, want 0 and 1", refusal, st.reportCalls, len(st.renewals))
			}
		})
	}
}

// An error that says nothing about the lease does not end it.
func TestLease_OutlivesErrorsOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = func(_ context.Context, n int, _ *leaseholdv1.BatchRenewLeasesRequest) error {
			if n%3 != 0 {
				return status.Error([]codes.Code{codes.Unavailable, codes.Internal}[n%2], "away")
			}
			return nil
		}
		f.onRenewal = func(*leaseholdv1.RenewLeaseRequest, *leaseholdv1.RenewLeaseResponse) error {
			if len(f.state().renewCalls)%6 == 0 { // answered, but without this one
				return refuse(codes.Unavailable, "STORAGE_UNAVAILABLE")
			}
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", func(ctx context.Context, _ *rawJob) (*payload, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(5 * time.Minute):
				return nil, nil
			}
		})
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(6 * time.Minute)
		if st := f.state(); len(st.reports) != 1 || st.reports[0].GetSucceeded() == nil {
			t.Errorf("reports = %v, want a success after 5 minutes", st.reports)
		}
		s.mustStop(t)
	})
}

func TestLease_RenewedInBatchesWhateverHandlersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1200
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = n
		w := worker.New(cfg)
		release := make(chan struct{})
		worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
			<-release // deaf to its context
			return nil, nil
		})
		s := start(t, w)
		for range n {
			f.enqueue(lease("x", "1"))
		}
		synctest.Wait()
		time.Sleep(65 * time.Second)
		st := f.state()
		for _, size := range st.renewCalls {
			if size > 500 {
				t.Errorf("a batch has %d renewals, want at most 500", size)
			}
		}
		// Six rounds of three batches, and a few for the one lease that came alone at first.
		if len(st.renewals) < 6*n || len(st.renewals) > 7*n || len(st.renewCalls) > 40 {
			t.Errorf("%d renewals in %d calls within 65 s, want about %d in about 20", len(st.renewals), len(st.renewCalls), 6*n)
		}
		close(release)
		synctest.Wait()
		if st := f.state(); len(st.reports) != n {
			t.Errorf("%d reports, want %d", len(st.reports), n)
		}
		s.mustStop(t)
	})
}

func TestLease_HangingRenewalHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = func(ctx context.Context, n int, req *leaseholdv1.BatchRenewLeasesRequest) error {
			if n == 1 {
				return hang(ctx, n, req)
			}
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", untilEnd(make(chan ended, 2)))
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(2 * time.Second)
		second := lease("x", "1")
		f.enqueue(second)
		time.Sleep(10*time.Second + 500*time.Millisecond)
		if st := f.state(); len(st.renewals) != 2 || st.renewals[1].GetAttemptId() != second.AttemptId {
			t.Errorf("renewals = %v, want that of the second lease while the first hangs", st.renewals)
		}
		s.mustStop(t)
	})
}

func TestLease_CancelIsHeard(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		returned func(context.Context) error
		want     func(*report) bool
	}{
		"context's error":  {context.Cause, func(r *report) bool { return r.GetCanceled() != nil }},
		"ctx.Err, wrapped": {func(ctx context.Context) error { return errors.Join(errors.New("x"), ctx.Err()) }, func(r *report) bool { return r.GetCanceled() != nil }},
		"gRPC's word":      {func(ctx context.Context) error { return status.FromContextError(ctx.Err()).Err() }, func(r *report) bool { return r.GetCanceled() != nil }},
		"done after all":   {func(context.Context) error { return nil }, func(r *report) bool { return r.GetSucceeded() != nil }},
		"another error":    {func(context.Context) error { return errors.New("no") }, func(r *report) bool { return r.GetFailed() != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.onRenewal = func(_ *leaseholdv1.RenewLeaseRequest, resp *leaseholdv1.RenewLeaseResponse) error {
					resp.Directive = leaseholdv1.Directive_DIRECTIVE_CANCEL
					return nil
				}
				got := reportsOf(t, f, func(w *worker.Worker) {
					worker.HandleRaw(w, "x", func(ctx context.Context, _ *rawJob) (*payload, error) {
						<-ctx.Done()
						if !errors.Is(context.Cause(ctx), worker.ErrCanceled) {
							t.Errorf("cause = %v, want ErrCanceled", context.Cause(ctx))
						}
						return nil, tc.returned(ctx)
					})
				})
				if len(got) != 1 || !tc.want(got[0]) {
					t.Errorf("reports = %v", got)
				}
			})
		})
	}
}

// A handler that cleans up after a cancel keeps its lease meanwhile.
func TestLease_RenewedDuringCleanUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenewal = func(_ *leaseholdv1.RenewLeaseRequest, resp *leaseholdv1.RenewLeaseResponse) error {
			resp.Directive = leaseholdv1.Directive_DIRECTIVE_CANCEL
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", func(ctx context.Context, _ *rawJob) (*payload, error) {
			<-ctx.Done()
			time.Sleep(time.Minute)
			return nil, ctx.Err()
		})
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(2 * time.Minute)
		if st := f.state(); len(st.renewals) < 6 || len(st.reports) != 1 || st.reports[0].GetCanceled() == nil {
			t.Errorf("%d renewals, reports %v; want at least 6 and canceled", len(st.renewals), st.reports)
		}
		s.mustStop(t)
	})
}

func TestLease_DeadlineOfTheAttempt(t *testing.T) {
	t.Parallel()
	for name, capped := range map[string]bool{"deadline first": false, "lease capped by it": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				begun := time.Now().Add(5 * time.Second)
				f.onRenewal = func(_ *leaseholdv1.RenewLeaseRequest, resp *leaseholdv1.RenewLeaseResponse) error {
					if !capped {
						return nil
					}
					// On its way for so long, so that the lease's end, counted from the sending,
					// is seen before the deadline.
					time.Sleep(600 * time.Millisecond)
					if left := 40*time.Second - time.Since(begun); left < 30*time.Second {
						resp.LeaseDuration = durationpb.New(left)
					}
					return nil
				}
				l := lease("x", "1")
				l.StartToCloseRemaining = durationpb.New(40 * time.Second)
				e := runUntilEnd(t, f, l)
				if !errors.Is(e.cause, worker.ErrDeadline) || e.after < 38500*time.Millisecond || e.after >= 40*time.Second {
					t.Errorf("context ended after %v with %v, want ErrDeadline just before 40 s", e.after, e.cause)
				}
				if n := f.state().reportCalls; n != 0 {
					t.Errorf("%d reports, want none: the server ends the attempt", n)
				}
			})
		})
	}
}

// A superseded or forgotten session cannot renew, but its leases are its own until they run
// out, and reports are taken until then.
func TestLease_OfAnOldSessionRunsToItsEnd(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{refuse(codes.FailedPrecondition, "SESSION_SUPERSEDED"), refuse(codes.NotFound, "SESSION_NOT_FOUND")} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.onRenewal = func(*leaseholdv1.RenewLeaseRequest, *leaseholdv1.RenewLeaseResponse) error { return refusal }
			_, conn := connect(t, f)
			w := worker.New(config(conn))
			ends := make(chan ended, 1)
			worker.HandleRaw(w, "x", untilEnd(ends))
			worker.HandleRaw(w, "y", func(ctx context.Context, _ *rawJob) (*payload, error) {
				time.Sleep(20 * time.Second)
				return nil, ctx.Err()
			})
			s := start(t, w)
			f.enqueue(lease("x", "1"), lease("y", "1"))
			e := <-ends
			if !errors.Is(e.cause, worker.ErrLeaseLost) || e.after != 30*time.Second-margin30 {
				t.Errorf("%v: context ended after %v with %v, want ErrLeaseLost after 29.5 s", refusal, e.after, e.cause)
			}
			if st := f.state(); len(st.renewals) != 2 || len(st.reports) != 1 || st.reports[0].GetSucceeded() == nil {
				t.Errorf("%v: %d renewals, reports %v; want 2 and a success", refusal, len(st.renewals), st.reports)
			}
			s.mustStop(t)
		})
	}
}

// Towards a deadline that caps it a lease cannot be made longer, however often it is renewed.
func TestLease_NearItsCapIsNotRenewedInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var deadline time.Time
		f.onRenewal = func(_ *leaseholdv1.RenewLeaseRequest, resp *leaseholdv1.RenewLeaseResponse) error {
			left := time.Until(deadline)
			resp.LeaseDuration, resp.RenewAfter = durationpb.New(left), durationpb.New(left/3)
			return nil
		}
		f.onGrant = func(*leaseholdv1.Lease) { deadline = time.Now().Add(4 * time.Second) }
		l := lease("x", "1")
		l.LeaseDuration = durationpb.New(4 * time.Second)
		_ = runUntilEnd(t, f, l)
		if n := len(f.state().renewals); n < 2 || n > 12 {
			t.Errorf("%d renewals within 4 s, want a few", n)
		}
	})
}

// The answer to an earlier renewal, which comes after that to a later one, takes nothing away.
func TestLease_LateAnswerTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = func(ctx context.Context, n int, req *leaseholdv1.BatchRenewLeasesRequest) error {
			switch n {
			case 1: // sent at 10 s, or up to a second before; the next one 3 s later
				time.Sleep(6 * time.Second)
				return nil
			case 2:
				return nil
			default:
				return hang(ctx, n, req)
			}
		}
		e := runUntilEnd(t, f, lease("x", "1"))
		if low, high := 42*time.Second-margin30, 43*time.Second-margin30; e.after < low || e.after > high {
			t.Errorf("context ended after %v, want %v to %v: counted from the second", e.after, low, high)
		}
	})
}
