package drill

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/testdb"
)

var databases testdb.Server

// atOnce is how many tests run together: most of them wait most of the time.
const atOnce = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = f.Value.Set(atOnce)
	}
	code := m.Run()
	databases.Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// count is how often something is tried: the full count with LEASEHOLD_FULL=1.
func count(t *testing.T, small, full int) int {
	t.Helper()
	if os.Getenv("LEASEHOLD_FULL") == "1" {
		return full
	}
	return small
}

// patient bounds every wait for something that has to come: long, for the machine may be slow.
const patient = 90 * time.Second

// inTime runs a scenario that has to come to its point before a timeout of the service: with
// longer and longer timeouts, until it says that it came there, for the machine may be slow.
func inTime(t *testing.T, limit time.Duration, scenario func(limit time.Duration) bool) {
	t.Helper()
	for range 6 {
		if scenario(limit) {
			return
		}
		t.Logf("%s were not enough on this machine now", limit)
		limit *= 2
	}
	t.Fatal("the machine is too slow for this scenario")
}

// world is a cluster under test. When the test ends, every invariant is checked.
type world struct {
	*Cluster
	t   *testing.T
	ctx context.Context
	url string
}

// newWorld starts 3 replicas on a database of their own.
func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	config := Config{URL: databases.New(t), Replicas: 3}
	config.Logger = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for _, f := range change {
		f(&config)
	}
	cluster, err := Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Cluster: cluster, t: t, ctx: t.Context(), url: config.URL}
	t.Cleanup(func() {
		w.check(context.Background())
		cluster.Stop()
	})
	return w
}

// testWriter puts the replicas' warnings into the log of the test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// newPair starts 2 replicas: enough for what is plain, and cheaper.
func newPair(t *testing.T) *world {
	t.Helper()
	return newWorld(t, func(c *Config) { c.Replicas = 2 })
}

// check fails the test for every invariant that is broken, now and after some rest.
func (w *world) check(ctx context.Context) {
	w.t.Helper()
	var broken []string
	err := Await(ctx, time.Minute, "rest", func(ctx context.Context) (bool, error) {
		always, err := Check(ctx, w.url)
		if err != nil || len(always) > 0 {
			broken = always
			return true, err
		}
		broken, err = CheckAtRest(ctx, w.url)
		return len(broken) == 0, err
	})
	if err != nil && !errors.Is(err, ErrAwait) {
		w.t.Errorf("check: %v", err)
	}
	for _, b := range slices.Concat(broken, w.Watch.Bugs()) {
		w.t.Errorf("broken: %s", b)
	}
}

// step is a step that needs the capability "work".
func step(name string, parents ...string) *leaseholdv1.StepSpec {
	return &leaseholdv1.StepSpec{Name: name, Capability: "work", DependsOn: parents}
}

// retries is a policy without jitter.
func retries(attempts int32, first time.Duration) *leaseholdv1.RetryPolicy {
	none := 0.0
	return &leaseholdv1.RetryPolicy{MaximumAttempts: attempts, InitialInterval: durationpb.New(first), Jitter: &none}
}

func graph(steps ...*leaseholdv1.StepSpec) *leaseholdv1.EnqueueExecutionRequest {
	return &leaseholdv1.EnqueueExecutionRequest{Name: "case", IdempotencyKey: uuid.NewString(), Steps: steps}
}

// enqueue enqueues through the first replica.
func (w *world) enqueue(r *leaseholdv1.EnqueueExecutionRequest) string {
	w.t.Helper()
	answer, err := w.Client(0).Executions.EnqueueExecution(w.ctx, r)
	if err != nil {
		w.t.Fatalf("enqueue: %v", err)
	}
	if !answer.GetCreated() {
		w.t.Fatalf("enqueue: execution %s was there before", answer.GetExecution().GetId())
	}
	return answer.GetExecution().GetId()
}

// enqueueMany enqueues n alike, in batches, and returns their ids.
func (w *world) enqueueMany(n int, make func(i int) *leaseholdv1.EnqueueExecutionRequest) []string {
	w.t.Helper()
	const most = 200
	ids := []string{}
	for len(ids) < n {
		batch := &leaseholdv1.BatchEnqueueExecutionsRequest{}
		for i := len(ids); i < n && len(batch.Requests) < most; i++ {
			batch.Requests = append(batch.Requests, make(i))
		}
		answer, err := w.Client(len(ids)/most).Executions.BatchEnqueueExecutions(w.ctx, batch)
		if err != nil {
			w.t.Fatalf("enqueue a batch: %v", err)
		}
		for _, r := range answer.GetResults() {
			if r.GetError() != nil {
				w.t.Fatalf("enqueue a batch: %v", r.GetError())
			}
			ids = append(ids, r.GetResponse().GetExecution().GetId())
		}
	}
	return ids
}

func (w *world) get(id string) *leaseholdv1.Execution {
	w.t.Helper()
	e, err := w.Client(1).Get(w.ctx, id)
	if err != nil {
		w.t.Errorf("get %s: %v", id, err)
	}
	return e
}

// stepOf is a step as it is now.
func (w *world) stepOf(id, name string) *leaseholdv1.Step {
	w.t.Helper()
	return find(w.t, w.get(id), name)
}

func find(t *testing.T, e *leaseholdv1.Execution, name string) *leaseholdv1.Step {
	t.Helper()
	for _, s := range e.GetSteps() {
		if s.GetName() == name {
			return s
		}
	}
	t.Fatalf("execution %s has no step %q", e.GetId(), name)
	return nil
}

// await waits until an execution is as told, and returns it.
func (w *world) await(id, what string, holds func(*leaseholdv1.Execution) bool) *leaseholdv1.Execution {
	w.t.Helper()
	var last *leaseholdv1.Execution
	err := Await(w.ctx, patient, what, func(ctx context.Context) (bool, error) {
		e, err := w.Client(2).Get(ctx, id)
		if err != nil {
			return false, err
		}
		last = e
		return holds(e), nil
	})
	if err != nil {
		w.t.Fatalf("%v\nlast seen: %v", err, last)
	}
	return last
}

func (w *world) awaitState(id string, want leaseholdv1.ExecutionState) *leaseholdv1.Execution {
	w.t.Helper()
	return w.await(id, want.String(), func(e *leaseholdv1.Execution) bool { return e.GetState() == want })
}

// awaitFailedStep waits for the failure of an execution's first step.
func (w *world) awaitFailedStep(id string) *leaseholdv1.Step {
	w.t.Helper()
	e := w.await(id, "failure of the first step", func(e *leaseholdv1.Execution) bool { return e.GetSteps()[0].GetState() == stepFailed })
	return e.GetSteps()[0]
}

func (w *world) timeline(id string) []*leaseholdv1.TimelineEntry {
	w.t.Helper()
	entries, err := w.Client(0).Timeline(w.ctx, id)
	if err != nil {
		w.t.Fatalf("timeline of %s: %v", id, err)
	}
	return entries
}

// cancel cancels through the replica, and returns what it answered.
func (w *world) cancel(replica int, id string) *leaseholdv1.Execution {
	w.t.Helper()
	answer, err := w.Client(replica).Executions.CancelExecution(w.ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id, Reason: "asked"})
	if err != nil {
		w.t.Errorf("cancel %s: %v", id, err)
	}
	return answer.GetExecution()
}

// rows reads rows of one text each from the database.
func (w *world) rows(query string, args ...any) []string {
	w.t.Helper()
	conn, err := pgx.Connect(w.ctx, w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(w.ctx)) }()
	rows, err := conn.Query(w.ctx, query, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// together runs functions at the same instant and waits for all.
func together(fs ...func()) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, f := range fs {
		wg.Go(func() { <-start; f() })
	}
	close(start)
	wg.Wait()
}

// each calls f for every item, 8 at a time.
func each[T any](list []T, f func(i int, item T)) {
	var group errgroup.Group
	group.SetLimit(8)
	for i, item := range list {
		group.Go(func() error { f(i, item); return nil })
	}
	_ = group.Wait()
}

// refused fails the test unless the error has this code and reason.
func refused(t *testing.T, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || Reason(err) != reason {
		t.Errorf("got %v (reason %q), want %s %s", err, Reason(err), code, reason)
	}
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
