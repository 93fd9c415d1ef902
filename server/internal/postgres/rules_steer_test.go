package postgres_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// slow makes every dispatch last so long, in the middle of its transaction.
func (s *stand) slow(d time.Duration) {
	s.t.Helper()
	s.exec(fmt.Sprintf(`CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(%f); RETURN NULL; END $$`, d.Seconds()))
	s.exec(`CREATE TRIGGER dawdle AFTER INSERT ON attempts FOR EACH STATEMENT EXECUTE FUNCTION dawdle()`)
}

func (s *stand) pause(capability string) error {
	_, err := s.store.Pause(s.t.Context(), scheduler.CapabilityKey{Namespace: "default", Name: capability}, "")
	return err
}

func (s *stand) drain(kind scheduler.DrainKind, value string) error {
	_, err := s.store.SetDrain(s.t.Context(), scheduler.Drain{Namespace: "default", Kind: kind, Value: value, Draining: true})
	return err
}

// A pause and a drain are answered when the dispatches under way have committed, and what was
// claimed before them is not granted after. Caught: each without its wait.
func TestSteer_WaitsForTheDispatchUnderWay(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"pause", "drain of a worker", "drain of a node", "drain of a version"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.slow(1500 * time.Millisecond)
			s.enqueue(spec("a", 10))
			w := worker{reg: scheduler.Registration{Namespace: "default", Name: "w", Node: "n", Version: "v", Capabilities: []string{"a"}, Slots: 10}}
			var err error
			if w.Session, err = s.store.Register(t.Context(), w.reg, uuid.New(), uuid.New()); err != nil {
				t.Fatal(err)
			}
			first, early := s.claim(w, 1)
			second, late := s.claim(w, 1)
			dispatched := async(func() error {
				done, err := s.store.Dispatch(t.Context(), assign(w, first, early.Requests, time.Hour))
				if err == nil && len(done.Granted) != 1 {
					err = errors.New("the dispatch under way granted nothing")
				}
				return err
			})
			s.eventually("the dispatch is under way", func() bool {
				return query[int](s, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`) == 1
			})
			switch what {
			case "pause":
				err = s.pause("a")
			case "drain of a worker":
				err = s.drain(scheduler.DrainWorker, w.WorkerID.String())
			case "drain of a node":
				err = s.drain(scheduler.DrainNode, "n")
			default:
				err = s.drain(scheduler.DrainVersion, "v")
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := query[int](s, `SELECT count(*) FROM leases`); n != 1 {
				t.Errorf("%d leases when the answer came: the dispatch under way was not waited for", n)
			}
			if err := <-dispatched; err != nil {
				t.Fatal(err)
			}
			done, err := s.store.Dispatch(t.Context(), assign(w, second, late.Requests, time.Hour))
			if err != nil || len(done.Granted) != 0 {
				t.Errorf("a later dispatch: %v, %v", done, err)
			}
			s.sane()
		})
	}
}

// Dispatches that overlap without end do not put a pause off. Caught: dispatch with FOR SHARE, for
// which the pause's own write has to wait: nobody queues behind it.
func TestPause_OverlappingDispatchesDoNotPutItOff(t *testing.T) {
	t.Parallel()
	s := standOn(t, databases.New(t), postgres.Config{MaxConns: 20})
	s.slow(150 * time.Millisecond)
	var batch []scheduler.NewExecution // one step each: a dispatch holds its execution
	for range 2000 {
		batch = append(batch, newExecution(spec("a", 1)))
	}
	if _, err := s.store.Enqueue(t.Context(), batch, true, true); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer sync.OnceFunc(func() { close(stop) })()
	for i := range 12 {
		w := s.register(string(rune('a'+i)), "a", 1000)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id, claimed := s.claim(w, 1)
				if len(claimed.Requests) == 0 {
					return // it is paused
				}
				if _, err := s.store.Dispatch(t.Context(), assign(w, id, claimed.Requests, time.Hour)); err != nil {
					t.Errorf("dispatch: %v", err)
					return
				}
			}
		})
	}
	s.eventually("all are at work", func() bool { return query[int](s, `SELECT count(*) FROM leases`) > 30 })
	began := time.Now()
	if err := s.pause("a"); err != nil {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	n := query[int](s, `SELECT count(*) FROM leases`)
	all.Wait()
	if after := query[int](s, `SELECT count(*) FROM leases`); after != n {
		t.Errorf("%d leases when the pause was answered, then %d", n, after)
	}
}

// A replica that froze with a lock in hand makes a pause late, not lost: PostgreSQL cuts it off.
func TestSteer_AFrozenReplicaIsOutwaited(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 1)
	s.enqueue(spec("a", 1))
	frozen, err := s.store.Pool().Begin(t.Context()) // with the service's own settings
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = frozen.Rollback(t.Context()) }()
	for _, lock := range []string{`SELECT id FROM capabilities FOR KEY SHARE`, `SELECT id FROM workers FOR NO KEY UPDATE`} {
		if _, err := frozen.Exec(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
	}
	drained := async(func() error { return s.drain(scheduler.DrainWorker, w.WorkerID.String()) })
	if err := s.pause("a"); err != nil {
		t.Errorf("pause: %v", err)
	}
	if err := <-drained; err != nil {
		t.Errorf("drain: %v", err)
	}
}

// A drain counts its workers and their leases, and the free slots that are counted for
// capabilities are those that a claim finds.
func TestCapacity_IsWhatAClaimFinds(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 30))
	var offers []task.Offer
	for i := range 6 {
		w := s.register(string(rune('a'+i)), "a", 2+i)
		s.lease(w, i%3, time.Hour)
		offers = append(offers, w.offer(10))
		switch i {
		case 1:
			if err := s.drain(scheduler.DrainWorker, w.WorkerID.String()); err != nil {
				t.Fatal(err)
			}
		case 2:
			if _, err := s.store.Drain(t.Context(), w.WorkerID, w.SessionID); err != nil {
				t.Fatal(err)
			}
		case 3:
			if _, err := s.store.Deregister(t.Context(), w.WorkerID, w.SessionID, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	claimed, err := s.store.Claim(t.Context(), scheduler.ClaimCommand{ClaimID: uuid.New(), Offers: offers, Limit: 1, Expires: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	free := 0
	for _, n := range claimed.Free {
		free += n
	}
	views, err := s.store.ListCapabilities(t.Context(), scheduler.CapabilityQuery{Namespace: "default", Limit: 10})
	if err != nil || len(views) != 1 {
		t.Fatalf("%v, %v", views, err)
	}
	v := views[0]
	if int(v.FreeSlots) != free || v.LiveWorkers != 5 || v.DrainedWorkers != 2 {
		t.Errorf("%d free slots of %d workers, %d drained; a claim found %d", v.FreeSlots, v.LiveWorkers, v.DrainedWorkers, free)
	}
}
