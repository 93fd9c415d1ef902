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
