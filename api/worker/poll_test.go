package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

type (
	leaseReq  = leaseholdv1.LeaseAttemptRequest
	leaseResp = leaseholdv1.LeaseAttemptResponse
)

func TestPoll_AsksOnlyForFreeSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Slots = 3
		w := worker.New(cfg)
		next := make(chan struct{})
		worker.HandleRaw(w, "x", func(context.Context, *rawJob) (*payload, error) {
			<-next
			return nil, nil
		})
		s := start(t, w)
		synctest.Wait()
		check := func(step string, polls int, asked int32, parked int) {
			t.Helper()
			synctest.Wait()
			st := f.state()
			if len(st.polls) != polls || st.polls[polls-1].GetMaxLeases() != asked || st.parked != parked {
				t.Errorf("%s: %d polls, the last for %d leases, %d parked; want %d, %d, %d",
					step, len(st.polls), st.polls[len(st.polls)-1].GetMaxLeases(), st.parked, polls, asked, parked)
			}
		}
		check("idle", 1, 3, 1)
		f.enqueue(lease("x", "1"))
		check("one runs", 2, 2, 1)
		f.enqueue(lease("x", "1"), lease("x", "1"), lease("x", "1"), lease("x", "1"))
		check("full", 2, 2, 0)
		next <- struct{}{}
		check("one ended, the next came", 3, 1, 0)
		for range 4 {
			next <- struct{}{}
			synctest.Wait()
		}
		if st := f.state(); len(st.reports) != 5 {
			t.Errorf("%d reports, want 5", len(st.reports))
		}
		ids := make(map[string]bool)
		for _, p := range f.state().polls {
			ids[p.GetRequestId()] = true
			if _, err := uuid.Parse(p.GetRequestId()); err != nil {
				t.Error(err)
			}
		}
		if len(ids) != len(f.state().polls) {
			t.Errorf("%d request ids in %d answered polls, want one each", len(ids), len(f.state().polls))
		}
		s.mustStop(t)
	})
}

func TestPoll_RepeatsTheSameRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			switch n {
			case 1:
				return nil, status.Error(codes.Unavailable, "away")
			case 2:
				return nil, refuse(codes.ResourceExhausted, "TOO_MANY_POLLS")
			case 3:
				return nil, status.Error(codes.Internal, "bug")
			default:
				return nil, nil
			}
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(5 * time.Second)
		f.enqueue(lease("x", "1"))
		synctest.Wait()
		st := f.state()
		if len(st.polls) != 5 {
			t.Fatalf("%d polls, want 5", len(st.polls))
		}
		for i, p := range st.polls {
			if same := p.GetRequestId() == st.polls[0].GetRequestId(); same != (i < 4) {
				t.Errorf("poll %d: same request_id as the first: %v", i+1, same)
			}
		}
		s.mustStop(t)
	})
}

// A call that the network swallowed is given up a little after its wait, and repeated.
func TestPoll_HangingCallIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		release := make(chan struct{})
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			if n == 1 {
				<-release
			}
			return nil, nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(31 * time.Second)
		st := f.state()
		if len(st.polls) != 2 || st.polls[0].GetRequestId() != st.polls[1].GetRequestId() {
			t.Errorf("polls = %v, want the same one twice", st.polls)
		}
		close(release)
		s.mustStop(t)
	})
}

func TestPoll_EmptyAnswersAreNoLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onPoll = func(int, *leaseReq) (*leaseResp, error) { return &leaseResp{}, nil }
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(time.Minute)
		if n := len(f.state().polls); n < 30 || n > 90 {
			t.Errorf("%d polls in a minute of empty answers, want one each second or two", n)
		}
		s.mustStop(t)
	})
}

func TestPoll_SlowWhileDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			if n <= 10 {
				return &leaseResp{Directive: leaseholdv1.Directive_DIRECTIVE_DRAIN}, nil
			}
			return nil, nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(30 * time.Second)
		if n := len(f.state().polls); n < 5 || n > 9 {
			t.Errorf("%d polls in 30 s while drained, want one each 4 or 5 s", n)
		}
		time.Sleep(30 * time.Second) // no longer drained
		f.enqueue(lease("x", "1"))
		synctest.Wait()
		if n := len(f.state().reports); n != 1 {
			t.Errorf("%d reports after the drain was lifted, want 1", n)
		}
		s.mustStop(t)
	})
}

func TestPoll_UnknownSessionRegistersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		forget := 0
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			if n > 1 && n <= 1+forget {
				return nil, refuse(codes.NotFound, "SESSION_NOT_FOUND")
			}
			return nil, nil
		}
		forget = 3
		f.onRegister = func(n int, _ *leaseholdv1.RegisterWorkerRequest, _ *leaseholdv1.RegisterWorkerResponse) error {
			if n == 2 {
				return status.Error(codes.PermissionDenied, "for a moment")
			}
			return nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", func(ctx context.Context, _ *rawJob) (*payload, error) {
			time.Sleep(5 * time.Second)
			return nil, ctx.Err() // the handler is not touched
		})
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(20 * time.Second)
		st := f.state()
		if len(st.registers) != 5 || len(st.reports) != 1 || st.reports[0].GetSucceeded() == nil {
			t.Fatalf("%d registrations, reports %v; want 1 + 3 and a repeated one, and a success", len(st.registers), st.reports)
		}
		for i, r := range st.registers {
			if want := "made-by-the-server"; i > 0 && r.GetName() != want {
				t.Errorf("registration %d under the name %q, want %q", i+1, r.GetName(), want)
			}
			if same := i > 0 && r.GetRequestId() == st.registers[i-1].GetRequestId(); same != (i == 2) {
				t.Errorf("registration %d: same request_id as before: %v", i+1, same)
			}
		}
		last := st.polls[len(st.polls)-1]
		if last.GetSessionId() == st.polls[0].GetSessionId() || last.GetRequestId() == st.polls[1].GetRequestId() {
			t.Error("the last poll bears the old session or request")
		}
		s.mustStop(t)
	})
}

// Another process took the name: handlers may finish, then Run says so and leaves the session
// alone.
func TestPoll_SupersededIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			if n > 1 {
				return nil, refuse(codes.FailedPrecondition, "SESSION_SUPERSEDED")
			}
			return nil, nil
		}
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Name = "w1"
		w := worker.New(cfg)
		worker.HandleRaw(w, "x", func(ctx context.Context, _ *rawJob) (*payload, error) {
			time.Sleep(5 * time.Second)
			return nil, ctx.Err()
		})
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		if err := <-s.result; !errors.Is(err, worker.ErrSuperseded) {
			t.Errorf("Run = %v, want ErrSuperseded", err)
		}
		st := f.state()
		if len(st.reports) != 1 || st.reports[0].GetSucceeded() == nil {
			t.Errorf("reports = %v, want the success of the running handler", st.reports)
		}
		if st.drained != 0 || st.deregisters != 0 || len(st.registers) != 1 {
			t.Errorf("%d drained, %d deregistered, %d registered; want 0, 0, 1", st.drained, st.deregisters, len(st.registers))
		}
		s.stop()
	})
}

// All servers are away for a minute (B109). The connection is one that the caller dialed
// without a thought: gRPC's own backoff would take up to two minutes.
func TestPoll_BackSoonAfterAnOutage(t *testing.T) {
	for range 5 {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			p, conn := connect(t, f)
			w := worker.New(config(conn))
			worker.HandleRaw(w, "x", returns(nil, nil))
			s := start(t, w)
			synctest.Wait()
			p.down()
			time.Sleep(time.Minute)
			p.up()
			f.enqueue(lease("x", "1"))
			time.Sleep(11 * time.Second)
			if n := len(f.state().reports); n != 1 {
				t.Errorf("%d reports 11 s after the servers came back, want 1", n)
			}
			s.mustStop(t)
		})
	}
}

func TestRegister_WaitsForAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p, conn := connect(t, f)
		p.down()
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(time.Minute)
		p.up()
		time.Sleep(11 * time.Second)
		if n := len(f.state().registers); n != 1 {
			t.Errorf("%d registrations, want 1", n)
		}
		s.mustStop(t)

		p.down() // and a stop without a server is a stop, too
		s = start(t, w)
		time.Sleep(time.Minute)
		s.mustStop(t)
	})
}

func TestPoll_HandsBackWhatItCannotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onPoll = func(n int, _ *leaseReq) (*leaseResp, error) {
			if n > 1 {
				return nil, nil
			}
			time.Sleep(12 * time.Second) // so late is the answer
			resp := &leaseResp{}
			for i, seconds := range []int{10, 30, 30, 30, 30} {
				l := lease("x", "1")
				if i == 1 {
					l.Capability = "of another"
				}
				l.StepName = []string{"late", "unknown", "runs", "runs", "too many"}[i]
				l.AttemptId, l.LeaseVersion, l.LeaseDuration = uuid.NewString(), int64(i+1), durationpb.New(time.Duration(seconds)*time.Second)
				resp.Leases = append(resp.Leases, l)
			}
			resp.Leases = append(resp.Leases, resp.Leases[2]) // a repeat
			return resp, nil
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		ran := make(chan int64, 9)
		worker.HandleRaw(w, "x", func(_ context.Context, job *rawJob) (*payload, error) {
			ran <- job.LeaseVersion()
			time.Sleep(time.Second)
			return nil, nil
		})
		s := start(t, w)
		time.Sleep(20 * time.Second)
		if len(ran) != 2 {
			t.Errorf("%d handlers ran, want 2", len(ran))
		}
		released := make(map[int64]*leaseholdv1.ReportAttemptRequest_Released)
		for _, r := range f.state().reports {
			if r.GetReleased() != nil {
				released[r.GetLeaseVersion()] = r.GetReleased()
			}
		}
		if len(released) != 3 || released[1] == nil || released[2] == nil || released[5] == nil {
			t.Errorf("handed back %v, want 1 (late), 2 (no handler) and 5 (no slot)", released)
		}
		if released[2].GetNotBeforeDelay().AsDuration() < time.Second {
			t.Error("what it does not offer would come back at once")
		}
		s.mustStop(t)
	})
}
