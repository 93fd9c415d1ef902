package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// chronicle is a store of executions by hand: what tests commit is read as from PostgreSQL, each
// read in one snapshot.
type chronicle struct {
	mu      sync.Mutex
	deeds   map[uuid.UUID]*deed
	err     error // of every read
	moved   int   // reads, by kind
	changes int
	reads   int // of snapshots
	largest int // entries of one read of changes
	running int // reads of changes
	most    int // of them at once
	between func()
}

type deed struct {
	revision int64
	steps    int
	state    task.ExecutionState
}

var errAway = &UnavailableError{Cause: errors.New("away")}

// begin makes an execution that is at a revision.
func (c *chronicle) begin(steps int, revision int64) uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := uuid.New()
	c.deeds[id] = &deed{revision: revision, steps: steps, state: task.ExecutionRunning}
	return id
}

// commit writes further entries.
func (c *chronicle) commit(id uuid.UUID, entries int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deeds[id].revision += entries
}

// end writes the last entry.
func (c *chronicle) end(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deeds[id].revision++
	c.deeds[id].state = task.ExecutionSucceeded
}

func (c *chronicle) revision(id uuid.UUID) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deeds[id].revision
}

func (c *chronicle) largestRead() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.largest
}

// meanwhile lets something happen after each read of a snapshot's part.
func (c *chronicle) meanwhile(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.between = f
}

func (c *chronicle) remove(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.deeds, id)
}

func (c *chronicle) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// counts takes what was counted since it was last asked.
func (c *chronicle) counts() (moved, changes, reads int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	moved, changes, reads = c.moved, c.changes, c.reads
	c.moved, c.changes, c.reads = 0, 0, 0
	return moved, changes, reads
}

func (c *chronicle) Moved(_ context.Context, known []Revision) ([]Revision, error) {
	time.Sleep(time.Millisecond) // virtual
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved++
	if c.err != nil {
		return nil, c.err
	}
	var list []Revision
	for _, k := range known {
		now := Revision{ID: k.ID}
		if d := c.deeds[k.ID]; d != nil {
			now.Revision = d.revision
		}
		if now != k {
			list = append(list, now)
		}
	}
	return list, nil
}

func (c *chronicle) Changes(_ context.Context, after []Revision, limit int) ([]Changes, error) {
	c.run(1)
	defer c.run(-1)
	time.Sleep(time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	if c.err != nil {
		return nil, c.err
	}
	var list []Changes
	sum := 0
	for _, a := range after {
		d := c.deeds[a.ID]
		if d == nil {
			continue
		}
		one := Changes{Execution: d.view(a.ID)}
		for n := a.Revision + 1; n <= d.revision && len(one.Entries) < limit; n++ {
			one.Entries = append(one.Entries, ChangeView{EntryView: EntryView{Entry: task.Entry{Sequence: n}}})
		}
		sum += len(one.Entries)
		list = append(list, one)
	}
	c.largest = max(c.largest, sum)
	return list, nil
}

func (c *chronicle) run(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running += n
	c.most = max(c.most, c.running)
}

func (c *chronicle) GetExecution(_ context.Context, q ExecutionQuery) (*ExecutionView, bool, error) {
	time.Sleep(time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	if c.err != nil {
		return nil, false, c.err
	}
	d := c.deeds[q.ID]
	if d == nil {
		return nil, false, &NotFoundError{Kind: KindExecution, ID: q.ID.String()}
	}
	v := d.view(q.ID)
	for i := q.AfterOrdinal + 1; i < d.steps && len(v.Steps) < q.StepLimit; i++ {
		v.Steps = append(v.Steps, StepView{Ordinal: i})
	}
	if c.between != nil {
		defer c.between()
	}
	return v, q.AfterOrdinal+1+len(v.Steps) < d.steps, nil
}

func (d *deed) view(id uuid.UUID) *ExecutionView {
	return &ExecutionView{ExecutionData: task.ExecutionData{ID: id, Revision: d.revision, State: d.state}}
}

// scene is a scheduler whose hub runs on a chronicle, in a bubble with a time of its own.
type scene struct {
	*chronicle
	*Scheduler
	t *testing.T
}

func inScene(t *testing.T, f func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &chronicle{deeds: map[uuid.UUID]*deed{}}
		s := &scene{chronicle: c, Scheduler: &Scheduler{watches: newHub(c, slog.New(slog.DiscardHandler), 1000)}, t: t}
		ctx, cancel := context.WithCancel(t.Context())
		go s.watches.run(ctx)
		f(s)
		if c.most > 2 {
			t.Errorf("%d reads of changes at once", c.most)
		}
		cancel()
		synctest.Wait() // a goroutine that is left then fails the test
	})
}

// nobody fails the test if anybody watches, or the hub believes so.
func (s *scene) nobody() {
	s.t.Helper()
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	if s.watches.open != 0 || len(s.watches.topics) != 0 {
		s.t.Errorf("%d watches and %d topics are left", s.watches.open, len(s.watches.topics))
	}
}

// keepsLittle fails the test if the hub keeps more than it may.
func (s *scene) keepsLittle() {
	s.t.Helper()
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	sum := 0
	for _, b := range s.watches.kept {
		sum += len(b.changes.Entries)
	}
	if sum > keepEntries || sum != s.watches.entries || len(s.watches.kept) > 50 {
		s.t.Errorf("%d entries (counted %d) in %d batches are kept", sum, s.watches.entries, len(s.watches.kept))
	}
}

// tale is what one watch was told. It fails the test for what is told twice, or left out.
type tale struct {
	s         *scene
	leave     context.CancelFunc
	done      chan error
	mu        sync.Mutex
	snapshots int
	steps     int
	at        int64 // everything up to here was told
	changes   int
	hold      chan struct{} // if set, a telling waits for it
	pause     func() time.Duration
}

// watch begins to watch, in a goroutine of its own.
func (s *scene) watch(id uuid.UUID, after int64, change ...func(*tale)) *tale {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	t := &tale{s: s, leave: cancel, done: make(chan error, 1), at: after}
	for _, f := range change {
		f(t)
	}
	go func() {
		defer cancel()
		t.done <- s.Watch(ctx, id, after, t.tell)
	}()
	return t
}

func (t *tale) tell(u Update) error {
	if t.hold != nil {
		<-t.hold
	}
	if t.pause != nil {
		time.Sleep(t.pause())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.Snapshot != nil {
		t.steps += len(u.Snapshot.Steps)
		if !u.More {
			t.snapshots++
			t.at = u.Snapshot.Revision
		}
		return nil
	}
	for _, e := range u.Changes.Entries {
		if e.Sequence != t.at+1 {
			t.s.t.Errorf("told of %d after %d", e.Sequence, t.at)
		}
		if u.Changes.Execution.Revision < e.Sequence {
			t.s.t.Errorf("told of %d with the execution as of %d", e.Sequence, u.Changes.Execution.Revision)
		}
		t.at = e.Sequence
		t.changes++
	}
	return nil
}

// told is up to where it was told.
func (t *tale) told() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}

// over waits for the end, which has to come soon.
func (t *tale) over() error {
	select {
	case err := <-t.done:
		return err
	case <-time.After(time.Minute):
		t.leave()
		t.s.t.Errorf("the watch goes on, at %d", t.told())
		return <-t.done
	}
}

// heard fails the test unless so much was told.
func (t *tale) heard(what string, snapshots, steps, changes int) {
	t.s.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.snapshots != snapshots || t.steps != steps || t.changes != changes {
		t.s.t.Errorf("%s: %d snapshots with %d steps, %d changes; want %d, %d, %d", what, t.snapshots, t.steps, t.changes, snapshots, steps, changes)
	}
}

// expect fails the test unless the watch was told of everything up to a revision.
func (t *tale) expect(what string, at int64) {
	t.s.t.Helper()
	if got := t.told(); got != at {
		t.s.t.Errorf("%s: told up to %d, want %d", what, got, at)
	}
}
