package faults

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
	"github.com/leasehold/leasehold/server/internal/task"
	"github.com/leasehold/leasehold/server/internal/testsink"
)

// crashWalk is a server that dies at one point after another, under a tour that passes them all.
type crashWalk struct {
	*cluster
	r    *replica
	sink *testsink.Receiver
	rec  *history.Recorder // of all clients and the sink
	kept bool              // nothing is removed, so that the history can be checked
	over atomic.Bool
	log  string // the file with the names of the points that were passed
}

// newCrashWalk starts one. Its sink refuses each fourth execution's first event once: that one
// is DEAD, until an operator redrives or skips it.
func newCrashWalk(t *testing.T, kept bool, args ...string) *crashWalk {
	t.Helper()
	rec := &history.Recorder{}
	sink := testsink.StartReceiver(t, func(w http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		if d.Number() == 1 && d.Before == 0 && d.Execution[len(d.Execution)-1] <= '3' {
			w.WriteHeader(http.StatusGone)
			return
		}
		rec.Delivered(history.Delivery{
			ID: uuid.MustParse(d.ID), Type: d.Type, Execution: uuid.MustParse(d.Execution), Sequence: d.Number(), Namespace: d.Namespace,
		})
	})
	c := newCluster(t, clusterConfig{
		replicas: 1, sweep: 100 * time.Millisecond, program: shared.crashingServer(t),
		args: append([]string{"--sink", sink.URL, "--events", "all", "--outbox-source", "/faults"}, args...),
	})
	w := &crashWalk{cluster: c, r: c.replicas[0], sink: sink, rec: rec, kept: kept, log: filepath.Join(t.TempDir(), "points")}
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
	w.check("after a crash at "+point, history.Check)
}

// dial connects a client whose calls are recorded.
func (w *crashWalk) dial() *peer {
	return dial(w.t, w.r.addr, grpc.WithChainUnaryInterceptor(w.rec.Unary("tour")), grpc.WithChainStreamInterceptor(w.rec.Stream("tour")))
}

// check looks at the tables, and at whether they are what the clients were told.
func (w *crashWalk) check(when string, rules func(history.History, history.Committed) []history.Violation) {
	w.t.Helper()
	broken, err := drill.Check(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range broken {
		// Retention drops events that are dead, which leaves gaps.
		if w.kept || !strings.HasPrefix(b, "events have no gaps") && !strings.HasPrefix(b, "every transition is an event") {
			w.t.Errorf("%s: %s", when, b)
		}
	}
	if !w.kept {
		return
	}
	at := history.Now()
	conn, err := w.db.Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	committed, err := history.Load(w.t.Context(), conn.Conn(), "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range rules(w.rec.History().Until(at), committed) {
		w.t.Errorf("%s: %s", when, v)
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

// walk has the server die at each of the points, after the tour has shown that it passes them
// all; in the short form at a few by chance, of those that it passes soon.
func (w *crashWalk) walk(points map[string]bool, short int) {
	w.t.Helper()
	split := func() (passed, missing []string) {
		seen := w.passed()
		for _, point := range slices.Sorted(maps.Keys(points)) {
			if seen[point] {
				passed = append(passed, point)
			} else {
				missing = append(missing, point)
			}
		}
		return passed, missing
	}
	enough := sized(2*len(points)/3, len(points))
	walk, missing := split()
	for deadline := time.Now().Add(2 * time.Minute); len(walk) < enough && time.Now().Before(deadline); walk, missing = split() {
		time.Sleep(100 * time.Millisecond)
	}
	if len(walk) < enough {
		w.t.Fatalf("the tour does not pass\n%s", strings.Join(missing, "\n"))
	}
	rand.Shuffle(len(walk), func(i, j int) { walk[i], walk[j] = walk[j], walk[i] })
	walk = walk[:sized(short, len(walk))]
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
// asked for, once; and every event arrives, in order. The history checker decides.
func TestCrashPoints_EachOnce(t *testing.T) {
	alongside(t)
	w := newCrashWalk(t, true, "--execution-retention", "off", "--outbox-retention", "off", "--outbox-dead-retention", "off")
	w.restart("LEASEHOLD_CRASH_LOG=" + w.log)
	p := w.dial()
	v := startTour(t, p)
	points := everyPoint(t)
	maps.DeleteFunc(points, func(point string, _ bool) bool { return ofRetention(point) })
	w.walk(points, 6)
	w.settle(v, p)
}

// TestCrashPoints_Retention: the same while everything old is removed, before and after each
// commit of that.
func TestCrashPoints_Retention(t *testing.T) {
	if !full() {
		t.Skip("takes minutes: make test-faults")
	}
	w := newCrashWalk(t, false, "--execution-retention", "1s", "--outbox-retention", "1s", "--outbox-dead-retention", "2s")
	w.restart("LEASEHOLD_CRASH_LOG=" + w.log)
	p := w.dial()
	v := startTour(t, p)
	v.parts.Go(w.age)
	points := everyPoint(t)
	maps.DeleteFunc(points, func(point string, _ bool) bool { return !ofRetention(point) })
	w.walk(points, 0)
	w.settle(v, p)
}

// age makes workers that have left old, again and again: they are kept for an hour at least.
func (w *crashWalk) age() {
	for w.t.Context().Err() == nil && !w.over.Load() {
		_, err := w.db.Exec(w.t.Context(), `UPDATE workers SET last_seen_at = now() - interval '2 h' WHERE session_id IS NULL`)
		if err != nil && w.t.Context().Err() == nil {
			w.t.Errorf("make workers old: %v", err)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// settle lets the tour come to its end, and looks at everything.
func (w *crashWalk) settle(v *tour, p *peer) {
	w.t.Helper()
	w.over.Store(true)
	v.stop()
	w.t.Logf("%d executions, %d attempts, %d events, %d of them repeated", w.number(`SELECT count(*) FROM executions`),
		w.number(`SELECT count(*) FROM attempts`), w.number(`SELECT count(*) FROM outbox_events`), w.sink.Repeats())
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	last := &tour{t: w.t, p: p}
	last.parts.Go(func() { last.work(ctx) })
	eventually(w.t, time.Minute, "all executions ended", func() bool {
		return w.number(`SELECT count(*) FROM executions WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELED')`) == 0
	})
	cancel()
	last.parts.Wait()
	if !w.kept {
		w.check("at the end", history.Check)
		return
	}
	eventually(w.t, 2*time.Minute, "all events settled", func() bool {
		if err := v.settle(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
		return w.number(`SELECT count(*) FROM outbox_events WHERE status NOT IN ('PUBLISHED', 'SKIPPED')`) == 0
	})
	w.check("at the end", history.CheckFinished)
}
