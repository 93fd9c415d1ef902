package scheduler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A change is read once for all that watch, and what nobody watches is not read.
// Caught: a read for each watch.
func TestWatch_OneReadForAll(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		one := s.begin(3, 5)
		var tales []*tale
		for i := range 300 {
			tales = append(tales, s.watch(one, int64(i%2)*5)) // some with a snapshot, some without
		}
		var others []uuid.UUID
		for range 100 {
			others = append(others, s.begin(1, 1))
			tales = append(tales, s.watch(others[len(others)-1], 1))
		}
		time.Sleep(10 * time.Second)
		s.counts()
		for n := int64(6); n < 16; n++ {
			s.commit(one, 1)
			s.hear(HintChange)
			time.Sleep(40 * time.Millisecond)
			for _, x := range tales[:300] {
				x.expect("soon", n)
			}
			time.Sleep(900 * time.Millisecond)
			if moved, changes, reads := s.counts(); changes != 1 || reads != 0 || moved > 2 {
				t.Errorf("a change cost %d looks and %d reads of it, %d snapshots; want one read", moved, changes, reads)
			}
		}
		for _, id := range others { // all at once: read together
			s.end(id)
		}
		s.end(one)
		s.hear(HintChange)
		for _, x := range tales {
			if err := x.over(); err != nil {
				t.Error(err)
			}
		}
		if _, changes, _ := s.counts(); changes > 3 {
			t.Errorf("changes of 101 executions cost %d reads, want 3", changes)
		}
		s.nobody()
	})
}

// One that comes a little later than the others costs no read of its own either.
// Caught: a hub that forgets at once what it read.
func TestWatch_LittleLate(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		late := s.watch(id, 1, func(x *tale) { x.pause = func() time.Duration { return 1200 * time.Millisecond } })
		quick := s.watch(id, 1)
		time.Sleep(time.Second)
		s.counts()
		for range 3 {
			s.commit(id, 1)
			s.hear(HintChange)
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		late.expect("the late one", 4)
		quick.expect("the quick one", 4)
		if _, changes, _ := s.counts(); changes != 3 {
			t.Errorf("3 changes cost %d reads", changes)
		}
		s.end(id)
		_, _ = late.over(), quick.over()
	})
}

// Hints may be lost: the hub looks all the same. Hints may come in numbers: it looks now and then.
// Caught: no look without a hint; a look for each hint.
func TestWatch_HintsAreNotTruth(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		x := s.watch(id, 1)
		time.Sleep(10 * time.Second)
		s.commit(id, 1)
		time.Sleep(1200 * time.Millisecond)
		x.expect("without a hint", 2)
		s.counts()
		for range 10_000 {
			s.hear(HintChange)
			time.Sleep(time.Millisecond)
		}
		if moved, changes, _ := s.counts(); moved < 150 || moved > 201 || changes != 0 {
			t.Errorf("10,000 hints in 10 s cost %d looks and %d reads", moved, changes)
		}
		s.end(id)
		if err := x.over(); err != nil {
			t.Error(err)
		}
	})
}

// One that has read more than the hub waits for the hub. Caught: one that reads again and again.
func TestWatch_AheadOfTheHub(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		first := s.watch(id, 1)
		time.Sleep(10*time.Second + lookAtLeast/10)
		s.counts()
		s.commit(id, 1) // without a hint
		second := s.watch(id, 0)
		time.Sleep(2 * time.Second)
		if moved, changes, reads := s.counts(); moved > 4 || changes > 3 || reads != 1 {
			t.Errorf("cost %d looks, %d reads, %d snapshots", moved, changes, reads)
		}
		first.heard("the change", 0, 0, 1)
		second.heard("a snapshot", 1, 1, 0)
		s.end(id)
		for _, x := range []*tale{first, second} {
			if err := x.over(); err != nil {
				t.Error(err)
			}
		}
	})
}

// While nothing is watched hints cost nothing, and what has ended is not looked at.
// Caught: looks for nobody.
func TestWatch_NobodyWatches(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		quiet := func(when string) {
			t.Helper()
			for range 100 {
				s.hear(HintChange)
				time.Sleep(time.Second)
			}
			if moved, changes, reads := s.counts(); moved+changes+reads != 0 {
				t.Errorf("%s: %d looks, %d reads, %d snapshots", when, moved, changes, reads)
			}
		}
		quiet("at first")
		id := s.begin(1, 1)
		s.end(id)
		for _, after := range []int64{0, 1, 2} {
			if err := s.watch(id, after).over(); err != nil {
				t.Error(err)
			}
		}
		if moved, changes, reads := s.counts(); moved != 2 || changes != 2 || reads != 1 {
			t.Errorf("what has ended cost %d looks, %d reads, %d snapshots", moved, changes, reads)
		}
		open := s.begin(1, 1)
		x := s.watch(open, 0)
		time.Sleep(time.Second)
		x.leave()
		if err := x.over(); !errors.Is(err, context.Canceled) {
			t.Errorf("one that leaves: %v", err)
		}
		s.counts()
		quiet("after the last one left")
	})
}

// A watch can begin anywhere: with a snapshot, after a revision, at the end, or beyond.
func TestWatch_Begins(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		after                     int64
		snapshots, steps, changes int
	}{
		{0, 1, 450, 0}, {1, 0, 0, 2999}, {2999, 0, 0, 1}, {3000, 0, 0, 0}, {3001, 1, 450, 0}, {1 << 60, 1, 450, 0},
	} {
		inScene(t, func(s *scene) {
			id := s.begin(450, 2999)
			s.end(id)
			x := s.watch(id, tt.after)
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("at the end", 3000)
			x.heard(fmt.Sprint("after ", tt.after), tt.snapshots, tt.steps, tt.changes)
		})
	}
	inScene(t, func(s *scene) {
		var missing *NotFoundError
		for _, after := range []int64{0, 7} {
			if err := s.watch(uuid.New(), after).over(); !errors.As(err, &missing) || missing.Kind != KindExecution {
				t.Errorf("an unknown one, after %d: %v", after, err)
			}
		}
	})
}

// What happens while a snapshot is read part by part is told after it: nothing is missed, and no
// step is told twice. Caught: changes after the revision of the last part.
func TestWatch_SnapshotOfWhatMoves(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1000, 10)
		s.meanwhile(func() { s.deeds[id].revision += 3 })
		x := s.watch(id, 0)
		time.Sleep(5 * time.Second)
		x.heard("a snapshot and changes", 1, 1000, 15)
		x.expect("after the snapshot", 25)
		s.end(id)
		if err := x.over(); err != nil {
			t.Error(err)
		}
	})
}

// One that takes its time is told everything, and holds up nobody; what the hub keeps is bounded.
// Caught: telling in the hub's loop; batches kept for ever.
func TestWatch_SlowOnes(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		id := s.begin(1, 1)
		hold := make(chan struct{})
		slow := s.watch(id, 1, func(x *tale) { x.hold = hold })
		late := s.watch(id, 1, func(x *tale) { x.pause = func() time.Duration { return 300 * time.Millisecond } })
		quick := s.watch(id, 1)
		const rounds = 100
		for n := range int64(rounds) {
			s.commit(id, 500)
			s.hear(HintChange)
			time.Sleep(200 * time.Millisecond)
			quick.expect("the quick one", (n+1)*500+1)
			s.keepsLittle()
		}
		slow.expect("the slow one", 1)
		s.end(id)
		if err := quick.over(); err != nil {
			t.Error(err)
		}
		close(hold)
		for _, x := range []*tale{slow, late} {
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("all", rounds*500+2)
		}
	})
}

// What is more than one read takes comes in several, for many executions fairly.
func TestWatch_ManyChangesAtOnce(t *testing.T) {
	t.Parallel()
	inScene(t, func(s *scene) {
		var ids []uuid.UUID
		var tales []*tale
		for range 120 {
			id := s.begin(1, 1)
			ids, tales = append(ids, id), append(tales, s.watch(id, 1), s.watch(id, 1))
		}
		time.Sleep(time.Second)
		for i, id := range ids {
			s.commit(id, int64(10+i*i/10))
			s.end(id)
		}
		s.hear(HintChange)
		for i, x := range tales {
			if err := x.over(); err != nil {
				t.Error(err)
			}
			x.expect("all", int64(12+i/2*(i/2)/10))
		}
		if n := s.largestRead(); n > readEntries {
			t.Errorf("a read of %d entries", n)
		}
	})
}
