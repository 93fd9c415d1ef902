package worker_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// reportMany runs n attempts whose handlers return at the same time, out, and returns what
// the server was told by a minute later.
func reportMany(t *testing.T, f *fakeServer, n int, out *payload) fakeState {
	t.Helper()
	_, conn := connect(t, f)
	cfg := config(conn)
	cfg.Slots = n
	w := worker.New(cfg)
	end := make(chan struct{})
	worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
		<-end
		return out, nil
	})
	s := start(t, w)
	synctest.Wait()
	for range n {
		f.enqueue(lease("x", "1"))
	}
	synctest.Wait()
	close(end)
	time.Sleep(time.Minute)
	s.mustStop(t)
	return f.state()
}

func TestReports_Gathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1300
		f := newFake()
		f.onReport = func(context.Context, int, *report) error { time.Sleep(time.Millisecond); return nil }
		st := reportMany(t, f, n, nil)
		if len(st.reports) != n || len(st.batches) < 3 || len(st.batches) > 6 || slices.Max(st.batches) > 500 {
			t.Errorf("%d reports in batches of %v, want %d in a few of at most 500", len(st.reports), st.batches, n)
		}
	})
}

// One report that is refused, and one that the server cannot take now, are nobody else's.
func TestReports_EachHasItsOwnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var mu sync.Mutex // calls go beside each other
		var refused, locked string
		tries := 0
		f.onReport = func(_ context.Context, n int, r *report) error {
			mu.Lock()
			defer mu.Unlock()
			switch n {
			case 7:
				refused = r.GetAttemptId()
			case 9:
				locked = r.GetAttemptId()
			}
			switch r.GetAttemptId() {
			case refused:
				return refuse(codes.FailedPrecondition, "LEASE_SUPERSEDED")
			case locked:
				if tries++; tries < 4 {
					return refuse(codes.Unavailable, "STORAGE_UNAVAILABLE")
				}
			}
			return nil
		}
		st := reportMany(t, f, 50, nil)
		if len(st.reports) != 49 || st.reportCalls != 50+3 {
			t.Errorf("%d of 50 reports were answered well, in %d tries; want 49 in 53", len(st.reports), st.reportCalls)
		}
		for i, r := range st.reports {
			if id := r.GetAttemptId(); id == refused || id == locked && i != 48 {
				t.Errorf("report %d is of the attempt that was to be refused, or to come last", i)
			}
		}
	})
}

// A call that fails as a whole because of one report is made anew in parts, until that is alone.
func TestReports_OneThatSpoilsACall(t *testing.T) {
	t.Parallel()
	for name, spoilt := range map[string]error{
		"fails":            status.Error(codes.Internal, "cannot be decoded"),
		"refused for good": status.Error(codes.InvalidArgument, "not understood"),
		"too large":        status.Error(codes.ResourceExhausted, "larger than max"),
		"hangs":            context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				var mu sync.Mutex // calls go beside each other
				var poison string
				poisoned := func(r *report) bool {
					mu.Lock()
					defer mu.Unlock()
					return r.GetAttemptId() == poison
				}
				spoil := func(ctx context.Context) error {
					if errors.Is(spoilt, context.DeadlineExceeded) {
						<-ctx.Done()
					}
					return spoilt
				}
				f.onReports = func(ctx context.Context, req *leaseholdv1.BatchReportAttemptsRequest) error {
					mu.Lock()
					if poison == "" { // it is in the first batch
						poison = req.GetReports()[0].GetAttemptId()
					}
					mu.Unlock()
					if slices.ContainsFunc(req.GetReports(), poisoned) {
						return spoil(ctx)
					}
					return nil
				}
				f.onReport = func(ctx context.Context, _ int, r *report) error {
					if poisoned(r) {
						return spoil(ctx)
					}
					return nil
				}
				st := reportMany(t, f, 400, nil)
				if len(st.reports) != 399 {
					t.Errorf("%d of 400 reports were answered well, in batches of %v, want 399", len(st.reports), st.batches)
				}
			})
		})
	}
}

// Calls that hang do not keep the others' reports.
func TestReports_HangingCallsAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(ctx context.Context, n int, _ *report) error {
			if n <= 2 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = 50
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		for range 50 {
			f.enqueue(lease("x", "1"))
		}
		time.Sleep(6 * time.Second)
		if n := len(f.state().reports); n != 48 {
			t.Errorf("%d reports within 6 s while 2 calls hang, want 48", n)
		}
		time.Sleep(20 * time.Second)
		if n := len(f.state().reports); n != 50 {
			t.Errorf("%d reports in the end, want 50", n)
		}
		s.mustStop(t)
	})
}

// Many large outputs at once stay below the limit of a message.
func TestReports_BelowTheLimitOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(context.Context, int, *report) error { time.Sleep(time.Millisecond); return nil }
		st := reportMany(t, f, 60, &payload{Body: &leaseholdv1.Payload_Data{Data: make([]byte, 300<<10)}})
		if len(st.reports) != 60 || len(st.batches) == 0 || slices.Max(st.batches) > 3 {
			t.Errorf("%d reports in batches of %v, want 60 of at most 3", len(st.reports), st.batches)
		}
		for _, r := range st.reports {
			if r.GetSucceeded() == nil {
				t.Errorf("report = %.200v, want a success", r)
			}
		}
	})
}

// A checkpoint that only the server knows to be wrong does not cost the attempt its outcome.
func TestReports_WithoutACheckpointThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(_ context.Context, _ int, r *report) error {
			if r.GetCheckpoint() != nil {
				return refuse(codes.InvalidArgument, "PAYLOAD_TOO_LARGE")
			}
			return nil
		}
		got := reportsOf(t, f, func(w *worker.Worker) {
			worker.HandleRaw(w, "x", func(_ context.Context, job *rawJob) (*payload, error) {
				return nil, errors.Join(job.SetCheckpoint(1), errors.New("no"))
			})
		})
		if len(got) != 1 || got[0].GetFailed().GetFailure().GetMessage() != "no" {
			t.Errorf("reports = %v, want the failure", got)
		}
	})
}
