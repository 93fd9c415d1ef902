package memstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/memstore"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// inbox is a sink that keeps what it gets.
type inbox struct {
	mu  sync.Mutex
	got map[uuid.UUID][]outbox.Event
}

func (i *inbox) Publish(_ context.Context, e *outbox.Event) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.got[e.AggregateID] = append(i.got[e.AggregateID], *e)
	return nil
}

func (i *inbox) Close() error { return nil }

// The application itself, with all its loops, runs on the store: two replicas, a worker at each
// that falls silent now and then and reports through the other, and a relay. Its time is not the
// wall's.
func TestStore_TheApplicationRunsOnIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Config{Now: time.Now, Events: task.AllEventTypes()})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		replicas := []*scheduler.Scheduler{scheduler.New(scheduler.Config{Store: store}), scheduler.New(scheduler.Config{Store: store})}
		sink := &inbox{got: map[uuid.UUID][]outbox.Event{}}
		relay := outbox.NewRelay(outbox.Config{Source: store.Outbox(), Publisher: sink})
		var loops, workers sync.WaitGroup
		for i, r := range replicas {
			loops.Go(func() { _ = r.Run(ctx) })
			workers.Go(func() { work(ctx, t, fmt.Sprintf("w%d", i), r, replicas[1-i]) })
		}
		loops.Go(func() { _ = relay.Run(ctx) })
		var ids []uuid.UUID
		for range 20 {
			done, err := replicas[0].Enqueue(ctx, diamond())
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, done.Execution.ID)
		}
		time.Sleep(5 * time.Minute) // of the bubble's time
		for _, id := range ids {
			checkEnded(t, store, sink, id)
		}
		cancel()
		workers.Wait()
		loops.Wait()
	})
}

func diamond() *task.ExecutionSpec {
	spec := &task.ExecutionSpec{Namespace: "default", Name: "diamond", CancelGrace: time.Minute}
	for name, parents := range map[string][]string{"a": nil, "b": {"a"}, "c": {"a"}, "d": {"b", "c"}} {
		spec.Steps = append(spec.Steps, task.StepSpec{
			Name: name, Capability: "a", DependsOn: parents, Retry: task.DefaultRetryPolicy(), StartToClose: time.Hour,
		})
	}
	return spec
}

// work leases, and reports through another replica. It never says a word of first attempts at b.
func work(ctx context.Context, t *testing.T, name string, r, other *scheduler.Scheduler) {
	session, err := r.Register(ctx, scheduler.Registration{Namespace: "default", Name: name, Capabilities: []string{"a"}, Slots: 4})
	if err != nil {
		t.Error(err)
		return
	}
	for ctx.Err() == nil {
		answer, err := r.Poll(ctx, scheduler.Poll{
			WorkerID: session.WorkerID, SessionID: session.SessionID, RequestID: uuid.NewString(), MaxLeases: 4,
			Wait: 20 * time.Second, Duration: 5 * time.Second, Received: time.Now(), // monotonic
		})
		if err != nil && ctx.Err() == nil {
			t.Errorf("poll: %v", err)
			return
		}
		for _, l := range answer.Leases {
			if l.StepName == "b" && l.AttemptNumber == 1 {
				continue
			}
			report := scheduler.Report{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{State: task.AttemptSucceeded}}
			if done := other.Report(ctx, []scheduler.Report{report})[0]; done.Err != nil && ctx.Err() == nil {
				t.Errorf("report: %v", done.Err)
			}
		}
	}
}

func checkEnded(t *testing.T, store *memstore.Store, sink *inbox, id uuid.UUID) {
	t.Helper()
	view, _, err := store.GetExecution(t.Context(), scheduler.ExecutionQuery{ID: id, AfterOrdinal: -1, StepLimit: 10})
	if err != nil || view.State != task.ExecutionSucceeded {
		t.Fatalf("execution: %v, %v", view, err)
	}
	for _, s := range view.Steps {
		if want := map[bool]int{true: 2, false: 1}[s.Name == "b"]; s.AttemptCount != want {
			t.Errorf("step %s took %d attempts, want %d", s.Name, s.AttemptCount, want)
		}
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if n := int64(len(sink.got[id])); n != view.Sequence {
		t.Errorf("%d events came, want %d", n, view.Sequence)
	}
	for i, e := range sink.got[id] {
		if e.Sequence != int64(i+1) {
			t.Errorf("event %d came as number %d", e.Sequence, i+1)
		}
	}
}
