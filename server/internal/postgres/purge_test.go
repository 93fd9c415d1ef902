package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// purge removes what is older than age, of one kind, and fails the test unless it removed as
// much.
func (s *stand) purge(kind scheduler.PurgeKind, age time.Duration, want int) {
	s.t.Helper()
	if n := s.purgeSome(kind, age, false); n != want {
		s.t.Fatalf("%d %s are removed, want %d", n, kind, want)
	}
}

func (s *stand) purgeSome(kind scheduler.PurgeKind, age time.Duration, dryRun bool) (removed int) {
	s.t.Helper()
	groups := []scheduler.EndedGroup{{}}
	if kind == scheduler.PurgeExecutions {
		var err error
		if groups, err = s.store.EndedGroups(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, g := range groups {
		b := scheduler.PurgeBatch{Kind: kind, Group: g, Age: age, Limit: 200, DryRun: dryRun}
		for more := true; more; {
			p, err := s.store.Purge(s.t.Context(), b)
			if err != nil {
				s.t.Fatal(err)
			}
			removed += p.Removed
			b.After, more = p.Next, p.More
		}
	}
	return removed
}

// settleEvents makes all events PUBLISHED.
func (s *stand) settleEvents() {
	s.t.Helper()
	s.exec("UPDATE outbox_events SET status = 'PUBLISHED', published_at = now(), available_at = now()")
	s.exec("DELETE FROM outbox_heads")
}

// belongings are the tables of what belongs to executions, each with how to find whose a row is.
func belongings() map[string]string {
	const ofStep = "(SELECT s.execution_id FROM steps s WHERE s.id = x.step_id)"
	return map[string]string{
		"executions": "x.id", "steps": "x.execution_id", "attempts": ofStep, "payloads": ofStep, "leases": ofStep,
		"step_edges": "(SELECT s.execution_id FROM steps s WHERE s.id = x.child_id)", "scheduling_requests": ofStep,
		"timers": "x.execution_id", "timeline_entries": "x.execution_id", "outbox_events": "x.aggregate_id", "outbox_heads": "x.aggregate_id",
	}
}

// contents is everything that there is of an execution, as text.
func (s *stand) contents(execution uuid.UUID) string {
	s.t.Helper()
	var all []string
	for table, owner := range belongings() {
		all = append(all, query[string](s, fmt.Sprintf(
			`SELECT '%s ' || count(*) || ' ' || COALESCE(md5(string_agg(x::text, ',' ORDER BY x::text)), '') FROM %s x WHERE %s = $1`, table, table, owner), execution))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// leftovers fails the test for rows that belong to no execution.
func (s *stand) leftovers() {
	s.t.Helper()
	for table, owner := range belongings() {
		if n := query[int](s, fmt.Sprintf(`SELECT count(*) FROM %s x WHERE NOT EXISTS (SELECT FROM executions e WHERE e.id = %s)`, table, owner)); n != 0 {
			s.t.Errorf("%d rows of %s belong to nothing", n, table)
		}
	}
}

// story makes an execution of two steps, with payloads, a timeout, a failed attempt and a late
// report; it is ended unless live.
func (s *stand) story(w worker, live bool) uuid.UUID {
	s.t.Helper()
	payload := &task.Payload{JSON: true, Body: []byte(`"x"`)}
	ids := s.enqueue(spec("a", 2, func(e *task.ExecutionSpec) {
		e.Steps[1].DependsOn, e.Steps[0].Input, e.Timeout = []string{e.Steps[0].Name}, payload, time.Hour
		e.Labels = map[string]string{"a": "b"}
	}))
	for i := range 3 {
		var leases []scheduler.LeaseView
		s.eventually("an attempt", func() bool { leases = s.lease(w, 1, time.Hour); return len(leases) == 1 })
		if live && i == 2 {
			return ids.Execution
		}
		r := success(leases[0])
		r.Outcome.Output, r.Outcome.Checkpoint = payload, payload
		if i == 0 {
			r = failure(leases[0])
			r.Outcome.Checkpoint = payload
		}
		if _, err := s.report(r); err != nil {
			s.t.Fatal(err)
		}
		if i == 0 {
			_, err := s.report(success(leases[0]))
			s.refusedFor(err, task.ReasonOutcomeRecorded)
		}
	}
	return ids.Execution
}

// Whole executions that ended go, with all that belongs to them; nothing of any other changes:
// not of one that lives, not of one with an event that is not settled, not of a younger one.
// Caught: a table that is forgotten, a condition that is.
func TestPurge_WholeExecutionsAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 10)
	gone := []uuid.UUID{s.story(w, false), s.story(w, false), s.story(w, false)}
	unsettled := s.story(w, false)
	s.settleEvents()
	s.exec(`UPDATE outbox_events SET status = 'DEAD' WHERE aggregate_id = $1 AND sequence = 3`, unsettled)
	s.exec(`INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at) VALUES ($1, 3, 'infinity')`, unsettled)
	s.exec(`UPDATE executions SET created_at = created_at - interval '1 hour', ended_at = ended_at - interval '1 hour'`)
	young, live := s.story(w, false), s.story(w, true)
	s.exec(`UPDATE outbox_events SET status = 'PUBLISHED', published_at = now() WHERE aggregate_id = ANY($1)`, []uuid.UUID{young, live})
	s.exec(`DELETE FROM outbox_heads WHERE aggregate_id = ANY($1)`, []uuid.UUID{young, live})
	s.exec(`UPDATE executions SET created_at = created_at - interval '1 hour' WHERE id = $1`, live)
	kept := map[string]uuid.UUID{"with an unsettled event": unsettled, "young": young, "live": live}
	before := map[string]string{}
	for what, id := range kept {
		before[what] = s.contents(id)
	}
	if n := s.purgeSome(scheduler.PurgeExecutions, 30*time.Minute, true); n != len(gone) || query[int](s, "SELECT count(*) FROM executions") != 6 {
		t.Errorf("a dry run: %d", n)
	}
	s.purge(scheduler.PurgeExecutions, 30*time.Minute, len(gone))
	for what, id := range kept {
		if after := s.contents(id); after != before[what] {
			t.Errorf("the one that is %s was\n%s\nand is\n%s", what, before[what], after)
		}
	}
	s.leftovers()
	s.sane()
	for _, id := range gone {
		_, _, err := s.store.GetExecution(t.Context(), scheduler.ExecutionQuery{ID: id})
		var missing *scheduler.NotFoundError
		if !errors.As(err, &missing) {
			t.Errorf("get: %v", err)
		}
	}
	s.purge(scheduler.PurgeExecutions, 30*time.Minute, 0)
}

// One that another transaction holds is passed over, without waiting; the next walk finds it.
// Caught: a purge that waits for its locks.
func TestPurge_LeavesOutWhatIsHeld(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 10)
	held := s.story(w, false)
	for range 4 {
		s.story(w, false)
	}
	s.settleEvents()
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", held)
	s.purge(scheduler.PurgeExecutions, 0, 4) // a wait would end in an error
	h.release()
	s.purge(scheduler.PurgeExecutions, 0, 1)
	s.leftovers()
}

// intruder does something just before a statement is sent, once.
type intruder struct {
	before string
	do     func()
}

// TraceQueryStart intrudes.
func (i *intruder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if name, named := queryName(data.SQL); named && name == i.before && i.do != nil {
		do := i.do
		i.do = nil
		do()
	}
	return ctx
}

// TraceQueryEnd has nothing to do.
func (i *intruder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What was found to be old is looked at anew when it is locked. Caught: a purge that goes by what
// it saw before: a new round, or an event that is not settled, would be lost.
func TestPurge_LooksAnewUnderTheLock(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for what, statement := range map[string]string{
		"reopened":        "UPDATE executions SET state = 'QUEUED', ended_at = NULL",
		"ended since":     "UPDATE executions SET ended_at = now()",
		"with a new head": "INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at) SELECT id, 1, now() FROM executions",
		"as it was":       "SELECT 1",
	} {
		s.exec("TRUNCATE executions, steps, attempts, outbox_events, outbox_heads")
		s.unsettled(1)
		s.settleEvents()
		tracer := &intruder{before: "LockOldExecutions", do: func() { s.exec(statement) }}
		s.store = s.open(postgres.Config{})
		if err := s.store.Trace(t.Context(), tracer, nil); err != nil {
			t.Fatal(err)
		}
		want := 0
		if what == "as it was" {
			want = 1
		}
		if n := s.purgeSome(scheduler.PurgeExecutions, time.Hour, false); n != want || tracer.do != nil {
			t.Errorf("one that is %s: %d are removed, want %d", what, n, want)
		}
	}
}

// A giant goes as a whole, in statements that are bounded; nobody sees half of it meanwhile.
// Caught: children that go in transactions of their own.
func TestPurge_GiantIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const steps = 10_000
	id := uuid.New()
	s.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at, ended_at,
			cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
		VALUES ($1, 'default', 'giant', '', 'SUCCEEDED', 1, 0, false, now(), now(), now(), '1 s', 7000, 6000, $2, 0, 0, 0)`, id, steps)
	s.exec(`INSERT INTO capabilities (namespace, name) VALUES ('default', 'a')`)
	s.exec(`INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents)
		SELECT gen_random_uuid(), $1, g, 's' || g, c.id, 0, 'SUCCEEDED', '1 hour', true, 0 FROM generate_series(1, $2::integer) g, capabilities c`, id, steps)
	s.exec(`INSERT INTO step_edges (child_id, parent_id) SELECT a.id, b.id FROM steps a JOIN steps b ON b.ordinal = a.ordinal - 1`)
	s.exec(`INSERT INTO payloads (step_id, role, is_json, body) SELECT id, r, false, '\x00' FROM steps, unnest(ARRAY['INPUT', 'OUTPUT']) r`)
	s.exec(`INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, lease_version, leased_at, start_to_close_at, ended_at, lease_entry, end_entry)
		SELECT gen_random_uuid(), s.id, n, 1, 'FAILED', $1, $1, 'w', n, now(), now(), now(), 1, 1 FROM steps s, generate_series(1, CASE s.ordinal WHEN 7 THEN 12000 ELSE 1 END) n`, id)
	s.exec(`INSERT INTO timeline_entries (execution_id, sequence, milestone, stage, component, title, at)
		SELECT $1, g, 'm' || g, 'EXECUTION', 'x', 'x', now() FROM generate_series(1, 7000) g`, id)
	s.exec(`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, status, available_at, created_at, published_at)
		SELECT gen_random_uuid(), 'default', $1, 't', g, '{}', 'PUBLISHED', now(), now(), now() FROM generate_series(1, 6000) g`, id)
	done := make(chan struct{})
	reader := async(func() error {
		for {
			view, more, err := s.store.GetExecution(context.Background(), scheduler.ExecutionQuery{ID: id, AfterOrdinal: -1, StepLimit: steps})
			var missing *scheduler.NotFoundError
			switch {
			case errors.As(err, &missing):
			case err != nil:
				return err
			case len(view.Steps) != steps || more || len(view.Steps[6].Attempts) == 0:
				return fmt.Errorf("%d of %d steps, %d attempts", len(view.Steps), steps, len(view.Steps[6].Attempts))
			}
			select {
			case <-done:
				return nil
			default:
			}
		}
	})
	s.purge(scheduler.PurgeExecutions, 0, 1)
	close(done)
	if err := <-reader; err != nil {
		t.Errorf("a reader saw %v", err)
	}
	s.leftovers()
}

// Rule 10. What an unknown commit removed is counted.
func TestRepeats_LostCommitOfAPurge(t *testing.T) {
	cuts(t, func(t *testing.T, s *cutStand, c cutting) {
		s.direct.unsettled(3)
		s.settleEvents()
		s.cutOnce(c, nil, func() error {
			p, err := s.store.Purge(t.Context(), scheduler.PurgeBatch{
				Kind: scheduler.PurgeExecutions, Group: scheduler.EndedGroup{Namespace: "default", Outcome: "SUCCEEDED"}, Limit: 10,
			})
			if err == nil && p.Removed != 3 {
				err = fmt.Errorf("%d are removed, want 3", p.Removed)
			}
			return err
		})
		s.leftovers()
	})
}

// Events leave when they were settled long ago, and no others.
func TestPurge_SettledEvents(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	s := &stand{t: t, store: r.store, sql: r.pool}
	id := r.add(1, 12)[0]
	for i, status := range []string{"PENDING", "PUBLISHING", "PUBLISHED", "FAILED", "DEAD", "SKIPPED"} {
		for j, ago := range []string{"2 hours", "1 minute"} { // settled, or due, so long ago
			s.exec(`UPDATE outbox_events SET status = $1, created_at = now() - interval '3 hours', available_at = now() - $2::interval,
				published_at = CASE $1 WHEN 'PUBLISHED' THEN now() - $2::interval END WHERE aggregate_id = $3 AND sequence = $4`, status, ago, id, 1+2*i+j)
		}
	}
	if n := s.purgeSome(scheduler.PurgeEvents, time.Hour, true); n != 2 {
		t.Errorf("a dry run: %d", n)
	}
	s.purge(scheduler.PurgeEvents, time.Hour, 2)
	if left := query[[]int64](s, "SELECT array_agg(sequence ORDER BY sequence) FROM outbox_events"); fmt.Sprint(left) != "[1 2 3 4 6 7 8 9 10 12]" {
		t.Errorf("left are %v", left)
	}
	s.purge(scheduler.PurgeEvents, 4*time.Hour, 0) // by age too
}

// A dead event is dropped in the end, and the later ones of its execution go on, in order; the
// timeline tells of it. Caught: a head that stays behind what is gone; young ones dropped.
func TestPurge_DeadEventsLetTheOthersGo(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	s := &stand{t: t, store: r.store, sql: r.pool}
	old, young := r.add(250, 3), r.add(3, 3)
	r.kill(old...)
	r.kill(young...)
	s.exec(`UPDATE outbox_events SET available_at = now() - interval '31 days' WHERE status = 'DEAD' AND aggregate_id = ANY($1)`, old)
	if n := s.purgeSome(scheduler.PurgeDeadEvents, 30*24*time.Hour, true); n != len(old) {
		t.Errorf("a dry run: %d", n)
	}
	s.purge(scheduler.PurgeDeadEvents, 30*24*time.Hour, len(old))
	if n := query[int](s, "SELECT count(*) FROM timeline_entries WHERE milestone LIKE 'r1/outbox/dropped/%' AND details ->> 'first_sequence' = '1'"); n != len(old) {
		t.Errorf("%d executions tell of it, want %d", n, len(old))
	}
	got := &sink{}
	r.relay(got, outbox.Config{})
	r.await("the later ones are published", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHED'") == 2*len(old) })
	last := map[uuid.UUID]int64{}
	for _, e := range got.received() {
		if e.Sequence <= last[e.AggregateID] {
			t.Fatalf("event %d of %s after %d", e.Sequence, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = e.Sequence
	}
	if n := r.count("outbox_events WHERE status = 'DEAD'"); n != len(young) {
		t.Errorf("%d are DEAD, want the %d young ones", n, len(young))
	}
	s.purge(scheduler.PurgeDeadEvents, 30*24*time.Hour, 0)
}

// Workers go that were not seen for long and hold nothing. One that comes back by its name is a
// new one; so whom an operator has drained stays, and comes back drained. Caught: a worker that goes
// with a live lease, or with its drain.
func TestPurge_WorkersThatLeftLongAgo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	gone, holding, drained, seen := s.register("gone", "a", 1), s.register("holding", "a", 1), s.register("drained", "a", 1), s.register("seen", "a", 1)
	s.enqueue(spec("a", 1))
	if len(s.lease(holding, 1, time.Hour)) != 1 {
		t.Fatal("no lease")
	}
	drain := scheduler.Drain{Namespace: "default", Kind: scheduler.DrainWorker, Value: drained.WorkerID.String(), Draining: true}
	if _, err := s.store.SetDrain(t.Context(), drain); err != nil {
		t.Fatal(err)
	}
	s.exec("UPDATE workers SET last_seen_at = now() - interval '8 days' WHERE name <> 'seen'")
	if n := s.purgeSome(scheduler.PurgeWorkers, 7*24*time.Hour, true); n != 2 { // leases are looked at under the lock only
		t.Errorf("a dry run: %d", n)
	}
	s.purge(scheduler.PurgeWorkers, 7*24*time.Hour, 1)
	for _, tt := range []struct {
		w    worker
		left int
	}{{gone, 0}, {holding, 1}, {drained, 1}, {seen, 1}} {
		if n := query[int](s, "SELECT (SELECT count(*) FROM workers WHERE id = $1) + (SELECT count(*) FROM sessions WHERE worker_id = $1)", tt.w.WorkerID); n != 2*tt.left {
			t.Errorf("%s: %d of %d rows are left", tt.w.reg.Name, n, 2*tt.left)
		}
		if again := s.register(tt.w.reg.Name, "a", 1); (again.WorkerID == tt.w.WorkerID) != (tt.left == 1) {
			t.Errorf("%s comes back as %v, it was %v", tt.w.reg.Name, again.WorkerID, tt.w.WorkerID)
		}
	}
	view, err := s.store.GetWorker(t.Context(), drained.WorkerID)
	if err != nil || !view.Standing.Drained {
		t.Errorf("the drained one came back as %+v, %v", view.Standing, err)
	}
	drain.Value = gone.WorkerID.String()
	var missing *scheduler.NotFoundError
	if _, err := s.store.SetDrain(t.Context(), drain); !errors.As(err, &missing) {
		t.Errorf("drain of one that is gone: %v", err)
	}
}

// A drain and a removal of the same worker never both happen. Caught: SetDrain that looks without a
// lock.
func TestPurge_MeetsADrain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 1)
	s.exec("UPDATE workers SET last_seen_at = now() - interval '8 days'")
	h := s.hold("DELETE FROM workers WHERE id = $1", w.WorkerID) // as a removal under way
	drained := async(func() error {
		_, err := s.store.SetDrain(context.Background(), scheduler.Drain{
			Namespace: "default", Kind: scheduler.DrainWorker, Value: w.WorkerID.String(), Draining: true,
		})
		return err
	})
	s.waiting(1)
	h.release()
	err := <-drained
	var missing *scheduler.NotFoundError
	if n := query[int](s, "SELECT count(*) FROM drains"); n != 0 || !errors.As(err, &missing) && !isUnavailable(err) {
		t.Errorf("%v, and %d drains of nobody", err, n)
	}
}

// The right to purge is one replica's, until it is silent for long.
func TestHoldPurge_OneAtATime(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	one, two := uuid.New(), uuid.New()
	hold := func(holder uuid.UUID, silence time.Duration, want bool) {
		t.Helper()
		if got, err := s.store.HoldPurge(t.Context(), holder, silence); err != nil || got != want {
			t.Errorf("hold: %v, %v, want %v", got, err, want)
		}
	}
	hold(one, time.Minute, true)
	hold(two, time.Minute, false)
	hold(one, time.Minute, true)
	s.exec("UPDATE purges SET held_at = now() - interval '2 minutes'")
	hold(two, time.Minute, true)
	hold(one, time.Minute, false)
	s.exec("UPDATE purges SET held_at = now() + interval '1 hour'") // the clock went back
	hold(one, time.Minute, true)
	h := s.hold("SELECT FROM purges FOR UPDATE")
	hold(one, time.Minute, false) // nobody waits for it
	h.release()
}

// The statements of retention read the indexes that they are meant for, and a batch that can
// remove nothing looks at so many rows and no more. Caught: a walk that begins with the oldest
// each time; a plan of a small table that scans a large one.
func TestPlans_OfRetention(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"never analyzed", "analyzed when empty", "analyzed"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			l := &listing{stand: newStand(t), plans: &explainer{t: t}}
			if state == "analyzed when empty" {
				l.exec("ANALYZE")
			}
			l.unsettled(6_000)
			if state == "analyzed" {
				l.exec("ANALYZE")
			}
			l.reopen("force_generic_plan")
			for _, kind := range []scheduler.PurgeKind{scheduler.PurgeExecutions, scheduler.PurgeEvents, scheduler.PurgeDeadEvents, scheduler.PurgeWorkers} {
				plans := l.plans.during(func() { l.purgeSome(kind, time.Hour, false) })
				for _, p := range plans {
					p.check(t, state+", "+string(kind), false)
					if p.buffers() > 10_000 {
						t.Errorf("%s, %s: %s reads %d buffers", state, kind, p.name, p.buffers())
					}
				}
				if kind == scheduler.PurgeExecutions && len(plans) < 7 {
					t.Errorf("%d statements only", len(plans))
				}
			}
			if n := query[int](l.stand, "SELECT count(*) FROM executions"); n != 6_000 {
				t.Errorf("%d executions are left", n)
			}
			l.settleEvents()
			for _, p := range l.plans.during(func() { l.purgeSome(scheduler.PurgeExecutions, time.Hour, false) }) {
				p.check(t, state+", settled", false)
			}
			if n := query[int](l.stand, "SELECT count(*) FROM executions"); n != 0 {
				t.Errorf("%d executions are left", n)
			}
			l.leftovers()
		})
	}
}

// unsettled fills in old executions, each of a step with an attempt and an event that waits.
func (s *stand) unsettled(n int) {
	s.t.Helper()
	s.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at, ended_at,
			cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
		SELECT md5('e' || g)::uuid, 'default', 'old', '', 'SUCCEEDED', 1, 0, false, at, at, at, '1 s', 4, 1, 1, 0, 0, 0
		FROM (SELECT g, now() - interval '1 day' + g * interval '1 ms' AS at FROM generate_series(1, $1::integer) g) x`, n)
	s.exec(`INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents)
		SELECT md5('s' || g)::uuid, md5('e' || g)::uuid, 0, 's', 1, 0, 'SUCCEEDED', '1 hour', false, 0 FROM generate_series(1, $1::integer) g`, n)
	s.exec(`INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, lease_version, leased_at, start_to_close_at, ended_at, lease_entry, end_entry)
		SELECT gen_random_uuid(), md5('s' || g)::uuid, 1, 1, 'SUCCEEDED', gen_random_uuid(), gen_random_uuid(), 'w', g, now(), now(), now(), 2, 3 FROM generate_series(1, $1::integer) g`, n)
	s.exec(`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, available_at, created_at)
		SELECT gen_random_uuid(), 'default', id, 't', 1, '{}', created_at, created_at FROM executions WHERE name = 'old'`)
	s.exec(`INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at) SELECT id, 1, 'infinity' FROM executions WHERE name = 'old'`)
	s.exec(`UPDATE outbox_events SET status = 'DEAD', available_at = now() WHERE event_type = 't'`)
}
