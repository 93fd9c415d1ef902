package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/task"
)

// sink records what it was given, and answers as it is told.
type sink struct {
	mu     sync.Mutex
	got    []outbox.Event
	answer func(e *outbox.Event, before int) error // before: how often the event came already
	times  map[uuid.UUID]int
}

func (s *sink) Publish(ctx context.Context, e *outbox.Event) error {
	s.mu.Lock()
	before := s.times[e.ID]
	if s.times == nil {
		s.times = map[uuid.UUID]int{}
	}
	s.times[e.ID]++
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if err := answer(e, before); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, *e)
	return ctx.Err()
}

func (s *sink) Close() error { return nil }

func (s *sink) received() []outbox.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]outbox.Event(nil), s.got...)
}

// relayRig is an outbox with events in it, and relays that empty it.
type relayRig struct {
	t     *testing.T
	store *postgres.Store
	pool  *pgxpool.Pool
}

func newRelayRig(t *testing.T) *relayRig {
	t.Helper()
	url := databases.New(t)
	store, err := postgres.Open(t.Context(), postgres.Config{URL: url, Events: task.AllEventTypes()})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close(); store.Close() })
	return &relayRig{t: t, store: store, pool: pool}
}

// add adds aggregates with events, as a writer does: the events, then the head.
func (r *relayRig) add(aggregates, events int) []uuid.UUID {
	r.t.Helper()
	ids := make([]uuid.UUID, aggregates)
	for i := range ids {
		ids[i] = uuid.New()
		r.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at,
			cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
			VALUES ($1, 'default', 'x', '', 'RUNNING', 1, 0, false, now(), now(), '1 s', 1, $2, 1, 1, 0, 0)`, ids[i], events)
		r.exec(`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, available_at, created_at)
			SELECT gen_random_uuid(), 'default', $1, 'leasehold.step.v1.succeeded', n, '{}', now(), now() FROM generate_series(1, $2::int) n`, ids[i], events)
		r.exec(`INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at) VALUES ($1, 1, now())`, ids[i])
	}
	return ids
}

func (r *relayRig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r *relayRig) count(where string) int {
	r.t.Helper()
	var n int
	if err := r.pool.QueryRow(r.t.Context(), "SELECT count(*) FROM "+where).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *relayRig) relay(s *sink, c outbox.Config) (stop func()) {
	c.Source, c.Publisher = r.store.Outbox(), s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = outbox.NewRelay(c).Run(ctx) }()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	r.t.Cleanup(stop)
	return stop
}

func (r *relayRig) await(what string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			r.t.Fatalf("not in time: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// checkOrder fails unless the first delivery of each event came after those before it.
func checkOrder(t *testing.T, got []outbox.Event) {
	t.Helper()
	last := map[uuid.UUID]int64{}
	for _, e := range got {
		if e.Sequence > last[e.AggregateID]+1 {
			t.Fatalf("event %d of %s came after %d", e.Sequence, e.AggregateID, last[e.AggregateID])
		}
		last[e.AggregateID] = max(last[e.AggregateID], e.Sequence)
	}
}

// B78: while event 1 waits for its retry, event 2 of the same execution waits too. Caught: a
// run that goes on behind a failure.
func TestB78_OrderPerExecution(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.add(100, 3)
	s := &sink{answer: func(e *outbox.Event, before int) error {
		if e.Sequence == 1 && before == 0 {
			return errors.New("not this time")
		}
		return nil
	}}
	r.relay(s, outbox.Config{})
	r.relay(s, outbox.Config{})
	r.await("all are published", func() bool { return r.count("outbox_events WHERE status <> 'PUBLISHED'") == 0 })
	checkOrder(t, s.received())
	if n := r.count("outbox_heads"); n != 0 {
		t.Errorf("%d heads are left", n)
	}
	if n := r.count("outbox_events WHERE sequence = 1 AND (attempts <> 2 OR published_at IS NULL)"); n != 0 {
		t.Errorf("%d first events do not tell their two tries", n)
	}
}

// B77: what the sink refuses is parked with its reason, holds back its own execution only, and
// the good events of others arrive. Caught: heads of dead events that stay due.
func TestB77_PoisonEventDoesNotBlock(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	bad := map[uuid.UUID]bool{}
	for _, id := range r.add(50, 20) {
		bad[id] = true
	}
	good := r.add(100, 2)
	s := &sink{answer: func(e *outbox.Event, _ int) error {
		if bad[e.AggregateID] {
			return &outbox.RefusedError{Cause: errors.New("too large\x00")}
		}
		return nil
	}}
	r.relay(s, outbox.Config{})
	r.await("good events are published", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHED'") == 2*len(good) })
	r.await("bad ones are dead", func() bool { return r.count("outbox_events WHERE status = 'DEAD' AND sequence = 1") == len(bad) })
	if n := r.count("outbox_events WHERE status = 'DEAD' AND last_error NOT LIKE 'refused for good: too large%'"); n != 0 {
		t.Errorf("%d dead events do not tell their reason", n)
	}
	if n := r.count("outbox_events WHERE status = 'PENDING' AND sequence > 1"); n != 19*len(bad) {
		t.Errorf("%d events wait behind dead ones, want %d", n, 19*len(bad))
	}
	for id, n := range s.times {
		if n != 1 {
			t.Errorf("event %s was tried %d times", id, n)
		}
	}
}

// The limit of tries parks an event; a sink that is away does not count.
func TestRelay_LimitCountsTriesOfASinkThatIsThere(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.add(1, 1)
	s := &sink{answer: func(_ *outbox.Event, before int) error {
		if before < 3 {
			return &outbox.AwayError{Cause: errors.New("no route")}
		}
		return errors.New("no")
	}}
	r.relay(s, outbox.Config{MaximumAttempts: 2})
	r.await("it is dead", func() bool { return r.count("outbox_events WHERE status = 'DEAD' AND attempts = 2") == 1 })
	if n := r.count("outbox_heads WHERE available_at = 'infinity'"); n != 1 {
		t.Error("the head of a dead event is due")
	}
}

// A claim that ran out is taken over, and what its first owner settles late changes nothing.
// Caught: a settlement without a look at the claim.
func TestRelay_LostClaimWritesNothing(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.add(1, 2)
	source := r.store.Outbox()
	first, err := source.Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 1, Events: 10, Expires: time.Minute})
	if err != nil || len(first) != 1 || len(first[0].Events) != 2 {
		t.Fatalf("claim: %v, %+v", err, first)
	}
	if again, err := source.Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 1, Events: 10, Expires: time.Minute}); err != nil || len(again) != 0 {
		t.Fatalf("a claimed head was claimed: %v, %+v", err, again)
	}
	r.exec("UPDATE outbox_heads SET claim_expires_at = now() - interval '1 s'")
	second, err := source.Claim(t.Context(), outbox.Claim{ID: uuid.New(), Heads: 1, Events: 10, Expires: time.Minute})
	if err != nil || len(second) != 1 || len(second[0].Events) != 2 {
		t.Fatalf("take over: %v, %+v", err, second)
	}
	lost, err := source.Settle(t.Context(), []outbox.RunResult{{Run: first[0], Published: 2}})
	if err != nil || lost != 1 || r.count("outbox_events WHERE status = 'PUBLISHING'") != 2 {
		t.Fatalf("late settlement: %v, lost %d", err, lost)
	}
	lost, err = source.Settle(t.Context(), []outbox.RunResult{{Run: second[0], Published: 1}})
	if err != nil || lost != 0 || r.count("outbox_events WHERE status = 'PUBLISHED'") != 1 || r.count("outbox_events WHERE status = 'PENDING'") != 1 {
		t.Fatalf("settlement: %v, lost %d", err, lost)
	}
	if r.count("outbox_heads WHERE next_sequence = 2 AND claim_id IS NULL") != 1 {
		t.Error("the head does not lead to the untried event")
	}
}

// B85: several relays publish each event once while nothing fails; a stop in the middle leaves
// nothing PUBLISHING.
func TestB85_SeveralRelaysFewDuplicates(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	r.add(200, 10)
	s := &sink{}
	stops := []func(){r.relay(s, outbox.Config{}), r.relay(s, outbox.Config{}), r.relay(s, outbox.Config{})}
	r.await("some are published", func() bool { return len(s.received()) > 200 })
	stops[0]()
	r.await("all are published", func() bool { return r.count("outbox_events WHERE status <> 'PUBLISHED'") == 0 })
	got := s.received()
	checkOrder(t, got)
	if len(got) > 2020 {
		t.Errorf("%d deliveries of 2000 events", len(got))
	}
	for _, stop := range stops {
		stop()
	}
	if n := r.count("outbox_events WHERE status = 'PUBLISHING'"); n != 0 {
		t.Errorf("%d events are PUBLISHING after a stop", n)
	}
}

// A slow sink holds no transaction and no lock: writers go on, and others' events arrive.
func TestRelay_SlowSinkHoldsNothing(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	slow := r.add(1, 1)[0]
	release := make(chan struct{})
	s := &sink{answer: func(e *outbox.Event, _ int) error {
		if e.AggregateID == slow {
			<-release
		}
		return nil
	}}
	r.relay(s, outbox.Config{})
	r.await("the slow one is under way", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHING'") == 1 })
	// One that were held would be open at every look: the sink answers only below.
	r.await("no transaction is open", func() bool {
		return r.count("pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'") == 0
	})
	r.exec(`UPDATE outbox_heads SET available_at = available_at WHERE aggregate_id = $1`, slow) // a writer does not wait
	others := r.add(20, 3)
	r.await("the others arrive", func() bool { return r.count("outbox_events WHERE status = 'PUBLISHED'") == 3*len(others) })
	close(release)
	r.await("the slow one too", func() bool { return r.count("outbox_events WHERE status <> 'PUBLISHED'") == 0 })
	if n := len(s.received()); n != 61 {
		t.Error(fmt.Sprint(n), "deliveries of 61 events")
	}
}

// What idle relays did does not make a burst slow: the plans that they left, made on empty tables,
// take what was asked for, and no more. Caught: the heads chosen by a subquery that is joined (all
// 3,000 were claimed for one, in seconds), heads moved by a walk over all of them.
func TestRelay_BurstAfterIdling(t *testing.T) {
	t.Parallel()
	r := newRelayRig(t)
	ctx := t.Context()
	source := r.store.Outbox()
	r.exec("VACUUM ANALYZE outbox_heads")
	r.exec("VACUUM ANALYZE outbox_events")
	const heads = 3000
	claim := func(n int) []outbox.Run {
		t.Helper()
		runs, err := source.Claim(ctx, outbox.Claim{ID: uuid.New(), Heads: n, Events: 10, Expires: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return runs
	}
	ids := r.add(1, 1)
	for range 30 { // on each connection often enough for a plan that is kept
		claimed := claim(1)
		if len(claimed) == 1 {
			result := outbox.RunResult{Run: claimed[0], Failure: &outbox.Failure{Reason: "no", Free: true}}
			if _, err := source.Settle(ctx, []outbox.RunResult{result}); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.exec("DELETE FROM outbox_events WHERE aggregate_id = $1", ids[0])
	r.exec("DELETE FROM outbox_heads")
	r.exec("VACUUM ANALYZE outbox_heads")
	r.exec("VACUUM ANALYZE outbox_events")
	for range 30 {
		claim(1)
	}
	r.exec(`INSERT INTO executions (id, namespace, name, content_hash, state, round, priority, fail_fast, created_at, due_at,
			cancel_grace, revision, sequence, step_count, open_steps, unsuccessful_steps, live_attempts)
		SELECT md5(n::text)::uuid, 'default', 'x', '', 'RUNNING', 1, 0, false, now(), now(), '1 s', 1, 1, 1, 1, 0, 0 FROM generate_series(1, $1::int) n`, heads)
	r.exec(`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, available_at, created_at)
		SELECT gen_random_uuid(), 'default', e.id, 'leasehold.step.v1.succeeded', 1, '{}', now(), now() FROM executions e WHERE e.sequence = 1 AND e.name = 'x' AND e.id <> $1`, ids[0])
	r.exec(`INSERT INTO outbox_heads (aggregate_id, next_sequence, available_at) SELECT aggregate_id, 1, now() FROM outbox_events`)
	if n := len(claim(1)); n != 1 {
		t.Fatalf("asked for 1 head, got %d", n)
	}
	began := time.Now()
	runs := claim(64)
	if len(runs) != 64 {
		t.Fatalf("asked for 64 heads, got %d", len(runs))
	}
	results := make([]outbox.RunResult, len(runs))
	for i := range runs {
		results[i] = outbox.RunResult{Run: runs[i], Failure: &outbox.Failure{Reason: "no", Again: time.Minute}}
	}
	if lost, err := source.Settle(ctx, results); err != nil || lost > 0 {
		t.Fatalf("settle: %d lost, %v", lost, err)
	}
	t.Logf("64 of %d claimed and settled in %s", heads, time.Since(began))
}
