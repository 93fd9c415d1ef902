package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// replicas are servers that share their state, as through a database.
func replicas(t *testing.T, f *fakeServer, names ...string) map[string]*pipe {
	t.Helper()
	pipes := make(map[string]*pipe, len(names))
	for _, name := range names {
		pipes[name] = newPipe(t, f)
	}
	return pipes
}

// usedBy is the replica that the worker uses, and another one.
func usedBy(t *testing.T, pipes map[string]*pipe) (used, other *pipe) {
	t.Helper()
	for _, p := range pipes {
		if p.reached() > 0 {
			used = p
		} else {
			other = p
		}
	}
	if used == nil || other == nil {
		t.Fatal("the worker does not use exactly one server")
	}
	return used, other
}

// A replica goes away: the poll that it cut is repeated through another one, at once and as
// the same poll.
func TestServers_PollMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pipes := replicas(t, f, "a", "b")
		w := worker.New(over(pipes))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(time.Second)
		used, _ := usedBy(t, pipes)
		used.down()
		time.Sleep(time.Second)
		st := f.state()
		if len(st.polls) != 2 || st.polls[0].GetRequestId() != st.polls[1].GetRequestId() || st.parked != 1 {
			t.Errorf("%d polls, %d parked; want the same one through both servers", len(st.polls), st.parked)
		}
		if len(st.registers) != 1 {
			t.Errorf("%d registrations, want the first alone", len(st.registers))
		}
		if err := w.Health(); err != nil {
			t.Errorf("health = %v", err)
		}
		f.enqueue(lease("x", "1"))
		synctest.Wait()
		if n := len(f.state().reports); n != 1 {
			t.Errorf("%d reports through the other server, want 1", n)
		}
		s.mustStop(t)
	})
}

// A replica freezes, with its connections open: leases of 3 s do not notice.
func TestServers_RenewalsGoPastAFrozenOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pipes := replicas(t, f, "a", "b", "c")
		cfg := over(pipes)
		cfg.LeaseDuration = 3 * time.Second
		w := worker.New(cfg)
		ends := make(chan ended, 1)
		worker.HandleRaw(w, "x", untilEnd(ends))
		s := start(t, w)
		f.enqueue(lease("x", "1"))
		time.Sleep(time.Second)
		for range 2 { // until one is left
			for _, p := range pipes {
				if p.reached() > 0 && p.thawed == nil {
					p.freeze()
				}
			}
			time.Sleep(20 * time.Second)
		}
		select {
		case e := <-ends:
			t.Fatalf("context ended after %v with %v", e.after, e.cause)
		default:
		}
		for _, p := range pipes {
			p.thaw()
		}
		s.mustStop(t)
	})
}

// A poll that a replica holds, which goes on to answer pings, is given up after its own limit.
func TestServers_PollLeavesAHangingOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pipes := replicas(t, f, "a", "b")
		w := worker.New(over(pipes))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(time.Second)
		used, _ := usedBy(t, pipes)
		used.freeze()
		time.Sleep(31 * time.Second)
		f.enqueue(lease("x", "1"))
		time.Sleep(5 * time.Second)
		if st := f.state(); len(st.reports) != 1 {
			t.Errorf("%d reports with one server frozen, want 1", len(st.reports))
		}
		s.mustStop(t)
	})
}

// A worker goes back to the server that is the first in its order, so that a rolling restart
// does not leave all workers with one server.
func TestServers_ComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pipes := replicas(t, f, "a", "b")
		w := worker.New(over(pipes))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		time.Sleep(time.Second)
		first, second := usedBy(t, pipes)
		first.down()
		time.Sleep(2 * time.Minute)
		calls := first.reached()
		if second.reached() == 0 || first.reached() != calls {
			t.Error("the second server was not used while the first was down")
		}
		first.up()
		time.Sleep(2 * time.Minute)
		if first.reached() == calls {
			t.Error("the worker did not come back to its first server")
		}
		s.mustStop(t)
	})
}

// All servers are away: tries become rarer, but a worker is back within half a minute; its
// health tells of it meanwhile.
func TestServers_AllAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		pipes := replicas(t, f, "a", "b", "c")
		w := worker.New(over(pipes))
		worker.HandleRaw(w, "x", returns(nil, nil))
		if err := w.Health(); !errors.Is(err, worker.ErrNotRunning) {
			t.Errorf("health before Run = %v", err)
		}
		s := start(t, w)
		time.Sleep(time.Second)
		if err := w.Health(); err != nil {
			t.Errorf("health = %v", err)
		}
		for _, p := range pipes {
			p.down()
		}
		time.Sleep(10 * time.Minute)
		if err := w.Health(); err == nil || w.Stats().FailingSince.IsZero() || status.Code(err) != codes.Unavailable {
			t.Errorf("health = %v with all servers down", err)
		}
		f.enqueue(lease("x", "1"))
		for _, p := range pipes {
			p.up()
		}
		time.Sleep(backoffMost)
		if st := f.state(); len(st.reports) != 1 {
			t.Errorf("%d reports %v after the servers came back, want 1", len(st.reports), backoffMost)
		}
		if err := w.Health(); err != nil {
			t.Errorf("health after = %v", err)
		}
		s.mustStop(t)
	})
}

// backoffMost is the longest wait between two tries, and time for the connection.
const backoffMost = 11 * time.Second

// A server that answers UNAVAILABLE, because its database is away for it alone, is passed over.
func TestServers_UnavailableOneIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := newFake(), newFake()
		bad.onRegister = func(int, *leaseholdv1.RegisterWorkerRequest, *leaseholdv1.RegisterWorkerResponse) error {
			return refuse(codes.Unavailable, "STORAGE_UNAVAILABLE")
		}
		bad.onPoll = func(int, *leaseholdv1.LeaseAttemptRequest) (*leaseResp, error) {
			return nil, refuse(codes.Unavailable, "STORAGE_UNAVAILABLE")
		}
		w := worker.New(over(map[string]*pipe{"bad": newPipe(t, bad), "good": newPipe(t, good)}))
		worker.HandleRaw(w, "x", returns(nil, nil))
		s := start(t, w)
		good.enqueue(lease("x", "1"))
		time.Sleep(5*time.Minute + 10*time.Second) // in the middle of a poll
		if st := good.state(); len(st.reports) != 1 || st.parked != 1 {
			t.Errorf("%d reports, %d parked at the good server; want 1, 1", len(st.reports), st.parked)
		}
		if st := bad.state(); len(st.polls)+len(st.registers) > 30 {
			t.Errorf("%d calls to the bad server in 5 minutes", len(st.polls)+len(st.registers))
		}
		s.mustStop(t)
	})
}

func TestStats_CountOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onReport = func(_ context.Context, _ int, r *report) error {
			if r.GetFailed().GetFailure().GetMessage() == "refused" {
				return refuse(codes.FailedPrecondition, "LEASE_EXPIRED")
			}
			return nil
		}
		w := worker.New(over(map[string]*pipe{"a": newPipe(t, f)}))
		worker.Handle(w, "x", func(_ context.Context, job *worker.Job[string]) (string, error) {
			switch job.Input {
			case "ok":
				return "", nil
			case "release":
				return "", worker.Release("no", 0)
			default:
				return "", errors.New(job.Input)
			}
		})
		if st := w.Stats(); st != (worker.Stats{Slots: 4}) {
			t.Errorf("stats before Run = %+v", st)
		}
		s := start(t, w)
		for _, how := range []string{"ok", "ok", "ok", "release", "fails", "fails", "refused"} {
			f.enqueue(lease("x", fmt.Sprintf("%q", how)))
		}
		time.Sleep(time.Second)
		st := w.Stats()
		if !st.Running || st.WorkerID == "" || st.SessionID == "" || st.Name != "made-by-the-server" ||
			st.Server != "passthrough:///a" || st.LastAnswer.IsZero() || st.Busy != 0 {
			t.Errorf("stats = %+v", st)
		}
		if got, want := [5]int64{st.Leased, st.Succeeded, st.Released, st.Failed, st.Unreported}, [5]int64{7, 3, 1, 2, 1}; got != want {
			t.Errorf("leased, succeeded, released, failed, unreported = %v, want %v", got, want)
		}
		s.mustStop(t)
		if w.Stats().Running || !errors.Is(w.Health(), worker.ErrNotRunning) {
			t.Error("it runs after Run returned")
		}
	})
}
