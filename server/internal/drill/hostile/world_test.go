package hostile

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const (
	// scriptsOfAWorld is after how many scripts a world is replaced, so that it stays small and
	// what one script left behind does not lead all others astray.
	scriptsOfAWorld = 300
	checkEvery      = 50 // scripts between two looks at the invariants
	refillEvery     = 10 // scripts between two that find something new
	// never is the time between two sweeps: scripts ask for them, so that nothing changes by itself
	// between two looks at the state.
	never = 1000 * time.Hour
)

// stage holds the world that scripts play in.
type stage struct{ now, old *world }

// world is a server, its database, and what is known to exist there.
type world struct {
	cluster *drill.Cluster
	conn    *grpc.ClientConn
	url     string
	db      *pgx.Conn
	drop    func()
	pool    *pool
	log     *alarm
	scripts int
	polled  time.Time // the last time; monotonic
}

// newStage is ready before the first input comes: that has ten seconds only.
func newStage(f *testing.F) *stage {
	f.Helper()
	s := &stage{now: newWorld(f)}
	f.Cleanup(func() { s.clear(f); s.now.end(f) })
	return s
}

// world is the one to play in.
func (s *stage) world(t *testing.T) *world {
	t.Helper()
	s.clear(t)
	if s.now.scripts >= scriptsOfAWorld {
		s.now.check(t)
		s.replace(t)
	}
	if s.now.scripts++; s.now.scripts%refillEvery == 0 {
		s.now.refill(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.replace(t)
		}
	})
	return s.now
}

// replace makes a new world. The old one is ended by the next script: an input has ten seconds, and
// a slow machine needs some for each.
func (s *stage) replace(t testing.TB) {
	t.Helper()
	s.clear(t)
	s.old, s.now = s.now, newWorld(t)
}

func (s *stage) clear(t testing.TB) {
	t.Helper()
	if s.old != nil {
		s.old.end(t)
		s.old = nil
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ctx := context.Background()
	w := &world{pool: &pool{}, log: &alarm{}}
	w.url, w.drop = databases.Make(t)
	var err error
	if w.cluster, err = drill.Start(ctx, drill.Config{URL: w.url, Replicas: 1, SweepInterval: never, MaxConns: 4, Logger: slog.New(w.log)}); err != nil {
		t.Fatal(err)
	}
	if w.db, err = pgx.Connect(ctx, w.url); err != nil {
		t.Fatal(err)
	}
	// Requests may be larger than the server takes.
	w.conn, err = grpc.NewClient("passthrough:///"+w.cluster.Replica(0).Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	w.furnish(t)
	return w
}

func (w *world) end(t testing.TB) {
	t.Helper()
	_ = w.conn.Close()
	_ = w.db.Close(context.Background())
	w.cluster.Stop()
	w.drop()
	if bugs := w.log.heard(); len(bugs) > 0 && !t.Failed() {
		t.Errorf("the server calls it a bug: %v", bugs)
	}
}

// furnish makes one of everything that calls can be about.
func (w *world) furnish(t testing.TB) {
	t.Helper()
	f := &furnisher{t: t, w: w, c: w.cluster.Client(0), node: "n1"}
	first := f.register("worker-0", "run", "paused")
	f.enqueue("running", step("s0", "run"), step("s1", "run", "s0"), step("s2", "nobody", "s1"))
	f.lease(first)
	f.enqueue("done", step("s0", "run"))
	f.report(f.lease(first), drill.Succeeded(drill.JSON(`{"a":1.50}`)))
	f.enqueue("failed", &leaseholdv1.StepSpec{Name: "s0", Capability: "run", RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: 1}}, step("s1", "run", "s0"))
	f.report(f.lease(first), drill.Failed(&leaseholdv1.Failure{Type: "broken", Message: "m", Details: drill.Data([]byte{0, 255})}))
	canceling := f.enqueue("canceling", step("s0", "run"))
	f.lease(first)
	f.cancel(canceling)
	f.cancel(f.enqueue("canceled", step("s0", "run")))
	f.enqueue("waiting", step("s0", "paused"), step("s1", "run", "s0"))
	retried := f.lease(f.register("worker-1", "build/v1"), "build/v1")
	f.report(retried, drill.Failed(&leaseholdv1.Failure{NextRetryDelay: durationpb.New(0)}))
	f.register("worker-2", "run")
	f.register("worker-2", "run") // supersedes itself
	f.operate()
}

// check looks at the invariants.
func (w *world) check(t testing.TB) {
	t.Helper()
	broken, err := drill.Check(context.Background(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range broken {
		t.Error(b)
	}
}

// sweep ends what is over, as the server's own sweeper would.
func (w *world) sweep(t testing.TB) {
	t.Helper()
	store := w.cluster.Replica(0).Store
	for _, part := range []func(context.Context, scheduler.SweepBatch) (scheduler.Swept, error){store.ExpireLeases, store.FireTimers} {
		if _, err := part(context.Background(), scheduler.SweepBatch{Limit: 200}); err != nil {
			t.Errorf("sweep: %v", err)
		}
	}
}

// alarm is a log that keeps what the server calls an error. There should be nothing.
type alarm struct {
	mu   sync.Mutex
	bugs []string
}

func (a *alarm) heard() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	bugs := a.bugs
	a.bugs = nil
	return bugs
}

// Enabled keeps errors only.
func (a *alarm) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle keeps a record.
func (a *alarm) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(at slog.Attr) bool { text += fmt.Sprintf(" %s=%v", at.Key, at.Value); return true })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bugs = append(a.bugs, text)
	return nil
}

// WithAttrs is the same log.
func (a *alarm) WithAttrs([]slog.Attr) slog.Handler { return a }

// WithGroup is the same log.
func (a *alarm) WithGroup(string) slog.Handler { return a }
