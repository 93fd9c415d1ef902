package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// sleeper is a handler that works for as long as its input says, unless its context ends.
func sleeper(ctx context.Context, job *worker.Job[time.Duration]) (struct{}, error) {
	select {
	case <-time.After(job.Input):
	case <-ctx.Done():
		return struct{}{}, ctx.Err()
	}
	if job.StepName() == "fails" {
		return struct{}{}, errors.New("no")
	}
	return struct{}{}, nil
}

// Three attempts run when the worker is stopped (B21): of 2 s, of 60 s, and one that fails at 3 s.
func TestStop_GraceThenHandBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.LeaseDuration = 3 * time.Second // must be renewed within the grace
		w := worker.New(cfg)
		worker.Handle(w, "sleep", sleeper)
		s := start(t, w)
		long, short, fails := lease("sleep", "60000000000"), lease("sleep", "2000000000"), lease("sleep", "3000000000")
		fails.StepName = "fails"
		f.enqueue(long, short, fails)
		synctest.Wait()
		polls := len(f.state().polls)
		begun := time.Now()
		s.stop()
		synctest.Wait()
		f.enqueue(lease("sleep", "1")) // nobody asks any more
		if st := f.state(); st.parked != 0 || st.drained != 1 {
			t.Errorf("%d parked polls, %d drained right after the stop; want 0, 1", st.parked, st.drained)
		}
		if err := <-s.result; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if took := time.Since(begun); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("stopped after %v, want 10 to 11 s", took)
		}
		st := f.state()
		if len(st.reports) != 3 || len(st.polls) != polls || st.deregisters != 1 {
			t.Fatalf("%d reports, %d polls after the stop, %d deregistered; want 3, 0, 1", len(st.reports), len(st.polls)-polls, st.deregisters)
		}
		for i, want := range []struct {
			id string
			ok bool
		}{
			{short.AttemptId, st.reports[0].GetSucceeded() != nil},
			{fails.AttemptId, st.reports[1].GetFailed() != nil},
			{long.AttemptId, st.reports[2].GetReleased() != nil && st.reports[2].GetReleased().GetNotBeforeDelay() == nil},
		} {
			if st.reports[i].GetAttemptId() != want.id || !want.ok {
				t.Errorf("report %d = %v", i, st.reports[i])
			}
		}
		if last := st.renewedAt[len(st.renewedAt)-1]; last.Sub(begun) < 8*time.Second {
			t.Errorf("last renewal %v after the stop, want them to go on", last.Sub(begun))
		}
	})
}

func TestStop_AtOnceWhenNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.Handle(w, "sleep", sleeper)
		s := start(t, w)
		synctest.Wait()
		begun := time.Now()
		s.mustStop(t)
		if took := time.Since(begun); took != 0 {
			t.Errorf("stopped after %v", took)
		}
	})
}

func TestStop_CauseAndLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Grace = -1
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", func(ctx context.Context, job *rawJob) (*payload, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), worker.ErrStopping) {
				t.Errorf("cause = %v, want ErrStopping", context.Cause(ctx))
			}
			if job.StepName() == "finishes" {
				return nil, nil
			}
			return nil, context.Cause(ctx)
		})
		s := start(t, w)
		finishes := lease("x", "1")
		finishes.StepName = "finishes"
		f.enqueue(finishes, lease("x", "1"))
		synctest.Wait()
		s.mustStop(t)
		var succeeded, released int
		for _, r := range f.state().reports {
			if r.GetSucceeded() != nil {
				succeeded++
			}
			if r.GetReleased() != nil {
				released++
			}
		}
		if succeeded != 1 || released != 1 {
			t.Errorf("reports = %v, want one success and one handed back", f.state().reports)
		}
	})
}

// A handler that is deaf to its context does not keep Run: its attempt is handed back.
func TestStop_LeavesDeafHandlersBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		synctest.Wait()
		begun := time.Now()
		s.mustStop(t)
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("stopped after %v, want at most 11 s", took)
		}
		st := f.state()
		if len(st.reports) != 1 || st.reports[0].GetReleased() == nil || st.deregisters != 1 {
			t.Errorf("reports %v, %d deregistered; want it handed back, 1", st.reports, st.deregisters)
		}
		time.Sleep(time.Minute) // the handler ends, and nothing comes of it
		if n := f.state().reportCalls; n != 1 {
			t.Errorf("%d reports after Run returned", n-1)
		}
	})
}

// No server answers anything: Run returns all the same, in time.
func TestStop_BoundedWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p, conn := connect(t, f)
		f.onRenew = hang
		f.onReport = func(ctx context.Context, _ int, _ *report) error { <-ctx.Done(); return ctx.Err() }
		w := worker.New(config(conn))
		worker.Handle(w, "sleep", sleeper)
		s := start(t, w)
		f.enqueue(lease("sleep", "60000000000"), lease("sleep", "1"))
		synctest.Wait()
		begun := time.Now()
		time.AfterFunc(5*time.Second, p.down)
		s.mustStop(t)
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("stopped after %v, want at most 11 s", took)
		}
	})
}

// stopOnGrant is a connection that stops the worker between a grant's arrival and its being
// looked at.
type stopOnGrant struct {
	grpc.ClientConnInterface
	stop func()
}

func (c *stopOnGrant) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if resp, ok := reply.(*leaseResp); ok && err == nil && len(resp.GetLeases()) > 0 {
		c.stop()
	}
	return err
}

// Leases whose grant crossed the stop are handed back, not begun.
func TestStop_GrantThatCrossesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		var s *started
		w := worker.New(config(&stopOnGrant{ClientConnInterface: conn, stop: func() { s.stop() }}))
		worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
			t.Error("the handler ran")
			return nil, nil
		})
		s = start(t, w)
		synctest.Wait()
		f.enqueue(lease("x", "1"))
		if err := <-s.result; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if st := f.state(); len(st.reports) != 1 || st.reports[0].GetReleased() == nil {
			t.Errorf("reports = %v, want it handed back", st.reports)
		}
	})
}

// stopOnTheWay is a connection that stops the worker while a grant is on its way.
type stopOnTheWay struct {
	grpc.ClientConnInterface
	stop func()
}

func (c *stopOnTheWay) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if resp, ok := reply.(*leaseResp); ok && err == nil && len(resp.GetLeases()) > 0 {
		c.stop()
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return err
}

// A grant that the server has sent when the worker is told to stop is awaited and handed back: it
// would run out, and count as a try of a step that nobody has begun. Caught: a stop that cuts
// polls off.
func TestStop_GrantOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		var s *started
		cfg := config(&stopOnTheWay{ClientConnInterface: conn, stop: func() { s.stop() }})
		cfg.Grace = -1
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
			t.Error("the handler ran")
			return nil, nil
		})
		s = start(t, w)
		synctest.Wait()
		f.enqueue(lease("x", "1"))
		if err := <-s.result; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if st := f.state(); len(st.reports) != 1 || st.reports[0].GetReleased() == nil || st.drained != 1 || st.deregisters != 1 {
			t.Errorf("reports = %v, %d drained, %d deregistered; want it handed back, 1, 1", st.reports, st.drained, st.deregisters)
		}
	})
}

func TestRegister_RefusedLaterIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRegister = func(n int, _ *leaseholdv1.RegisterWorkerRequest, _ *leaseholdv1.RegisterWorkerResponse) error {
			if n < 4 {
				return status.Error(codes.Unavailable, "away")
			}
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.Handle(w, "sleep", sleeper)
		s := start(t, w)
		time.Sleep(5 * time.Second)
		st := f.state()
		if len(st.registers) != 4 || st.registers[0].GetRequestId() != st.registers[3].GetRequestId() || st.parked != 1 {
			t.Errorf("%d registrations, %d parked; want the same one 4 times, then a poll", len(st.registers), st.parked)
		}
		s.mustStop(t)
	})
}
