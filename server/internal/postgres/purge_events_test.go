package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

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
