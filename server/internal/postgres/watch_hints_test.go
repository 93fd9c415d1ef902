package postgres_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// overheard is a replica's hints, which reach nobody but the test.
type overheard struct {
	mu   sync.Mutex
	sent []scheduler.Hint
}

// Send notes hints.
func (o *overheard) Send(hints ...scheduler.Hint) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, hints...)
}

// Run hears nothing.
func (o *overheard) Run(ctx context.Context, _ func(scheduler.Hint)) error {
	<-ctx.Done()
	return nil
}

// told tells whether a change was hinted at since it was last asked.
func (o *overheard) told() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	told := slices.Contains(o.sent, scheduler.HintChange)
	o.sent = nil
	return told
}

// Whatever changes an execution is hinted at: those that watch at other replicas need not wait
// for their next look. Caught: a way of changing executions that tells nobody.
func TestWatch_EveryKindOfChangeIsHintedAt(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, cancel := context.WithCancel(context.Background())
	hints := &overheard{}
	store := s.open(postgres.Config{})
	r := &replica{store: store, Scheduler: scheduler.New(scheduler.Config{Store: store, Hints: hints, SweepInterval: 50 * time.Millisecond})}
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { r.StopPolls(); cancel(); <-done })

	var id uuid.UUID
	quiet := func() { // nothing is under way, and what was hinted at is forgotten
		s.eventually("quiet", func() bool { time.Sleep(100 * time.Millisecond); return !hints.told() })
	}
	revision := func() int64 { return query[int64](s, "SELECT revision FROM executions WHERE id = $1", id) }
	change := func(what string, f func()) {
		t.Helper()
		quiet()
		before := revision()
		f()
		s.eventually(what+" is committed", func() bool { return revision() > before })
		s.eventually(what+" is hinted at", hints.told)
	}
	session, err := r.Register(ctx, scheduler.Registration{Namespace: "default", Name: "w", Capabilities: []string{"a"}, Slots: 10})
	if err != nil {
		t.Fatal(err)
	}
	var lease scheduler.LeaseView
	lease1 := func(d time.Duration) func() {
		return func() {
			answer, err := r.Poll(ctx, scheduler.Poll{
				WorkerID: session.WorkerID, SessionID: session.SessionID, MaxLeases: 1, Wait: 20 * time.Second, Duration: d, Received: time.Now(),
			})
			if err != nil || len(answer.Leases) != 1 {
				t.Fatalf("%d leases, %v", len(answer.Leases), err)
			}
			lease = answer.Leases[0]
		}
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	id = s.enqueue(spec("a", 5)).Execution
	change("a dispatch", lease1(time.Minute))
	change("a report", func() { must(nil, r.Report(ctx, []scheduler.Report{success(lease)})[0].Err) })
	change("a further dispatch", lease1(4*time.Second))
	change("the end of a lease", func() {})
	change("a cancel", func() { must(r.Cancel(ctx, id, "")) })

	id = s.enqueue(spec("a", 1)).Execution
	change("a dispatch", lease1(time.Minute))
	change("a forced end of a session", func() { must(r.Deregister(ctx, session.WorkerID, session.SessionID, true)) })

	id = s.enqueue(spec("nobody", 1, func(e *task.ExecutionSpec) { e.StartDelay = 4 * time.Second })).Execution
	change("a start time", func() {})
	id = s.enqueue(spec("nobody", 1, func(e *task.ExecutionSpec) { e.Timeout = 4 * time.Second })).Execution
	change("a deadline", func() {})
}
