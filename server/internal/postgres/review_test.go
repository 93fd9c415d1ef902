package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Findings of the review, each as a test that fails while the fault is there.

func openStore(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), postgres.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func enqueueOne(t *testing.T, s *postgres.Store, capability string) scheduler.NewExecution {
	t.Helper()
	retry := task.DefaultRetryPolicy()
	retry.MaximumAttempts = 1
	spec := &task.ExecutionSpec{
		Namespace: "default", Name: "x", CancelGrace: time.Second,
		Steps: []task.StepSpec{{Name: "a", Capability: capability, Retry: retry, StartToClose: time.Hour}},
	}
	n := scheduler.NewExecution{Spec: spec, Hash: spec.Fingerprint(), IDs: task.IDs{Execution: uuid.New(), Steps: []uuid.UUID{uuid.New()}}}
	if _, err := s.Enqueue(context.Background(), []scheduler.NewExecution{n}, true, true); err != nil {
		t.Fatal(err)
	}
	return n
}

func register(t *testing.T, s *postgres.Store, name, capability string, slots int) scheduler.Session {
	t.Helper()
	session, err := s.Register(context.Background(), scheduler.Registration{Namespace: "default", Name: name, Capabilities: []string{capability}, Slots: slots}, uuid.New(), uuid.New())
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func grant(t *testing.T, s *postgres.Store, w scheduler.Session, capability, request string) uuid.UUID {
	t.Helper()
	ctx, claim, attempt := context.Background(), uuid.New(), uuid.New()
	claimed, err := s.Claim(ctx, scheduler.ClaimCommand{ClaimID: claim, Limit: 1, Expires: 10 * time.Second, Offers: []task.Offer{{
		WorkerID: w.WorkerID, Namespace: "default", Capabilities: map[string]bool{capability: true}, Room: 1,
	}}})
	if err != nil || len(claimed.Requests) != 1 {
		t.Fatalf("claim: %v %v", err, claimed)
	}
	r := claimed.Requests[0]
	done, err := s.Dispatch(ctx, scheduler.DispatchCommand{ClaimID: claim, Items: []scheduler.DispatchItem{{
		Waiting: r, AttemptID: attempt, WorkerID: w.WorkerID, SessionID: w.SessionID, RequestID: request, Duration: 30 * time.Second,
	}}})
	if err != nil || !done.Granted[attempt] {
		t.Fatalf("dispatch: %v %v", err, done)
	}
	return attempt
}

// Replica A commits a grant; before it reads what to deliver, the caller's repeat is replayed
// and answered by replica B; then A finds its caller gone and hands back.
func TestReview_HandBackOfTheFirstDeliveryNeverTakesAReplayedOne(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openStore(t, databases.New(t))
	enqueueOne(t, s, "c")
	w := register(t, s, "w", "c", 1)
	attempt := grant(t, s, w, "c", "poll-1")

	delivered, err := s.Replay(ctx, []uuid.UUID{attempt}) // B: the worker has this one
	if err != nil || len(delivered) != 1 {
		t.Fatal(err, delivered)
	}
	late, err := s.Contents(ctx, []uuid.UUID{attempt}) // A: its read of the first delivery comes late
	if err != nil || len(late) != 1 {
		t.Fatal(err, late)
	}
	// A: dispatcher.handBack, with what it read
	if err := s.Return(ctx, []scheduler.Undelivered{{AttemptID: attempt, LeaseVersion: late[0].LeaseVersion, Delivery: late[0].Delivery}}); err != nil {
		t.Fatal(err)
	}
	renewed, err := s.Renew(ctx, []scheduler.Renewal{{AttemptID: attempt, LeaseVersion: delivered[0].LeaseVersion, SessionID: w.SessionID, Duration: time.Minute}}, false)
	if err != nil {
		t.Fatal(err)
	}
	if renewed[0].Err != nil {
		t.Errorf("the worker that B answered lost its lease (maximum_attempts 1, and the step is leasable again): %v", renewed[0].Err)
	}
}

// Deregister with force ends the session; then its leases. Between the two a new process
// registers under the name and leases.
func TestReview_DeregisterByForceSparesTheNextSession(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := databases.New(t)
	s := openStore(t, url)
	enqueueOne(t, s, "c")
	old := register(t, s, "w", "c", 5)
	first := grant(t, s, old, "c", "")
	enqueueOne(t, s, "c")

	// Hold the first attempt's execution, so that ending its lease has to wait.
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, _ := conn.Begin(ctx)
	if _, err := tx.Exec(ctx, `SELECT 1 FROM executions WHERE id = (SELECT execution_id FROM leases WHERE attempt_id = $1) FOR UPDATE`, first); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { _, err := s.Deregister(ctx, old.WorkerID, old.SessionID, true); ended <- err }()
	time.Sleep(500 * time.Millisecond) // its session is over, its leases wait
	next := register(t, s, "w", "c", 5)
	second := grant(t, s, next, "c", "")
	_ = tx.Rollback(ctx)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var state, reason string
	if err := conn.QueryRow(ctx, `SELECT state, reason FROM attempts WHERE id = $1`, second).Scan(&state, &reason); err != nil {
		t.Fatal(err)
	}
	if state != "LEASED" {
		t.Errorf("the new session's attempt is %s (%s)", state, reason)
	}
}

// An asynchronous failover may lose the row of a capability, and the new primary give its
// number to another: what the process remembers then lies.
func TestReview_LostCapabilityRowMisroutesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := databases.New(t)
	s := openStore(t, url)
	enqueueOne(t, s, "mail")
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	// What the new primary looks like: none of it ever happened.
	for _, q := range []string{
		`TRUNCATE capabilities, executions, steps, scheduling_requests`,
		`ALTER TABLE capabilities ALTER COLUMN id RESTART WITH 1`,
		`INSERT INTO capabilities (namespace, name) VALUES ('default', 'payments')`,
	} {
		if _, err := conn.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	n := enqueueOne(t, s, "mail")
	var name string
	if err := conn.QueryRow(ctx, `SELECT COALESCE((SELECT c.name FROM capabilities c WHERE c.id = s.capability_id), 'none') FROM steps s WHERE s.id = $1`, n.IDs.Steps[0]).Scan(&name); err != nil {
		t.Fatal(err)
	}
	if name != "mail" {
		t.Errorf("a step that needs mail is handed to workers of %q", name)
	}
}

// 5,000 parents with outputs of 1 MiB are within every limit; their sum is not within an int32.
func TestReview_ManyLargeParentsAreOmittedNotLost(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := databases.New(t)
	s := openStore(t, url)
	spec := &task.ExecutionSpec{Namespace: "default", Name: "join", CancelGrace: time.Second}
	retry := task.DefaultRetryPolicy()
	const parents = 3
	join := task.StepSpec{Name: "join", Capability: "join", Retry: retry, StartToClose: time.Hour}
	for i := range parents {
		name := "p" + strings.Repeat("x", i)
		spec.Steps = append(spec.Steps, task.StepSpec{Name: name, Capability: "c", Retry: retry, StartToClose: time.Hour})
		join.DependsOn = append(join.DependsOn, name)
	}
	spec.Steps = append(spec.Steps, join)
	n := scheduler.NewExecution{Spec: spec, Hash: spec.Fingerprint(), IDs: task.IDs{Execution: uuid.New()}}
	for range spec.Steps {
		n.IDs.Steps = append(n.IDs.Steps, uuid.New())
	}
	if _, err := s.Enqueue(ctx, []scheduler.NewExecution{n}, true, true); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	w := register(t, s, "w", "c", 10)
	for i := range parents {
		if i == parents-1 { // as after 2,047 parents of 1 MiB
			if _, err := conn.Exec(ctx, `UPDATE steps SET parent_bytes = $2 WHERE id = $1`, n.IDs.Steps[parents], 2047<<20); err != nil {
				t.Fatal(err)
			}
		}
		a := grant(t, s, w, "c", "")
		var version int64
		if err := conn.QueryRow(ctx, `SELECT lease_version FROM leases WHERE attempt_id = $1`, a).Scan(&version); err != nil {
			t.Fatal(err)
		}
		res, err := s.Report(ctx, []scheduler.Report{{AttemptID: a, LeaseVersion: version, Outcome: task.Outcome{State: task.AttemptSucceeded, Output: &task.Payload{Body: make([]byte, 1<<20)}}}}, true)
		if err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
	}
	j := register(t, s, "j", "join", 1)
	a := grant(t, s, j, "join", "")
	views, err := s.Contents(ctx, []uuid.UUID{a})
	if err != nil {
		t.Fatal(err)
	}
	if !views[0].ParentOutputsOmitted {
		var stored int
		_ = conn.QueryRow(ctx, `SELECT parent_bytes FROM steps WHERE id = $1`, n.IDs.Steps[parents]).Scan(&stored)
		t.Errorf("%d outputs travel, omitted %v, parent_bytes is stored as %d", len(views[0].ParentOutputs), views[0].ParentOutputsOmitted, stored)
	}
}
