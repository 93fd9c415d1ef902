package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// expired are the statements that make n executions that ended two days ago, each of a step with
// an input, an output and an attempt, and of two events that were published.
func expired() []string {
	return []string{
		`CREATE TEMPORARY TABLE old ON COMMIT DROP AS SELECT g, md5('e' || g)::uuid AS e, md5('s' || g)::uuid AS s,
			now() - interval '2 days' + g * interval '1 ms' AS at FROM generate_series(1, $1::integer) g`,
		`INSERT INTO executions (id, namespace, name, idempotency_key, content_hash, state, round, priority, fail_fast, created_at, due_at,
			started_at, ended_at, cancel_grace, revision, sequence, end_entry, step_count, open_steps, unsuccessful_steps, live_attempts)
		SELECT e, 'default', 'old', 'old-' || g, '', 'SUCCEEDED', 1, 0, false, at, at, at, at, '30 s', 4, 2, 4, 1, 0, 0, 0 FROM old LIMIT $1`,
		`INSERT INTO capabilities (namespace, name) VALUES ('default', 'old-' || ($1::integer)::text)`,
		`INSERT INTO steps (id, execution_id, ordinal, name, capability_id, priority, state, start_to_close, has_children, waiting_parents, opened_at, attempts_ended, counted)
		SELECT s, e, 0, 'only', c.id, 0, 'SUCCEEDED', '1 hour', false, 0, at, 1, 1 FROM old, capabilities c WHERE c.name = 'old-' || ($1::integer)::text`,
		`INSERT INTO payloads (step_id, role, is_json, body) SELECT s, r, true, '"x"' FROM old, unnest(ARRAY['INPUT', 'OUTPUT']) r LIMIT 2 * $1::integer`,
		`INSERT INTO attempts (id, step_id, number, round, state, worker_id, session_id, worker_name, lease_version, leased_at, start_to_close_at, ended_at, outcome, lease_entry, end_entry)
		SELECT md5('a' || g)::uuid, s, 1, 1, 'SUCCEEDED', s, s, 'w', g, at, at, at, '\x01', 2, 3 FROM old LIMIT $1`,
		`INSERT INTO outbox_events (id, namespace, aggregate_id, event_type, sequence, payload, status, available_at, attempts, created_at, published_at)
		SELECT md5('o' || n || '-' || g)::uuid, 'default', e, CASE n WHEN 1 THEN 'leasehold.step.v1.succeeded' ELSE 'leasehold.execution.v1.succeeded' END, n, '{}', 'PUBLISHED', at, 1, at, at
		FROM old, generate_series(1, 2) n LIMIT 2 * $1::integer`,
	}
}

// steady is a load of a hundred executions a second, each done at once by its worker.
type steady struct {
	t    *testing.T
	via  atomic.Pointer[peer] // that all calls go through
	hand *hand
	ctx  context.Context
	wg   sync.WaitGroup

	mu      sync.Mutex
	reports []time.Duration // how long each took
	ended   []string        // executions, in the order of their reports
}

func startSteady(ctx context.Context, t *testing.T, p *peer) *steady {
	t.Helper()
	s := &steady{t: t, ctx: ctx, hand: newHand(t, p, 1000, "steady")}
	s.via.Store(p)
	s.wg.Go(func() {
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			s.wg.Go(s.enqueue)
			<-ticker.C
		}
	})
	for range 2 {
		s.wg.Go(s.work)
	}
	return s
}

// through calls a replica, and the other one when the first was given up meanwhile.
func (s *steady) through(call func(p *peer) error) error {
	for {
		p := s.via.Load()
		if err := call(p); err == nil || p == s.via.Load() {
			return err
		}
	}
}

func (s *steady) enqueue() {
	request := &leaseholdv1.EnqueueExecutionRequest{
		Name: "steady", IdempotencyKey: uuid.NewString(), Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "steady"}},
	}
	err := s.through(func(p *peer) error {
		_, err := p.executions.EnqueueExecution(s.t.Context(), request)
		return err
	})
	if err != nil {
		s.t.Errorf("enqueue: %v", err)
	}
}

func (s *steady) work() {
	for s.ctx.Err() == nil {
		var leases []*leaseholdv1.Lease
		err := s.through(func(p *peer) error {
			got := s.hand.poll(s.t.Context(), p, 50, time.Second, time.Minute)
			leases = got.leases
			return got.err
		})
		if err != nil {
			s.t.Errorf("poll: %v", err)
			return
		}
		for _, l := range leases {
			s.wg.Go(func() { s.report(l) })
		}
	}
}

func (s *steady) report(l *leaseholdv1.Lease) {
	began := time.Now()
	if err := s.through(func(p *peer) error { return s.hand.succeed(s.t.Context(), p, l) }); err != nil {
		s.t.Errorf("report: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, time.Since(began))
	s.ended = append(s.ended, l.GetExecutionId())
}

// take returns how long the reports since the last call took at most, but for one of a hundred.
func (s *steady) take() (p99 time.Duration, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.reports
	s.reports = nil
	slices.Sort(list)
	if len(list) == 0 {
		return 0, 0
	}
	return list[len(list)*99/100], len(list)
}

// last are the executions that ended last.
func (s *steady) last(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ended[max(0, len(s.ended)-n):])
}

// TestB127_RetentionInSmallBatches: what expired goes in batches that commit, while a hundred
// executions a second are done and their reports are answered as before; when the replica that
// removes is killed, nothing that was removed comes back and another goes on; what is live, or
// ended just now, stays. Broken once: a purge in one transaction (nothing was removed when the
// replica was killed), and one whose right no other replica takes over.
func TestB127_RetentionInSmallBatches(t *testing.T) {
	alongside(t)
	n := int64(sized(8_000, 2_000_000))
	c := newCluster(t, clusterConfig{
		replicas: 2, ownDatabase: full(), args: []string{"--execution-retention", "20s", "--outbox-retention", "15s", "--sink", "log", "--log-level", "warn"},
	})
	peers := []*peer{dial(t, c.replicas[0].addr), dial(t, c.replicas[1].addr)}
	keepers := keep(t, peers[0], 20)
	before := contentsOf(t, c, keepers)
	fill := beginFill(t, c, n)
	ctx, stop := context.WithCancel(t.Context())
	s := startSteady(ctx, t, peers[0])
	defer func() { stop(); s.wg.Wait() }()
	pause(ctx, sized(3*time.Second, time.Minute))
	without, calls := s.take()
	t.Logf("%d reports without anything to remove: p99 %s", calls, without)
	fill()
	began := time.Now()
	left := func() int64 { return c.number(`SELECT count(*) FROM executions WHERE name = 'old'`) }
	eventually(t, 3*time.Minute, "something was removed", func() bool { return left() < n-n/20 })
	killed := purging(t, c)
	s.via.Store(peers[1-killed])
	pause(ctx, 300*time.Millisecond) // calls through the other one are over
	c.replicas[killed].kill()
	atKill := left()
	t.Logf("%s was killed %s after the first look, with %d of %d left", c.replicas[killed].name, time.Since(began), atKill, n)
	if atKill == 0 {
		t.Error("nothing was left when it was killed: this tries nothing")
	}
	for end := time.Now().Add(sized(90*time.Second, 25*time.Minute)); left() > 0 && time.Now().Before(end); {
		pause(ctx, sized(time.Second, 10*time.Second))
		if now := left(); now > atKill {
			t.Fatalf("%d are left after %d were", now, atKill)
		}
	}
	with, calls := s.take()
	gone := n - left()
	t.Logf("%d executions were removed in %s; %d reports meanwhile: p99 %s", gone, time.Since(began), calls, with)
	if gone < atKill/2+n-atKill {
		t.Errorf("%d of %d were removed: nobody went on after the kill", gone, n)
	}
	if most := max(200*time.Millisecond, 4*without); full() && with > most {
		t.Errorf("p99 of reports was %s beside retention, more than %s", with, most)
	}
	stop()
	s.wg.Wait()
	if after := contentsOf(t, c, keepers); after != before {
		t.Errorf("what is live was touched:\n%s\n%s", before, after)
	}
	recent := s.last(50)
	if there := c.number(`SELECT count(*) FROM executions WHERE id = ANY($1)`, recent); there != int64(len(recent)) {
		t.Errorf("%d of the %d executions that ended last are there", there, len(recent))
	}
	orphans(t, c)
}

// keep enqueues executions that wait for an hour.
func keep(t *testing.T, p *peer, n int) (ids []string) {
	t.Helper()
	for range n {
		answer, err := p.executions.EnqueueExecution(t.Context(), &leaseholdv1.EnqueueExecutionRequest{
			Name: "kept", Start: &leaseholdv1.EnqueueExecutionRequest_StartDelay{StartDelay: durationpb.New(time.Hour)},
			Steps: []*leaseholdv1.StepSpec{{Name: "a", Capability: "kept"}, {Name: "b", Capability: "kept", DependsOn: []string{"a"}}},
		})
		if err != nil {
			t.Fatalf("enqueue: %v", err)
		}
		ids = append(ids, answer.GetExecution().GetId())
	}
	return ids
}

// contentsOf is what the tables have of executions, as text.
func contentsOf(t *testing.T, c *cluster, ids []string) string {
	t.Helper()
	var text string
	err := c.db.QueryRow(t.Context(), `SELECT (SELECT md5(string_agg(e::text, ',' ORDER BY e.id)) || count(*) FROM executions e WHERE e.id = ANY($1))
		|| (SELECT md5(string_agg(s::text, ',' ORDER BY s.id)) || count(*) FROM steps s WHERE s.execution_id = ANY($1))
		|| (SELECT md5(string_agg(r::text, ',' ORDER BY r.step_id)) || count(*) FROM scheduling_requests r WHERE r.execution_id = ANY($1))`, ids).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// beginFill writes n expired executions, which the rest of the world sees once it is called.
func beginFill(t *testing.T, c *cluster, n int64) (commit func()) {
	t.Helper()
	began := time.Now()
	tx, err := c.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, statement := range expired() {
		if _, err := tx.Exec(t.Context(), statement, n); err != nil {
			t.Fatalf("%v in %s", err, statement)
		}
	}
	t.Logf("%d executions were written in %s", n, time.Since(began))
	return func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// purging is the replica that removes just now.
func purging(t *testing.T, c *cluster) int {
	t.Helper()
	var role string
	eventually(t, 30*time.Second, "a replica removes", func() bool {
		return c.db.QueryRow(t.Context(), `SELECT usename FROM pg_stat_activity WHERE datname = current_database()
			AND (query LIKE '-- name: Purge%' OR query LIKE '-- name: OldExecutions%') ORDER BY state_change DESC LIMIT 1`).Scan(&role) == nil
	})
	i := slices.IndexFunc(c.replicas, func(r *replica) bool { return r.role == role })
	if i < 0 {
		t.Fatalf("%s is no replica", role)
	}
	return i
}

// orphans fails the test for what is left of an execution that is gone.
func orphans(t *testing.T, c *cluster) {
	t.Helper()
	for what, from := range map[string]string{
		"steps": `steps x LEFT JOIN executions y ON y.id = x.execution_id`, "attempts": `attempts x LEFT JOIN steps y ON y.id = x.step_id`,
		"payloads": `payloads x LEFT JOIN steps y ON y.id = x.step_id`, "events": `outbox_events x LEFT JOIN executions y ON y.id = x.aggregate_id`,
		"entries": `timeline_entries x LEFT JOIN executions y ON y.id = x.execution_id`,
	} {
		if n := c.number(fmt.Sprintf(`SELECT count(*) FROM %s WHERE y.id IS NULL`, from)); n != 0 {
			t.Errorf("%d %s belong to nothing", n, what)
		}
	}
}
