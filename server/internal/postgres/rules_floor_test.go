package postgres_test

import (
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

func (s *stand) floor(w worker) int64 {
	s.t.Helper()
	return query[int64](s, "SELECT leases_from FROM worker_states WHERE id = $1", w.WorkerID)
}

// lives fails unless every way of counting a worker's leases says so many.
func (s *stand) lives(w worker, want int) {
	s.t.Helper()
	if n := query[int](s, "SELECT count(*) FROM leases WHERE worker_id = $1", w.WorkerID); n != want {
		s.t.Fatalf("the worker has %d leases, want %d", n, want)
	}
	_, claimed := s.claim(w, w.reg.Slots+10)
	if free := claimed.Free[w.WorkerID]; free != w.reg.Slots-want {
		s.t.Errorf("the claim counts %d free slots of %d, want %d to be taken", free, w.reg.Slots, want)
	}
	view, err := s.store.GetWorker(s.t.Context(), w.WorkerID)
	if err != nil || view.Standing.Live != want || len(view.Attempts) != want {
		s.t.Errorf("GetWorker tells of %d leases and %d attempts (%v), want %d", view.Standing.Live, len(view.Attempts), err, want)
	}
}

// work leases and reports until a worker was granted n.
func (s *stand) work(w worker, n int) {
	s.t.Helper()
	for n > 0 {
		s.enqueue(spec(w.reg.Capabilities[0], min(n, 100)))
		leases := s.lease(w, min(n, 100), time.Minute)
		if len(leases) == 0 {
			s.t.Fatal("no leases")
		}
		s.succeed(leases)
		n -= len(leases)
	}
}

func (s *stand) succeed(leases []scheduler.LeaseView) {
	s.t.Helper()
	reports := make([]scheduler.Report, len(leases))
	for i, l := range leases {
		reports[i] = success(l)
	}
	results, err := s.store.Report(s.t.Context(), reports, false)
	if err != nil || firstErr(results) != nil {
		s.t.Fatalf("report: %v, %v", err, firstErr(results))
	}
}

// A floor is moved from time to time, and never past a lease that lives: all that count a worker's
// leases begin at it. Caught: a floor at the newest lease, or at the first version of the dispatch
// that moves it, while an older lease lives; one that is never moved.
func TestFloor_NoLiveLeaseIsBelow(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 150)
	s.work(w, 1200)
	first := s.floor(w)
	if first == 0 {
		t.Fatal("after 1,200 grants there is no floor")
	}
	s.enqueue(spec("a", 30))
	held := s.lease(w, 30, time.Hour)
	s.work(w, 1200)
	if floor := s.floor(w); floor <= first || floor > query[int64](s, "SELECT min(lease_version) FROM leases") {
		t.Errorf("the floor is %d after %d: want it moved, and not above the %d leases that live", floor, first, len(held))
	}
	s.lives(w, len(held))
	s.succeed(held)
	s.work(w, 1200)
	if floor := s.floor(w); floor <= held[len(held)-1].LeaseVersion {
		t.Errorf("the floor %d stays at leases that have ended", floor)
	}
	s.lives(w, 0)
	if err := s.store.Tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := query[int](s, "SELECT count(*) FROM lease_floors"); n != 1 {
		t.Errorf("%d floors are left, want the newest", n)
	}
	s.sane()
}

// A database that was restored from a dump may draw lower versions than before: floors of that
// history hold for none of them. Caught: floors that are not dropped (the worker gets more than its slots).
func TestFloor_OfAnotherHistory(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 20)
	s.exec("INSERT INTO lease_floors (worker_id, lease_version) VALUES ($1, 1), ($1, 1::bigint << 50)", w.WorkerID)
	s.enqueue(spec("a", 100))
	got := 0
	for range 5 {
		got += len(s.lease(w, 10, time.Minute))
	}
	if got != 20 {
		t.Errorf("a worker of 20 slots got %d leases", got)
	}
	s.lives(w, 20)
}

// Workers that go take their floors along.
func TestFloor_GoesWithItsWorker(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 150)
	s.work(w, 600)
	s.exec("DELETE FROM workers WHERE id = $1", w.WorkerID)
	if n := query[int](s, "SELECT count(*) FROM lease_floors"); n != 0 {
		t.Errorf("%d floors are left of a worker that is gone", n)
	}
}

// Worker by worker, as while many dead rows are there, a sweep finds what is over just as in
// the whole table. Caught: one that looks at the first worker only; at workers with a session only.
func TestSweep_WorkerByWorker(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.store.SweepByWorkers()
	s.work(s.register("w0", "a", 150), 600)
	var over []scheduler.LeaseView
	for _, name := range []string{"w0", "w1", "w2", "w3"} {
		w := s.register(name, "a", 150)
		s.enqueue(spec("a", 6))
		over = append(over, s.lease(w, 3, time.Minute)...)
		s.lease(w, 3, time.Hour)
		s.exec("UPDATE workers SET session_id = NULL WHERE id = $1 AND name = 'w2'", w.WorkerID)
	}
	if start := s.beginSweep(time.Nanosecond); !start.Mine || start.LeasesOver {
		t.Errorf("nothing is over yet: %+v", start)
	}
	for _, l := range over {
		s.exec("UPDATE leases SET expires_at = now() WHERE attempt_id = $1", l.AttemptID)
	}
	if start := s.beginSweep(time.Nanosecond); !start.LeasesOver {
		t.Errorf("leases are over: %+v", start)
	}
	if swept, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{}); err != nil || swept.Done != len(over) {
		t.Errorf("swept %+v, %v; want %d", swept, err, len(over))
	}
	if start := s.beginSweep(time.Nanosecond); start.LeasesOver {
		t.Errorf("nothing is over any more: %+v", start)
	}
	s.sane()
}

// Timers that are set, or were held up, are found by the sweep after, however far it has looked;
// one that is set in the past by a look in full. Caught: a frontier that passes a timer that
// is left, or a transaction under way; no looks in full.
func TestTimerFrontier_HidesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	swept := func() bool { return s.beginSweep(time.Nanosecond).TimersDue }
	s.eventually("the frontier is known", func() bool { return !swept() && !s.store.TimersFrom().IsZero() })
	put := `INSERT INTO timers (execution_id, kind, step_id, fires_at) VALUES (gen_random_uuid(), 'START', gen_random_uuid(), `
	s.exec(put + "now() + interval '50 milliseconds')")
	s.eventually("a timer that was set", swept)
	time.Sleep(300 * time.Millisecond) // the horizon moves
	for range 2 {
		if !swept() {
			t.Error("a timer that is due is not found again")
		}
	}
	s.exec("DELETE FROM timers")
	started, commit := make(chan struct{}), make(chan struct{})
	other := s.open(postgres.Config{AroundCommit: func(name string, done bool) {
		if name == "enqueue" && !done {
			close(started)
			<-commit
		}
	}})
	e := spec("a", 1)
	e.Timeout = time.Millisecond
	committed := async(func() error {
		_, err := other.Enqueue(t.Context(), []scheduler.NewExecution{newExecution(e)}, false, true)
		return err
	})
	<-started
	for range 3 {
		time.Sleep(100 * time.Millisecond) // the horizon would move
		if swept() {
			t.Error("a timer is due that nobody committed")
		}
	}
	close(commit)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if !swept() {
		t.Error("a timer of a transaction that was under way is not found")
	}
	s.exec("DELETE FROM timers")
	swept()
	s.exec(put + "now() - interval '1 hour')")
	s.eventually("a timer of the past", swept)
}
