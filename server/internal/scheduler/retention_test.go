package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// shelf is a store of things by age: each can be removed from a moment on. It keeps one
// position's worth of seconds for each.
type shelf struct {
	mu      sync.Mutex // of what follows, in calls of several purgers
	now     func() time.Time
	age     []time.Duration // of each thing, when it was put there; oldest first
	bad     int             // a thing that cannot be removed; -1: none
	endless bool            // that takes longer than any caller waits
	gone    map[int]bool
	looked  int
	calls   []PurgeBatch
	took    time.Duration
	holder  uuid.UUID
	heldAt  time.Time
	away    bool
}

var errStuck = errors.New("it cannot be removed")

func (s *shelf) HoldPurge(_ context.Context, holder uuid.UUID, silence time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != uuid.Nil && s.holder != holder && s.now().Sub(s.heldAt) < silence {
		return false, nil
	}
	s.holder, s.heldAt = holder, s.now()
	return true, nil
}

func (s *shelf) EndedGroups(context.Context) ([]EndedGroup, error) {
	return []EndedGroup{{"default", "SUCCEEDED"}}, nil
}

// Purge counts positions from 1 on, in seconds. A thing that is half as old as asked is looked
// at, and cannot go yet.
func (s *shelf) Purge(ctx context.Context, b PurgeBatch) (Purged, error) {
	if b.Kind != PurgeExecutions {
		return Purged{Next: b.After}, nil
	}
	time.Sleep(s.took)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, b)
	if s.away {
		return Purged{Next: b.After}, &UnavailableError{}
	}
	p := Purged{Next: b.After}
	from := 0
	if !b.After.At.IsZero() {
		from = int(b.After.At.Unix())
	}
	var picked []int
	for i := from; i < len(s.age); i++ {
		old := s.age[i] + s.now().Sub(start)
		if s.gone[i] {
			continue
		}
		if old < b.Age/2 {
			return s.remove(ctx, p, picked, b)
		}
		if old >= b.Age {
			if len(picked) == b.Limit || p.Looked == 1000 {
				p.More = true
				return s.remove(ctx, p, picked, b)
			}
			picked = append(picked, i)
		}
		p.Looked++
		p.Next = PurgePosition{At: time.Unix(int64(i+1), 0)}
	}
	return s.remove(ctx, p, picked, b)
}

func (s *shelf) remove(ctx context.Context, p Purged, picked []int, b PurgeBatch) (Purged, error) {
	s.looked += p.Looked
	if slices.Contains(picked, s.bad) {
		if s.endless {
			<-ctx.Done()
			return p, &UnavailableError{Cause: ctx.Err()}
		}
		return p, errStuck
	}
	p.Removed = len(picked)
	for _, i := range picked {
		s.gone[i] = !b.DryRun
	}
	return p, nil
}

var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // that of synctest

func newShelf(ages ...time.Duration) *shelf {
	return &shelf{now: time.Now, age: ages, bad: -1, gone: map[int]bool{}}
}

func ages(n int, age time.Duration) []time.Duration {
	return slices.Repeat([]time.Duration{age}, n)
}

func runFor(t *testing.T, d time.Duration, purgers ...*purger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for _, p := range purgers {
		go p.run(ctx)
	}
	<-ctx.Done()
	synctest.Wait()
}

func testPurger(s *shelf) *purger {
	return newPurger(s, Retention{Executions: 10 * time.Minute}, slog.New(slog.DiscardHandler))
}

// What cannot be removed is left out, once it is alone, and keeps nothing else. Caught: a batch
// that fails for ever, or takes so long and is taken for a store that is away.
func TestRetention_OneThatCannotGoStopsNobody(t *testing.T) {
	t.Parallel()
	for _, endless := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(ages(1000, time.Hour)...)
			s.bad, s.endless = 333, endless
			runFor(t, 6*time.Hour, testPurger(s))
			if len(s.gone) != 999 || s.gone[333] {
				t.Errorf("endless %v: %d of 999 are gone", endless, len(s.gone))
			}
		})
	}
}

// A store that is away is asked again at the next look, and no sooner.
func TestRetention_WaitsForTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(ages(10, time.Hour)...)
		s.away = true
		p := testPurger(s)
		runFor(t, 5*time.Minute+time.Second, p)
		if len(s.calls) != 5 {
			t.Errorf("asked %d times in 5 minutes", len(s.calls))
		}
		s.away = false
		runFor(t, 2*time.Minute, p)
		if len(s.gone) != 10 {
			t.Errorf("%d of 10 are gone", len(s.gone))
		}
	})
}

// Batches have pauses of twice their time, so that a third of the time at most is retention's;
// and while something is left, it goes on. Caught: one batch a look; no pause.
func TestRetention_IsPacedAndGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(ages(20_000, time.Hour)...) // 100 batches
		s.took = 100 * time.Millisecond
		runFor(t, time.Minute+15*time.Second, testPurger(s))
		if n := len(s.calls); n < 45 || n > 51 {
			t.Errorf("%d batches of 100 ms in 15 s, want about 50", n)
		}
		for i := range s.calls {
			if s.calls[i].Limit != purgeLimit {
				t.Fatalf("a batch of %d", s.calls[i].Limit)
			}
		}
	})
}

// What cannot go yet is looked at again by the next look while it is little, and else only when
// the walk begins anew. Caught: everything looked at each minute; or what ended a moment after it
// was looked at, gone an hour late.
func TestRetention_LooksAgainAtLittle(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ n, looked, gone int }{
		"little": {200, 200 * 5, 200},
		"much":   {stayedMost + 1000, stayedMost + 1000, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(ages(tt.n, 5*time.Minute+30*time.Second)...) // removable after 4 and a half minutes
			p := newPurger(s, Retention{Executions: 10 * time.Minute}, slog.New(slog.DiscardHandler))
			p.walks, p.begun = map[walkKey]*purgeWalk{}, time.Now() // it does not begin anew within the test
			p.keep.Events, p.keep.DeadEvents = 24*time.Hour, 24*time.Hour
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Second)
			defer cancel()
			for wait(ctx, time.Minute) {
				if err := p.round(ctx, walkSeldom); err != nil {
					t.Fatal(err)
				}
			}
			if s.looked != tt.looked || len(s.gone) != tt.gone {
				t.Errorf("%s: looked at %d, %d gone; want %d, %d", name, s.looked, len(s.gone), tt.looked, tt.gone)
			}
		})
	}
}

// One replica purges at a time; when it falls silent, another goes on. Caught: a right that is
// not given up; two at once.
func TestRetention_OneReplicaAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(ages(100_000, time.Hour)...)
		s.took = 200 * time.Millisecond
		first, second := testPurger(s), testPurger(s)
		ctx, kill := context.WithTimeout(t.Context(), 2*time.Minute+10*time.Second) // the second looks twice meanwhile
		defer kill()
		go first.run(ctx)
		time.Sleep(time.Millisecond)
		var other sync.WaitGroup
		other.Go(func() { second.run(ctx) })
		<-ctx.Done()
		other.Wait()
		time.Sleep(time.Second) // so that the first one's last batch is over, too
		synctest.Wait()
		if len(second.removed) != 0 || first.removed[PurgeExecutions] == 0 || s.holder != first.holder {
			t.Errorf("%v and %v at once", first.removed, second.removed)
		}
		before := len(s.gone)
		runFor(t, 2*time.Minute, second)
		time.Sleep(time.Second)
		synctest.Wait()
		if s.holder != second.holder || len(s.gone) <= before {
			t.Errorf("nobody went on: %d are gone", len(s.gone))
		}
	})
}

// Where everything is kept for ever nobody looks.
func TestRetention_NothingToKeep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(ages(10, time.Hour)...)
		p := newPurger(s, Retention{}, slog.New(slog.DiscardHandler))
		p.run(t.Context()) // returns: everything is kept
		if len(s.calls) != 0 || s.holder != uuid.Nil {
			t.Error("it looked although everything is kept")
		}
	})
}

// A dry run counts what the run itself then removes.
func TestPurgeNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(slices.Concat(ages(1234, time.Hour), ages(100, 0))...)
		keep := Retention{Executions: 10 * time.Minute}
		for _, dry := range []bool{true, false, true} {
			want := 1234
			if len(s.gone) > 0 && s.gone[0] {
				want = 0
			}
			removed, err := PurgeNow(t.Context(), s, keep, dry, slog.New(slog.DiscardHandler))
			if err != nil || removed[PurgeExecutions] != want {
				t.Errorf("dry %v: %v, %v, want %d", dry, removed, err, want)
			}
		}
	})
}

func TestRetention_Every(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		keep       Retention
		look, anew time.Duration
	}{
		{Retention{Executions: 168 * time.Hour, Events: 24 * time.Hour}, time.Minute, time.Hour},
		{Retention{Executions: 5 * time.Second}, 500 * time.Millisecond, 500 * time.Millisecond},
		{Retention{Executions: 168 * time.Hour, DeadEvents: time.Second}, 100 * time.Millisecond, 100 * time.Millisecond},
	} {
		if look, anew := tt.keep.every(); look != tt.look || anew != tt.anew {
			t.Errorf("%+v: every %v, anew every %v; want %v, %v", tt.keep, look, anew, tt.look, tt.anew)
		}
	}
}
