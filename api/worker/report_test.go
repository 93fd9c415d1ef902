package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

func TestReport_RepeatedUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var first *report
		f.onReport = func(ctx context.Context, n int, req *report) error {
			if first == nil {
				first = req
			}
			if !proto.Equal(req, first) {
				t.Errorf("report %d is %v, the first was %v", n, req, first)
			}
			switch {
			case n == 3: // hangs
				<-ctx.Done()
				return ctx.Err()
			case n < 60:
				return status.Error([]codes.Code{codes.Unavailable, codes.Internal}[n%2], "away")
			}
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(jsonPayload(`"done"`), nil))
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(3 * time.Minute) // many leases long: they are renewed while the report is not answered
		if st := f.state(); len(st.reports) != 1 || st.reportCalls != 60 {
			t.Errorf("%d reports taken of %d, want 1 of 60", len(st.reports), st.reportCalls)
		}
		s.mustStop(t)
	})
}

// The server is gone for good: the report is given up when the lease is over, and its slot
// is free again.
func TestReport_GivenUpWithTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = hang
		var last time.Time
		f.onReport = func(context.Context, int, *report) error {
			last = time.Now()
			return status.Error(codes.Unavailable, "away")
		}
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = 1
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		synctest.Wait()
		begun := time.Now()
		f.enqueue(lease("x", "1"))
		time.Sleep(29 * time.Second)
		if n := len(f.state().polls); n != 1 {
			t.Errorf("%d polls while the only slot is taken, want 1", n)
		}
		time.Sleep(2 * time.Second)
		if st := f.state(); st.parked != 1 || last.Sub(begun) != 30*time.Second {
			t.Errorf("%d parked polls, last report after %v; want 1 and 30 s", st.parked, last.Sub(begun))
		}
		s.mustStop(t)
	})
}

func TestReport_RefusedIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(context.Context, int, *report) error {
			return refuse(codes.FailedPrecondition, "LEASE_SUPERSEDED")
		}
		got := reportsOf(t, f, func(w *worker.Worker) { worker.HandleRaw(w, "x", returns(nil, nil)) })
		if st := f.state(); len(got) != 0 || st.reportCalls != 1 {
			t.Errorf("%d reports in %d calls, want none in 1", len(got), st.reportCalls)
		}
	})
}

// A handler that was deaf to the end of its lease is still asked about once: the server's
// row decides. What only says that the context ended is not worth a call.
func TestReport_AfterTheLeaseEndedByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenew = hang
		f.onReport = func(context.Context, int, *report) error { return status.Error(codes.Unavailable, "away") }
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "deaf", func(context.Context, *rawJob) (*payload, error) {
			time.Sleep(40 * time.Second)
			return nil, nil
		})
		worker.HandleRaw(w, "hears", func(ctx context.Context, _ *rawJob) (*payload, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		s := start(t, w)
		deaf := lease("deaf", "1")
		f.enqueue(deaf, lease("hears", "1"))
		time.Sleep(time.Minute)
		if n := f.state().reportCalls; n != 1 {
			t.Errorf("%d reports were tried, want 1", n)
		}
		s.mustStop(t)
	})
}

// A server that is gone says nothing about a report whose lease is over: another one is asked, which
// decides. Caught: the report is dropped, and its lateness noted nowhere.
func TestReport_LateOneGoesToAServerThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		servers := []*fakeServer{newFake(), newFake(), newFake()}
		pipes := map[string]*pipe{}
		for i, f := range servers {
			f.onRenew = hang
			f.onReport = func(context.Context, int, *report) error {
				if calls.Add(1) == 1 {
					return status.Error(codes.Unavailable, "away")
				}
				return nil
			}
			pipes[string(rune('a'+i))] = newPipe(t, f)
		}
		w := worker.New(over(pipes))
		worker.HandleRaw(w, "deaf", func(context.Context, *rawJob) (*payload, error) {
			time.Sleep(40 * time.Second)
			return nil, nil
		})
		s := start(t, w)
		time.Sleep(time.Second)
		for _, f := range servers {
			if f.state().parked > 0 {
				f.enqueue(lease("deaf", "1"))
			}
		}
		time.Sleep(3 * time.Minute)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d reports were tried, want 2", n)
		}
		s.mustStop(t)
	})
}

// While a report is under way the renewal that crosses it is answered with the end of the
// attempt. That is no reason to give the report up: its answer may be what was lost.
func TestReport_CrossedByARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRenewal = func(*leaseholdv1.RenewLeaseRequest, *leaseholdv1.RenewLeaseResponse) error {
			return refuse(codes.FailedPrecondition, "OUTCOME_ALREADY_RECORDED")
		}
		f.onReport = func(ctx context.Context, n int, _ *report) error {
			if n == 1 { // recorded, and its answer lost
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		got := reportsOf(t, f, func(w *worker.Worker) {
			worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
				time.Sleep(8 * time.Second)
				return nil, nil
			})
		})
		if len(got) != 1 || got[0].GetSucceeded() == nil {
			t.Errorf("reports = %v, want the success, repeated", got)
		}
	})
}
