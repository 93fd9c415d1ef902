package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// An execution that is found behind where it was, as after the failover of a standby that had not
// received all, is told anew. Caught: a watch that waits for a revision to come again.
func TestWatch_Rewound(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(2, 10)
		waits, resumes := s.watch(id, 10), s.watch(id, 10)
		time.Sleep(3 * time.Second)
		s.commit(id, -4)
		time.Sleep(3 * time.Second)
		tales := []*tale{waits, resumes, s.watch(id, 10)}
		for _, x := range tales {
			time.Sleep(2 * time.Second)
			x.expect("anew", 6)
			x.heard("a snapshot", 1, 2, 0)
		}
		s.commit(id, 1)
		s.end(id)
		for _, x := range tales {
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("at the end", 8)
		}
	})
}

// One that asks for what is beyond is told anew; those beside it are not.
func TestWatch_BeyondIsOnesOwnMatter(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		for range 50 {
			id := s.begin(1, 10)
			var good, beyond []*tale
			for _, after := range rand.Perm(8) {
				if after%2 == 0 {
					beyond = append(beyond, s.watch(id, 1<<60+int64(after)))
				} else {
					good = append(good, s.watch(id, int64(10-after/4)))
				}
				time.Sleep(rand.N(10 * time.Millisecond))
			}
			time.Sleep(3 * time.Second)
			s.end(id)
			for _, x := range append(good, beyond...) {
				if err := x.over(); err != nil {
					t.Error(err)
				}
				x.expect("at the end", 11)
			}
			for i := range good {
				good[i].heard("nothing anew", 0, 0, good[i].changes)
				beyond[i].heard("anew", 1, 1, 1)
			}
		}
	})
}

// After a restart all come back at once, to go on from where they were: they are looked up
// together. Caught: a read for each of them.
func TestWatch_AllComeBack(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		one := s.begin(3, 5)
		var tales []*tale
		for range 400 {
			tales = append(tales, s.watch(one, 5), s.watch(s.begin(1, 5), 4))
		}
		ended := s.begin(1, 5)
		s.end(ended)
		tales = append(tales, s.watch(ended, 5), s.watch(ended, 6))
		time.Sleep(10 * time.Second)
		moved, changes, reads := s.counts()
		if moved > 14 || changes > 14 || reads != 0 {
			t.Errorf("%d that come back cost %d looks, %d reads and %d snapshots", len(tales), moved, changes, reads)
		}
		for i, x := range tales[:800] {
			x.expect("they go on", 5)
			x.heard("what was missed", 0, 0, i%2)
			x.leave()
			_ = x.over() // it left
		}
		for _, x := range tales[800:] {
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("what has ended", 6)
		}
		s.nobody()
	})
}

// An execution that is removed while it is watched is not there any more.
func TestWatch_Removed(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		x := s.watch(id, 0)
		time.Sleep(5 * time.Second)
		s.remove(id)
		var missing *NotFoundError
		if err := x.over(); !errors.As(err, &missing) {
			t.Errorf("ended with %v", err)
		}
	})
}

// While the store is away watches wait, and go on when it is back; only a first read is refused.
// Caught: watches that end with the store.
func TestWatch_StoreAway(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1000, 1)
		whole, part := s.watch(id, 0), s.watch(id, 0, func(x *tale) { x.pause = func() time.Duration { return 5 * time.Second } })
		time.Sleep(7 * time.Second) // one waits for changes, the other has a part of its snapshot
		s.fail(errAway)
		other := s.begin(1, 1)
		for _, after := range []int64{0, 1} {
			var away *UnavailableError
			if err := s.watch(other, after).over(); !errors.As(err, &away) {
				t.Errorf("a first read, after %d: %v", after, err)
			}
		}
		time.Sleep(time.Hour)
		moved, changes, reads := s.counts()
		if total := moved + changes + reads; total < 3600 || total > 11_000 {
			t.Errorf("%d reads in an hour, want one or two a second", total)
		}
		s.fail(nil)
		s.end(id)
		for _, x := range []*tale{whole, part} {
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("all", 2)
			x.heard("one snapshot", 1, 1000, 1)
		}
	})
}

// There is a limit, and room again when one has left.
func TestWatch_Limit(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		s.watches.limit = 2
		first, second := s.watch(id, 0), s.watch(id, 1)
		synctest.Wait()
		var full *ExhaustedError
		if err := s.watch(id, 0).over(); !errors.As(err, &full) || full.Reason != ReasonTooManyStreams || full.Limit != 2 || full.RetryAfter <= 0 {
			t.Errorf("the third: %v", err)
		}
		first.leave()
		_ = first.over()
		third := s.watch(id, 0)
		time.Sleep(time.Second)
		third.expect("there is room again", 1)
		if s.Watchers() != 2 {
			t.Errorf("%d watches, want 2", s.Watchers())
		}
		s.end(id)
		_, _ = second.over(), third.over()
	})
}

// When the replica ends no watch goes on.
func TestWatch_EndsWithItsReplica(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{deeds: map[uuid.UUID]*deed{}}
		hub := newHub(c, slog.New(slog.DiscardHandler), 10)
		s := &scene{chronicle: c, Scheduler: &Scheduler{watches: hub}, t: t}
		ctx, cancel := context.WithCancel(t.Context())
		go hub.run(ctx)
		x := s.watch(s.begin(1, 1), 0)
		time.Sleep(time.Second)
		cancel()
		var away *UnavailableError
		if err := x.over(); !errors.As(err, &away) {
			t.Errorf("ended with %v", err)
		}
	})
}

// Whatever happens in whatever order, every watch is told every change once and in order: with
// hints that are lost, a store that fails, and readers of every pace that come and go.
func TestWatch_AnyOrder(t *testing.T) {
	t.Parallel()
	for range 10 {
		inScene(t, func(s *scene) {
			var ids []uuid.UUID
			var tales []*tale
			var of []uuid.UUID
			for range 1 + rand.IntN(8) {
				ids = append(ids, s.begin(rand.IntN(500), 1+rand.Int64N(5)))
			}
			pace := func(x *tale) {
				if limit := rand.N(2 * time.Second); rand.IntN(2) == 0 {
					x.pause = func() time.Duration { return rand.N(limit + 1) }
				}
			}
			for range 400 {
				id := ids[rand.IntN(len(ids))]
				switch rand.IntN(8) {
				case 0, 1:
					after := rand.Int64N(s.revision(id) + 1)
					tales, of = append(tales, s.watch(id, after, pace)), append(of, id)
				case 2, 3, 4:
					s.commit(id, 1+rand.Int64N(40))
				case 5:
					s.hear(HintChange)
				case 6:
					s.fail([]error{nil, nil, errAway}[rand.IntN(3)])
				case 7:
					if len(tales) > 0 && rand.IntN(4) == 0 {
						tales[rand.IntN(len(tales))].leave()
					}
				}
				time.Sleep(rand.N(60 * time.Millisecond))
			}
			s.fail(nil)
			for _, id := range ids {
				s.end(id)
			}
			time.Sleep(time.Hour)
			for i, x := range tales {
				var away *UnavailableError
				switch err := x.over(); {
				case err == nil:
					x.expect("all", s.revision(of[i]))
				case !errors.As(err, &away) && !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}
			s.nobody()
		})
	}
}
