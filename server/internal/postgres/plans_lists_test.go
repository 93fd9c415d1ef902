package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Bounds of a page of lists, in buffers: of one that is full at once, and of one that looks at
// as many rows as a page may.
const (
	plainBuffers    = 1_500
	filteredBuffers = 40_000
	listedAtOnce    = time.Second // B123
)

// listing is a database with many executions, 500 of them of each instant.
type listing struct {
	*stand
	plans *explainer
	n     int
}

// fillList writes n executions. What is rare is the oldest: a dozen of most states, and of a name
// and a label; many of the older half FAILED. Mixed, states and names alternate instead.
func fillList(t *testing.T, n int, mixed bool) *listing {
	t.Helper()
	l := &listing{stand: newStand(t), plans: &explainer{t: t}, n: n}
	began := time.Now()
	l.exec("ALTER TABLE executions SET (autovacuum_enabled = off)")
	l.exec("ALTER TABLE executions SET UNLOGGED")
	state := `CASE WHEN g <= 72 THEN (ARRAY['CREATED', 'QUEUED', 'RUNNING', 'CANCELING', 'FAILED', 'CANCELED'])[1 + g % 6]
		WHEN g <= $1 / 2 AND g % 2 = 0 THEN 'FAILED' ELSE 'SUCCEEDED' END`
	name := `CASE WHEN g <= 100 THEN 'rare' ELSE 'common' END`
	labels := `CASE WHEN g <= 100 THEN '{"color": "red"}'::jsonb WHEN g % 3 = 0 THEN '{"color": "blue"}' END`
	if mixed {
		state = `(ARRAY['CREATED', 'QUEUED', 'RUNNING', 'CANCELING', 'SUCCEEDED', 'FAILED', 'CANCELED'])[1 + g % 7]`
		name = `'name' || g % 10`
	}
	l.exec(fmt.Sprintf(`INSERT INTO executions (id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast,
			created_at, due_at, ended_at, cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts, labels)
		SELECT id, CASE WHEN g %% 1000 = 7 THEN 'other' ELSE 'default' END, name, 'key-' || g, '', state, 1, 0, false, at, at,
			CASE WHEN state IN ('SUCCEEDED', 'FAILED', 'CANCELED') THEN at + interval '1 minute' END, '30 s', 1, 0, 1, 1, 0, 0, labels
		FROM (SELECT g, md5(g::text)::uuid AS id, %s AS state, %s AS name, %s AS labels,
			'2026-01-01'::timestamptz + (g / 500) * interval '1 second' AS at FROM generate_series(1, $1::integer) g) x`, state, name, labels), n)
	t.Logf("filled %d executions in %v", n, time.Since(began))
	return l
}

// reopen replaces the store by one whose statements are explained.
func (l *listing) reopen(mode string) {
	l.t.Helper()
	l.store = l.open(postgres.Config{})
	if err := l.store.Trace(l.t.Context(), l.plans, map[string]string{"plan_cache_mode": mode}); err != nil {
		l.t.Fatal(err)
	}
}

// filters are those of lists, each by its name.
func filters() map[string]scheduler.ListQuery {
	list := map[string]scheduler.ListQuery{
		"none": {}, "other namespace": {Namespace: "other"}, "rare name": {Name: "rare"}, "no such name": {Name: "nobody"},
		"rare label":       {Labels: map[string]string{"color": "red"}},
		"two states":       {States: []task.ExecutionState{task.ExecutionRunning, task.ExecutionCanceled}},
		"a state twice":    {States: []task.ExecutionState{task.ExecutionFailed, task.ExecutionFailed}},
		"all that ended":   {States: []task.ExecutionState{task.ExecutionSucceeded, task.ExecutionFailed, task.ExecutionCanceled}},
		"name and state":   {Name: "rare", States: []task.ExecutionState{task.ExecutionFailed, task.ExecutionQueued}},
		"all that is live": {States: []task.ExecutionState{task.ExecutionCreated, task.ExecutionQueued, task.ExecutionRunning, task.ExecutionCanceling}},
	}
	for _, s := range []task.ExecutionState{
		task.ExecutionCreated, task.ExecutionQueued, task.ExecutionRunning, task.ExecutionCanceling,
		task.ExecutionSucceeded, task.ExecutionFailed, task.ExecutionCanceled,
	} {
		list[string(s)] = scheduler.ListQuery{States: []task.ExecutionState{s}}
	}
	for name, q := range list {
		if q.Namespace == "" {
			q.Namespace = "default"
			list[name] = q
		}
	}
	return list
}

// filtered tells that a filter leaves out rows of the parts that it reads.
func filtered(name string, q scheduler.ListQuery) bool {
	return q.Name != "" || q.Labels != nil ||
		len(q.States) > 0 && name != "all that is live" && slices.ContainsFunc(q.States, func(s task.ExecutionState) bool { return !s.Terminal() })
}

// firstPage reads the first page of a filter, and looks at the plans and the time.
func (l *listing) firstPage(when, name string, q scheduler.ListQuery) {
	l.t.Helper()
	q.Limit = 50
	if took := l.best(func() error { _, err := l.store.ListExecutions(l.t.Context(), q); return err }); took > listedAtOnce {
		l.t.Errorf("%s, %s: took %v", when, name, took)
	}
	buffers := 0
	for _, p := range l.plans.during(func() { _, _ = l.store.ListExecutions(l.t.Context(), q) }) {
		p.check(l.t, when+", "+name, false)
		buffers += p.buffers()
	}
	most := plainBuffers
	if filtered(name, q) {
		most = filteredBuffers
	}
	if buffers == 0 || buffers > most {
		l.t.Errorf("%s, %s: a page reads %d buffers, want at most %d", when, name, buffers, most)
	}
}

// best is the shortest time of some tries, for the machine has others to serve. In the short form
// nothing is measured.
func (l *listing) best(f func() error) time.Duration {
	l.t.Helper()
	var best time.Duration
	for range rounds(0, 3) {
		began := time.Now()
		if err := f(); err != nil {
			l.t.Fatal(err)
		}
		if took := time.Since(began); best == 0 || took < best {
			best = took
		}
	}
	return best
}

// pages reads all pages of a filter: newest first, nothing twice. It returns how many there were.
func (l *listing) pages(name string, q scheduler.ListQuery, limit int) (found, pages int) {
	l.t.Helper()
	q.Limit = limit
	seen := map[uuid.UUID]bool{}
	var last *scheduler.ExecutionView
	for {
		page, err := l.store.ListExecutions(l.t.Context(), q)
		if err != nil {
			l.t.Fatalf("%s: %v", name, err)
		}
		pages++
		for i := range page.Executions {
			e := &page.Executions[i]
			if seen[e.ID] || last != nil && (e.CreatedAt.After(last.CreatedAt) || e.CreatedAt.Equal(last.CreatedAt) && e.ID.String() > last.ID.String()) {
				l.t.Fatalf("%s: %s of %s comes twice, or after what is older", name, e.ID, e.CreatedAt)
			}
			seen[e.ID], last = true, e
		}
		if page.Next == nil {
			return len(seen), pages
		}
		q.Before = page.Next
	}
}

// count is how many executions a filter has.
func (l *listing) count(q scheduler.ListQuery) int {
	l.t.Helper()
	states := []string{}
	for _, s := range q.States {
		states = append(states, string(s))
	}
	return query[int](l.stand, `SELECT count(*) FROM executions WHERE namespace = $1 AND (cardinality($2::text[]) = 0 OR state = ANY($2))
		AND ($3 = '' OR name = $3) AND ($4 = '' OR labels ->> 'color' = $4)`, q.Namespace, states, q.Name, q.Labels["color"])
}

// TestB123_ListingMillions: whatever the filter, the statistics and the plans, the first page
// comes at once, without a full scan, also where what is asked for is the oldest; and all pages
// together have everything just once. Caught: one index for all states; a page that reads on
// until it is full; a page that ends where only one of its parts was looked at.
func TestB123_ListingMillions(t *testing.T) {
	t.Parallel()
	l := fillList(t, rounds(60_000, 5_000_000), false)
	for _, state := range []struct{ statistics, mode string }{
		{"never taken", "force_generic_plan"}, {"never taken", "force_custom_plan"}, {"fresh", "force_generic_plan"}, {"fresh", "force_custom_plan"},
	} {
		if state.statistics == "fresh" {
			l.exec("ANALYZE executions")
		}
		l.reopen(state.mode)
		for name, q := range filters() {
			l.firstPage("statistics "+state.statistics+", "+state.mode, name, q)
		}
		l.byKey()
	}
	for name, q := range filters() {
		want := l.count(q)
		if want > 20_000 && (name != "none" || want > 200_000) {
			continue // every page of these is full
		}
		if found, pages := l.pages(name, q, 1000); found != want || pages > l.n/5_000+want/1000+2 {
			t.Errorf("%s: %d executions in %d pages, want %d", name, found, pages, want)
		}
	}
}

// byKey finds an execution by its key.
func (l *listing) byKey() {
	l.t.Helper()
	for _, p := range l.plans.during(func() {
		q := scheduler.ExecutionQuery{Namespace: "default", IdempotencyKey: "key-60", AfterOrdinal: -1}
		if _, _, err := l.store.GetExecution(l.t.Context(), q); err != nil {
			l.t.Errorf("by key: %v", err)
		}
	}) {
		p.check(l.t, "by key", false)
		if p.buffers() > 20 {
			l.t.Errorf("by key: %s reads %d buffers", p.name, p.buffers())
		}
	}
}

// TestB120_EveryFilterWithEqualTimes: pages of sizes that do not divide the number of equal
// instants, with all states mixed.
func TestB120_EveryFilterWithEqualTimes(t *testing.T) {
	t.Parallel()
	l := fillList(t, 3_500, true)
	at := time.Date(2026, 1, 1, 0, 0, 5, 0, time.UTC)
	for name, q := range filters() {
		for _, limit := range []int{61, 499} {
			if found, _ := l.pages(name, q, limit); found != l.count(q) {
				t.Errorf("%s, %d a page: %d executions, want %d", name, limit, found, l.count(q))
			}
		}
	}
	between := scheduler.ListQuery{Namespace: "default", CreatedAfter: at, CreatedBefore: at.Add(2 * time.Second)}
	want := query[int](l.stand, "SELECT count(*) FROM executions WHERE namespace = 'default' AND created_at >= $1 AND created_at < $2", between.CreatedAfter, between.CreatedBefore)
	if found, _ := l.pages("between", between, 13); found != want || want < 900 {
		t.Errorf("between two instants: %d executions, want %d", found, want)
	}
}

// Plans that were made while the table was small are good for a large one. Caught: a sort of
// what an index has in order, or the primary key walked as a whole.
func TestPlans_ListsMadeOnSmallTables(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"never analyzed", "analyzed when empty", "analyzed when small"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			l := &listing{stand: newStand(t), plans: &explainer{t: t}}
			if state == "analyzed when empty" {
				l.exec("ANALYZE")
			}
			for range 10 {
				l.enqueue(spec("a", 1))
			}
			if state == "analyzed when small" {
				l.exec("ANALYZE")
			}
			l.reopen("force_generic_plan")
			for name, q := range filters() {
				q.Limit = 50
				for _, p := range l.plans.during(func() {
					if _, err := l.store.ListExecutions(t.Context(), q); err != nil {
						t.Fatal(err)
					}
				}) {
					p.check(t, state+", "+name, false)
					l.readsInOrder(p)
				}
			}
		})
	}
}

// readsInOrder fails unless the ordered parts come from their indexes, of which only the rows
// that are needed are read.
func (l *listing) readsInOrder(p planned) {
	l.t.Helper()
	if !strings.HasPrefix(p.name, "List") {
		return
	}
	text := p.indexes()
	for _, index := range []string{"executions_ended", "executions_live"} {
		if !strings.Contains(text, index) {
			l.t.Errorf("%s does not read %s: %s", p.name, index, text)
		}
	}
	p.root.walk(func(n *plan) {
		if n.NodeType != "Sort" {
			return
		}
		for i := range n.Plans {
			if n.Plans[i].Relation == "executions" {
				l.t.Errorf("%s sorts executions: %s", p.name, text)
			}
		}
	})
}

// Until its end no update of an execution touches what an index holds. Caught: an index, or the
// predicate of one, on a column that a dispatch or a report writes.
func TestLists_UpdatesUntilTheEndAreHOT(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.exec("ALTER TABLE executions SET (autovacuum_enabled = off)")
	w := s.register("w", "a", 100)
	const n = 8 // of them and of their versions one page is not full
	for range n {
		s.enqueue(spec("a", 2))
	}
	for range 2 {
		for _, l := range s.lease(w, n, time.Hour) {
			if _, err := s.report(success(l)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if ended := query[int](s, "SELECT count(*) FROM executions WHERE outcome = 'SUCCEEDED'"); ended != n {
		t.Fatalf("%d executions have ended, want %d", ended, n)
	}
	s.store.Close() // sessions hand their statistics in when they end
	s.eventually("the statistics", func() bool {
		return query[int](s, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'executions'") >= 2*n
	})
	all := query[int](s, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'executions'")
	hot := query[int](s, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'executions'")
	t.Logf("%d of %d updates are HOT", hot, all)
	if all-hot > n {
		t.Errorf("%d of %d updates are not HOT, want only the %d that end an execution", all-hot, all, n)
	}
}
