package postgres_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
	"github.com/leasehold/leasehold/server/internal/testdb"
)

var databases testdb.Server

func TestMain(m *testing.M) { os.Exit(databases.Main(m)) }

// replica is a scheduler on a store, as one process of the service has it.
type replica struct {
	*scheduler.Scheduler
	store *postgres.Store
}

func startReplica(t *testing.T, url string) *replica {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, cancel := context.WithCancel(context.Background())
	store, err := postgres.Open(ctx, postgres.Config{URL: url, Events: task.AllEventTypes(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	hints, err := postgres.NewHints(store, url)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{store: store, Scheduler: scheduler.New(scheduler.Config{Store: store, Hints: hints, SweepInterval: 100 * time.Millisecond, Logger: log})}
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { r.StopPolls(); cancel(); <-done; store.Close() })
	return r
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) { w.t.Log(string(b)); return len(b), nil }

func diamond(key string) *task.ExecutionSpec {
	step := func(name string, parents ...string) task.StepSpec {
		return task.StepSpec{
			Name: name, Capability: "test", DependsOn: parents, Retry: task.DefaultRetryPolicy(), StartToClose: time.Hour,
			Input: &task.Payload{JSON: true, Body: []byte(`{"name":"` + name + `"}`)},
		}
	}
	return &task.ExecutionSpec{
		Namespace: "default", IdempotencyKey: key, Name: "diamond", CancelGrace: time.Second,
		Steps: []task.StepSpec{step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a")},
	}
}

func TestDiamond_RunsToItsEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := startReplica(t, databases.New(t))
	first, err := r.Enqueue(ctx, diamond("k"))
	if err != nil || !first.Created {
		t.Fatalf("enqueue: %v, created %v", err, first.Created)
	}
	again, err := r.Enqueue(ctx, diamond("k"))
	if err != nil || again.Created || again.Execution.ID != first.Execution.ID {
		t.Fatalf("repeat: %v, %+v", err, again)
	}
	session, err := r.Register(ctx, scheduler.Registration{Namespace: "default", Capabilities: []string{"test"}, Slots: 10})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		answer, err := r.Poll(ctx, scheduler.Poll{
			WorkerID: session.WorkerID, SessionID: session.SessionID, RequestID: uuid.NewString(), MaxLeases: 5,
			Wait: 3 * time.Second, Duration: 30 * time.Second, Received: time.Now(),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range answer.Leases {
			t.Logf("leased %s v%d parents %v input %s held %v", l.StepName, l.LeaseVersion, l.ParentOutputs, l.Input.Body, answer.Held)
			if res := r.Renew(ctx, []scheduler.Renewal{{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, SessionID: session.SessionID, Duration: time.Minute}}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
			res := r.Report(ctx, []scheduler.Report{{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{
				State: task.AttemptSucceeded, Output: &task.Payload{JSON: true, Body: []byte(`"` + l.StepName + `"`)},
			}}})
			if res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
	}
	view, _, err := r.store.GetExecution(ctx, scheduler.ExecutionQuery{ID: first.Execution.ID, AfterOrdinal: -1, StepLimit: 100, Payloads: true})
	if err != nil {
		t.Fatal(err)
	}
	if view.State != task.ExecutionSucceeded {
		t.Fatalf("execution is %s: %+v", view.State, view)
	}
	entries, err := r.store.ListTimeline(ctx, first.Execution.ID, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		t.Logf("%d %s %s %s %v", e.Sequence, e.Stage, e.Title, e.StepName, e.Details)
		if e.Sequence != int64(i+1) {
			t.Fatalf("entry %d has number %d", i+1, e.Sequence)
		}
	}
}

// cancelOne cancels an execution, waiting for its lock.
func cancelOne(store *postgres.Store, ctx context.Context, id uuid.UUID, reason string) (*scheduler.ExecutionView, error) { //nolint:revive // the store first, as a method has it
	results, err := store.Cancel(ctx, []scheduler.Cancellation{{Execution: id, Reason: reason}}, true)
	if err != nil {
		return nil, err
	}
	return results[0].Value, results[0].Err
}
