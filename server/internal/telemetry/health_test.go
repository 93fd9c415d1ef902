package telemetry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePool is a pool that nobody uses.
type fakePool struct{}

func (fakePool) AcquiredConns() int32                { return 0 }
func (fakePool) IdleConns() int32                    { return 0 }
func (fakePool) MaxConns() int32                     { return 0 }
func (fakePool) EmptyAcquireCount() int64            { return 0 }
func (fakePool) EmptyAcquireWaitTime() time.Duration { return 0 }

// fakeDatabase answers as its fields say.
type fakeDatabase struct {
	oldest  func(ctx context.Context) (time.Duration, error)
	queues  func(ctx context.Context) ([]scheduler.QueueDepth, error)
	backlog func(ctx context.Context) (outbox.Backlog, error)
	ping    func(ctx context.Context) error
}

func (f *fakeDatabase) OldestTransaction(ctx context.Context) (time.Duration, error) {
	if f.oldest == nil {
		return 0, nil
	}
	return f.oldest(ctx)
}

func (f *fakeDatabase) QueueDepths(ctx context.Context) ([]scheduler.QueueDepth, error) {
	if f.queues == nil {
		return nil, nil
	}
	return f.queues(ctx)
}

func (f *fakeDatabase) Backlog(ctx context.Context) (outbox.Backlog, error) {
	if f.backlog == nil {
		return outbox.Backlog{}, nil
	}
	return f.backlog(ctx)
}

func (f *fakeDatabase) Ping(ctx context.Context) error {
	if f.ping == nil {
		return nil
	}
	return f.ping(ctx)
}

// newWatched is telemetry of a replica with two loops and a relay, on a database.
func newWatched(db *fakeDatabase) *Telemetry {
	t := New(Config{Version: "test"})
	t.Watch(Sources{
		Ping: db.Ping, Queues: db, Outbox: db, Pool: func() Pool { return fakePool{} }, ParkedPolls: func() int { return 7 }, Watches: func() int { return 8 },
		Loops: map[scheduler.Loop]time.Duration{scheduler.LoopSweeper: 10 * time.Second, scheduler.LoopPresence: 30 * time.Second}, Relay: true,
	})
	return t
}

// ask asks a path without a network.
func ask(t *Telemetry, method, path string) (int, string) {
	w := httptest.NewRecorder()
	t.Handler().ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w.Code, w.Body.String()
}

func wantReady(t *testing.T, tele *Telemetry, problems ...string) {
	t.Helper()
	status, text := http.StatusOK, "ready\n"
	if len(problems) > 0 {
		status, text = http.StatusServiceUnavailable, "not ready\n"+strings.Join(problems, "\n")+"\n"
	}
	if gotStatus, got := ask(tele, http.MethodGet, "/readyz"); gotStatus != status || got != text {
		t.Errorf("got %d %q, want %d %q", gotStatus, got, status, text)
	}
}

func TestReadyz_OverALife(t *testing.T) {
	t.Parallel()
	tele := newWatched(&fakeDatabase{})
	wantReady(t, tele, "starting")
	tele.Serving()
	wantReady(t, tele)
	tele.Stopping()
	wantReady(t, tele, "stopping")
	tele.Serving() // too late
	wantReady(t, tele, "stopping")
}

// TestReadyz_LoopsHaveTheirTime: each loop has a bound of its own; hints have none. Caught: a
// beat that goes to another loop, a bound that is not looked at.
func TestReadyz_LoopsHaveTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tele := newWatched(&fakeDatabase{})
		tele.Serving()
		time.Sleep(10 * time.Second)
		wantReady(t, tele)
		time.Sleep(time.Second)
		wantReady(t, tele, "loop sweeper: its last success was 11s ago, and must be at most 10s ago")
		tele.Scheduler.Looped(scheduler.LoopSweeper)
		wantReady(t, tele)
		time.Sleep(20 * time.Second)
		tele.Scheduler.Looped(scheduler.LoopSweeper)
		wantReady(t, tele,
			"loop presence: its last success was 31s ago, and must be at most 30s ago",
			"loop relay: its last success was 31s ago, and must be at most 30s ago")
		tele.Scheduler.Looped(scheduler.LoopPresence)
		tele.Relay.Looped()
		tele.Scheduler.Looped("unheard of")
		wantReady(t, tele)
		_, text := ask(tele, http.MethodGet, "/metrics")
		for _, line := range []string{`{loop="hints"} 31`, `{loop="sweeper"} 0`} {
			if !strings.Contains(text, "leasehold_loop_last_success_age_seconds"+line+"\n") {
				t.Errorf("no %s in %s", line, text)
			}
		}
	})
}

// TestReadyz_AsksTheDatabase: an error and silence are the same; many that ask at once cost one
// ping, and a caller that leaves spoils nobody's answer.
func TestReadyz_AsksTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pings, answer := 0, error(nil)
		silent := false
		tele := newWatched(&fakeDatabase{ping: func(ctx context.Context) error {
			pings++
			if silent {
				<-ctx.Done()
				return ctx.Err()
			}
			return answer
		}})
		tele.Serving()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { wantReady(t, tele) })
		}
		wg.Wait()
		if pings != 1 {
			t.Errorf("%d pings, want 1", pings)
		}
		answer = errors.New("connection refused")
		time.Sleep(pingFresh)
		wantReady(t, tele, "database: it does not answer")
		silent = true
		time.Sleep(pingFresh)
		began := time.Now()
		wantReady(t, tele, "database: it does not answer")
		if took := time.Since(began); took != pingTimeout {
			t.Errorf("silence was waited for %s, want %s", took, pingTimeout)
		}
		silent, answer = false, nil
		time.Sleep(pingFresh)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if list := tele.health.problems(gone); len(list) > 0 {
			t.Errorf("for a caller that is gone: %q", list)
		}
	})
}

func TestHandler_IsForReadingOnly(t *testing.T) {
	t.Parallel()
	tele := newWatched(&fakeDatabase{})
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			if status, _ := ask(tele, method, path); status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, status)
			}
		}
		if status, _ := ask(tele, http.MethodHead, path); status == http.StatusMethodNotAllowed {
			t.Errorf("HEAD %s: %d", path, status)
		}
	}
	if status, _ := ask(tele, http.MethodGet, "/"); status != http.StatusNotFound {
		t.Errorf("GET /: %d", status)
	}
}
