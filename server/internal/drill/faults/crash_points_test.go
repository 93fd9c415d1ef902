package faults

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/reflect/protoreflect"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/task"
	"github.com/leasehold/leasehold/server/internal/testsink"
)

// crashWalk is a server that dies at one point after another, under a tour that passes them all.
type crashWalk struct {
	*cluster
	r    *replica
	sink *testsink.Receiver
	log  string // the file with the names of the points that were passed
}

// newCrashWalk starts one. Its sink refuses each fourth execution's first event once: that one
// is DEAD, until an operator redrives or skips it.
func newCrashWalk(t *testing.T, args ...string) *crashWalk {
	t.Helper()
	sink := testsink.StartReceiver(t, func(w http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		if d.Number() == 1 && d.Before == 0 && d.Execution[len(d.Execution)-1] <= '3' {
			w.WriteHeader(http.StatusGone)
		}
	})
	c := newCluster(t, clusterConfig{
		replicas: 1, sweep: 100 * time.Millisecond, program: shared.crashingServer(t),
		args: append([]string{"--sink", sink.URL, "--events", "all", "--outbox-source", "/faults"}, args...),
	})
	w := &crashWalk{cluster: c, r: c.replicas[0], sink: sink, log: filepath.Join(t.TempDir(), "points")}
	if err := os.WriteFile(w.log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// restart kills the server and starts it with other variables.
func (w *crashWalk) restart(env ...string) {
	w.t.Helper()
	if w.r.running() {
		w.r.kill()
	}
	w.r.env = env
	w.r.start()
}

// passed are the points that the server has passed.
func (w *crashWalk) passed() map[string]bool {
	w.t.Helper()
	text, err := os.ReadFile(w.log)
	if err != nil {
		w.t.Fatal(err)
	}
	points := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		points[strings.TrimSpace(line)] = true
	}
	return points
}

// crashAt has the server die at a point, and looks at what it has left.
func (w *crashWalk) crashAt(point string) {
	w.t.Helper()
	if w.r.running() {
		w.r.kill()
	}
	w.r.env = []string{"LEASEHOLD_CRASH_AT=" + point}
	w.r.launch()
	select {
	case <-w.r.proc.exited:
	case <-time.After(time.Minute):
		w.t.Fatalf("the server never came to %q", point)
	}
	if status, ok := w.r.proc.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		w.t.Fatalf("at %q the server ended by itself: %s", point, w.r.proc.cmd.ProcessState)
	}
	broken, err := drill.Check(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range broken {
		w.t.Errorf("after a crash at %q: %s", point, b)
	}
}

// everyPoint is what there is to pass: all transactions, by their names in the source, all events
// and all calls.
func everyPoint(t *testing.T) map[string]bool {
	t.Helper()
	points := map[string]bool{}
	both := func(point string) { points["before "+point], points["after "+point] = true, true }
	files, err := filepath.Glob("../../postgres/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`\.tx\(ctx, "([^"]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range name.FindAllSubmatch(text, -1) {
			both("commit " + string(found[1]))
		}
		if n := bytes.Count(text, []byte(".tx(ctx,")); n != len(name.FindAll(text, -1)) {
			t.Errorf("%s has %d transactions, and names that are not read", file, n)
		}
	}
	for _, event := range task.AllEventTypes() {
		both("publish " + string(event))
	}
	for _, file := range []protoreflect.FileDescriptor{
		leaseholdv1.File_leasehold_v1_execution_service_proto, leaseholdv1.File_leasehold_v1_worker_service_proto,
		leaseholdv1.File_leasehold_v1_operator_service_proto,
	} {
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			method := "/" + string(methods.Get(i).Parent().FullName()) + "/" + string(methods.Get(i).Name())
			both("answer " + method)
			if methods.Get(i).IsStreamingServer() {
				both("message " + method)
			}
		}
	}
	return points
}

// ofRetention tells the points that only a server with retention passes.
func ofRetention(point string) bool {
	return strings.Contains(point, "commit purge") || strings.Contains(point, "commit drop dead")
}

// walk has the server die at each of the points, or in the short form at some by chance, after
// the tour has shown that it passes them all.
func (w *crashWalk) walk(points map[string]bool) {
	w.t.Helper()
	missing := func() []string {
		passed := w.passed()
		return slices.DeleteFunc(slices.Sorted(maps.Keys(points)), func(point string) bool { return passed[point] })
	}
	for deadline := time.Now().Add(2 * time.Minute); len(missing()) > 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	if list := missing(); len(list) > 0 {
		w.t.Fatalf("the tour does not pass\n%s", strings.Join(list, "\n"))
	}
	walk := slices.Collect(maps.Keys(points))
	walk = walk[:sized(min(16, len(walk)), len(walk))]
	began := time.Now()
	for _, point := range walk {
		at := time.Now()
		w.crashAt(point)
		w.t.Logf("%s: after %s", point, time.Since(at).Round(time.Millisecond))
	}
	w.t.Logf("died at %d of %d points, in %s", len(walk), len(points), time.Since(began).Round(time.Second))
	w.restart()
}

// TestCrashPoints_EachOnce: the server dies once before and after each commit, each publish and
// each answer. Whatever it leaves holds; clients that repeat what was not answered get what they
// asked for, once; and every event arrives, in order.
func TestCrashPoints_EachOnce(t *testing.T) {
	alongside(t)
	w := newCrashWalk(t, "--execution-retention", "off", "--outbox-retention", "off", "--outbox-dead-retention", "off")
	w.restart("LEASEHOLD_CRASH_LOG=" + w.log)
	p := dial(t, w.r.addr)
	v := startTour(t, p)
	points := everyPoint(t)
	maps.DeleteFunc(points, func(point string, _ bool) bool { return ofRetention(point) })
	w.walk(points)
	w.settle(v, p)
	for key, id := range v.created {
		if n := w.number(`SELECT count(*) FROM executions WHERE id = $1 AND idempotency_key = $2`, id, key); n != 1 {
			t.Errorf("execution %s of key %s was answered OK, and is there %d times", id, key, n)
		}
	}
	w.allArrived()
}

// TestCrashPoints_Retention: the same while everything old is removed, before and after each
// commit of that.
func TestCrashPoints_Retention(t *testing.T) {
	alongside(t)
	w := newCrashWalk(t, "--execution-retention", "1s", "--outbox-retention", "1s", "--outbox-dead-retention", "2s")
	w.restart("LEASEHOLD_CRASH_LOG=" + w.log)
	p := dial(t, w.r.addr)
	v := startTour(t, p)
	points := everyPoint(t)
	maps.DeleteFunc(points, func(point string, _ bool) bool { return !ofRetention(point) })
	w.walk(points)
	w.settle(v, p)
}

// settle lets the tour come to its end, and looks at everything.
func (w *crashWalk) settle(v *tour, p *peer) {
	w.t.Helper()
	v.stop()
	w.t.Logf("%d executions, %d attempts, %d events, %d of them repeated", len(v.created),
		w.number(`SELECT count(*) FROM attempts`), w.number(`SELECT count(*) FROM outbox_events`), w.sink.Repeats())
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	last := &tour{t: w.t, p: p, created: v.created}
	last.parts.Go(func() { last.work(ctx) })
	eventually(w.t, time.Minute, "all executions ended", func() bool {
		return w.number(`SELECT count(*) FROM executions WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')`) == 0
	})
	cancel()
	last.parts.Wait()
	broken, err := drill.Check(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range broken {
		w.t.Error(b)
	}
}

// allArrived waits until all events are settled, and sees that those which are published have
// arrived, in order.
func (w *crashWalk) allArrived() {
	w.t.Helper()
	eventually(w.t, 2*time.Minute, "all events settled", func() bool {
		return w.number(`SELECT count(*) FROM outbox_events WHERE status NOT IN ('PUBLISHED', 'SKIPPED', 'DEAD')
			AND aggregate_id NOT IN (SELECT aggregate_id FROM outbox_events WHERE status = 'DEAD')`) == 0
	})
	rows, err := w.db.Query(w.t.Context(), `SELECT id::text FROM outbox_events WHERE status = 'PUBLISHED'`)
	if err != nil {
		w.t.Fatal(err)
	}
	published, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(published) == 0 {
		w.t.Fatalf("%d events are published: %v", len(published), err)
	}
	arrived := w.sink.IDs()
	for _, id := range published {
		if !arrived[id] {
			w.t.Errorf("event %s is PUBLISHED, and was not taken", id)
		}
	}
}
