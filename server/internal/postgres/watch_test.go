package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// tally counts the statements that a store sends, by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

// TraceQueryStart counts one.
func (y *tally) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	name, named := queryName(data.SQL)
	if !named {
		return ctx
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.n[name]++
	return ctx
}

// TraceQueryEnd has nothing to do.
func (y *tally) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take takes what was counted since it was last asked.
func (y *tally) take() map[string]int {
	y.mu.Lock()
	defer y.mu.Unlock()
	n := maps.Clone(y.n)
	clear(y.n)
	return n
}

// countedReplica is a replica whose statements are counted, with few connections.
func countedReplica(t *testing.T, url string) (*replica, *tally) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	store, err := postgres.Open(ctx, postgres.Config{URL: url, MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	y := &tally{n: map[string]int{}}
	if err := store.Trace(ctx, y, nil); err != nil {
		t.Fatal(err)
	}
	hints, err := postgres.NewHints(store, url)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{store: store, Scheduler: scheduler.New(scheduler.Config{Store: store, Hints: hints})}
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; store.Close() })
	return r, y
}

// listener is what one watch heard.
type listener struct {
	mu   sync.Mutex
	at   int64
	when time.Time // of the last update
	end  <-chan error
}

// listen watches from a revision on, until the end or the end of the test.
func (r *replica) listen(ctx context.Context, id uuid.UUID, after int64) *listener {
	e := &listener{at: after}
	e.end = async(func() error {
		return r.Watch(ctx, id, after, func(u scheduler.Update) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.when = time.Now()
			if u.Snapshot != nil {
				e.at = u.Snapshot.Revision
			}
			for _, c := range u.Changes.Entries {
				if c.Sequence != e.at+1 {
					return fmt.Errorf("heard of %d after %d", c.Sequence, e.at)
				}
				e.at = c.Sequence
			}
			return nil
		})
	})
	return e
}

func (e *listener) heard() (int64, time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.when
}

func (e *listener) upTo(revision int64) func() bool {
	return func() bool { at, _ := e.heard(); return at >= revision }
}

// However many watch, a change is read once by each replica, also when it was made at another;
// who does not watch is silent: it does not even look. Caught: a read for each watch; looks of a
// replica without watches.
func TestWatch_OneReadOfAChange(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	worker := s.register("w", "a", 10)
	ids := s.enqueue(spec("a", 3))
	other := startReplica(t, s.url)
	watching, y := countedReplica(t, s.url)
	_, idle := countedReplica(t, s.url)
	var ears []*listener
	for i := range 400 {
		ears = append(ears, watching.listen(t.Context(), ids.Execution, int64(i%2)))
	}
	for _, e := range ears {
		s.eventually("they watch", e.upTo(1))
	}
	at := int64(1)
	for range 3 {
		l := s.leaseOne(worker, time.Minute)
		at++
		for _, e := range ears {
			s.eventually("all hear of the lease", e.upTo(at))
		}
		y.take()
		idle.take()
		if r := other.Report(t.Context(), []scheduler.Report{success(l)}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		at++
		if at == 7 {
			at++ // and the end of the execution
		}
		for _, e := range ears {
			s.eventually("all hear of the report", e.upTo(at))
		}
		counts := y.take()
		if counts["ListTimeline"] != 1 || counts["StepsByName"] != 1 || counts["ExecutionsByID"] != 1 {
			t.Errorf("a change was read by %v, want one of each", counts)
		}
		for name := range idle.take() {
			if slices.Contains([]string{"MovedExecutions", "ListTimeline", "ExecutionsByID", "StepsByName", "GetExecution"}, name) {
				t.Errorf("a replica without watches sent %s", name)
			}
		}
	}
	for _, e := range ears {
		if err := <-e.end; err != nil {
			t.Error(err)
		}
	}
	s.sane()
}

// Rule 9. Every hint is lost, and those that watch at another replica hear of changes all the
// same. With hints they hear at once.
func TestWatch_HintsLostAltogether(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 10)
	ids := s.enqueue(spec("a", 5))
	deaf, hearing, other := deafReplica(t, s.url), startReplica(t, s.url), startReplica(t, s.url)
	slow, quick := deaf.listen(t.Context(), ids.Execution, 0), hearing.listen(t.Context(), ids.Execution, 0)
	best := time.Hour
	for n := range int64(5) {
		l := s.leaseOne(w, time.Minute) // without a hint
		s.eventually("the lease is heard of", func() bool { return slow.upTo(2*n+2)() && quick.upTo(2*n+2)() })
		began := time.Now()
		if r := other.Report(t.Context(), []scheduler.Report{success(l)}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		s.eventually("the report is heard of", func() bool { return slow.upTo(2*n+3)() && quick.upTo(2*n+3)() })
		_, late := slow.heard()
		_, soon := quick.heard()
		t.Logf("heard after %s with hints, after %s without", soon.Sub(began), late.Sub(began))
		best = min(best, soon.Sub(began))
	}
	if best > 700*time.Millisecond {
		t.Errorf("with hints a change was heard of only after %s", best)
	}
	for _, e := range []*listener{slow, quick} {
		if err := <-e.end; err != nil {
			t.Error(err)
		}
	}
}

// An execution that is removed while it is watched is NOT_FOUND.
func TestWatch_RemovedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 1))
	e := startReplica(t, s.url).listen(t.Context(), ids.Execution, 0)
	s.eventually("it watches", e.upTo(1))
	for _, table := range []string{"scheduling_requests", "steps", "timeline_entries"} {
		s.exec("DELETE FROM "+table+" WHERE execution_id = $1", ids.Execution)
	}
	s.exec("DELETE FROM executions WHERE id = $1", ids.Execution)
	var missing *scheduler.NotFoundError
	if err := <-e.end; !errors.As(err, &missing) || missing.Kind != scheduler.KindExecution {
		t.Errorf("ended with %v", err)
	}
}

// Moved tells of what is elsewhere than known, and of what is gone, and of nothing else.
func TestMoved(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	still, moved, gone := s.enqueue(spec("b", 1)).Execution, s.enqueue(spec("a", 1)).Execution, uuid.New()
	s.leaseOne(s.register("w", "a", 1), time.Minute)
	known := []scheduler.Revision{{ID: still, Revision: 1}, {ID: moved, Revision: 1}, {ID: gone, Revision: 7}}
	list, err := s.store.Moved(t.Context(), known)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uuid.UUID]int64{}
	for _, r := range list {
		got[r.ID] = r.Revision
	}
	if want := (map[uuid.UUID]int64{moved: 2, gone: 0}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if list, err := s.store.Moved(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("of nothing: %v, %v", list, err)
	}
}

// Changes are the timeline's entries after a revision of each, with the step that they are about
// and without what is large; what is gone is left out.
func TestChanges(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 100)
	first := s.enqueue(spec("a", 3, func(e *task.ExecutionSpec) { e.Labels = map[string]string{"k": "v"} }))
	second := s.enqueue(spec("a", 2))
	details := &task.Payload{JSON: true, Body: []byte(`"large"`)}
	for _, l := range s.lease(w, 4, time.Minute) {
		r := failure(l)
		r.Outcome.Failure.NonRetryable, r.Outcome.Failure.Details = true, details
		if _, err := s.report(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []uuid.UUID{first.Execution, second.Execution} {
		all, err := s.store.ListTimeline(t.Context(), id, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for after := range int64(len(all) + 1) {
			other := first.Execution
			if id == other {
				other = second.Execution
			}
			list, err := s.store.Changes(t.Context(), []scheduler.Revision{{ID: id, Revision: after}, {ID: uuid.New()}, {ID: other, Revision: 2}}, 1000)
			if err != nil || len(list) != 2 {
				t.Fatalf("%d executions, %v", len(list), err)
			}
			c := list[slices.IndexFunc(list, func(c scheduler.Changes) bool { return c.Execution.ID == id })]
			if c.Execution.Revision != int64(len(all)) || len(c.Entries) != len(all)-int(after) {
				t.Fatalf("after %d of %d: %d entries, execution as of %d", after, len(all), len(c.Entries), c.Execution.Revision)
			}
			for i, e := range c.Entries {
				if want := all[int(after)+i]; e.Sequence != want.Sequence || e.Milestone != want.Milestone {
					t.Errorf("entry %d is %s, want %d, %s", e.Sequence, e.Milestone, want.Sequence, want.Milestone)
				}
				s.checkStep(e)
			}
		}
	}
	list, err := s.store.Changes(t.Context(), []scheduler.Revision{{ID: first.Execution}, {ID: second.Execution}}, 2)
	if err != nil || len(list) != 2 || len(list[0].Entries) != 2 || len(list[1].Entries) != 2 || list[0].Entries[1].Sequence != 2 {
		t.Errorf("a page of two of each: %+v, %v", list, err)
	}
}

// checkStep looks at the step that an entry came with.
func (s *stand) checkStep(e scheduler.ChangeView) {
	s.t.Helper()
	switch {
	case e.StepName == "" && e.Step == nil:
	case e.Step == nil || e.Step.Name != e.StepName || len(e.Step.Attempts) != 1 || e.Step.Attempts[0].Number != e.Step.AttemptCount:
		s.t.Errorf("entry %s of step %q came with %+v", e.Milestone, e.StepName, e.Step)
	case e.Step.State == task.StepFailed && (e.Step.Failure == nil || e.Step.Failure.Details != nil || e.Step.Attempts[0].Failure.Details != nil):
		s.t.Errorf("step %q with failures %+v, %+v", e.StepName, e.Step.Failure, e.Step.Attempts[0].Failure)
	}
}

// What watches read is read by indexes, and costs the same whatever else the database holds.
// Caught: a plan that reads the executions, steps or attempts of others.
func TestPlans_OfWatches(t *testing.T) {
	t.Parallel()
	m := fill(t, rounds(20_000, 1_000_000))
	leases := m.lease(m.worker, 50, time.Hour)
	for _, l := range leases[:25] {
		if _, err := m.report(failure(l)); err != nil {
			t.Fatal(err)
		}
	}
	var known []scheduler.Revision
	for _, l := range leases[:20] {
		if r := (scheduler.Revision{ID: l.ExecutionID, Revision: 1}); !slices.Contains(known, r) {
			known = append(known, r)
		}
	}
	for _, statistics := range []string{"", "ANALYZE"} {
		if statistics != "" {
			m.exec(statistics)
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			m.reopen(mode)
			plans := m.plans.during(func() {
				moved, err := m.store.Moved(t.Context(), known)
				if err != nil || len(moved) != len(known) {
					t.Fatalf("%d moved, %v", len(moved), err)
				}
				if changes, err := m.store.Changes(t.Context(), known, 100); err != nil || len(changes) != len(known) {
					t.Fatalf("%d changed, %v", len(changes), err)
				}
			})
			seen := 0
			for _, p := range plans {
				p.check(t, statistics+" "+mode, mode == "force_custom_plan")
				if intended[p.name] != nil {
					seen++
				}
				if p.buffers() > 3000 {
					t.Errorf("%s %s: %s reads %d buffers", statistics, mode, p.name, p.buffers())
				}
			}
			if seen != 4 {
				t.Errorf("%d statements were looked at, want 4", seen)
			}
		}
	}
}
