package main

import (
	"context"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// is tells whether a path is answered with a status and a text.
func (p *process) is(path string, status int, text string) bool {
	p.t.Helper()
	gotStatus, got := p.get(path)
	return gotStatus == status && strings.Contains(got, text)
}

// openTx holds what a statement locks until it is released.
func openTx(t *testing.T, database, statement string, args ...any) (release func()) {
	t.Helper()
	conn, err := pgx.Connect(testTime(t), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.Background()) }
}

// TestReadyz_FollowsTheDatabase: a replica without its database lives, and is not ready.
func TestReadyz_FollowsTheDatabase(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	p := startServe(t, server.URL())
	if !p.is("/readyz", http.StatusOK, "ready") || !p.is("/healthz", http.StatusOK, "ok") {
		t.Error("it said that it is ready, and is not")
	}
	server.Kill()
	eventually(t, "not ready without a database", func() bool {
		return p.is("/readyz", http.StatusServiceUnavailable, "not ready\ndatabase: it does not answer\n")
	})
	if !p.is("/healthz", http.StatusOK, "ok") {
		t.Error("without a database it does not live")
	}
	if err := server.Restart(testTime(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ready again", func() bool { return p.is("/readyz", http.StatusOK, "ready") })
}

// TestReadyz_NamesTheLoopThatIsStuck: the database answers, but the sweeper gets nowhere.
func TestReadyz_NamesTheLoopThatIsStuck(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	p := startServe(t, server.URL(), "--sweep-interval", "100ms")
	release := openTx(t, server.URL(), "LOCK TABLE sweeps IN ACCESS EXCLUSIVE MODE")
	began := time.Now()
	for p.is("/readyz", http.StatusOK, "ready") {
		if time.Since(began) > time.Minute {
			t.Fatal("ready, with a sweeper that is stuck")
		}
		time.Sleep(100 * time.Millisecond)
	}
	if status, text := p.get("/readyz"); status != http.StatusServiceUnavailable || !strings.HasPrefix(text, "not ready\nloop sweeper: its last success was ") ||
		strings.Count(text, "\n") != 2 {
		t.Errorf("got %d %q, want that of the sweeper only", status, text)
	}
	release()
	eventually(t, "ready again", func() bool { return p.is("/readyz", http.StatusOK, "ready") })
}

// TestReadyz_IsOverWithSIGTERM: as long as calls under way take, the port tells that it stops.
func TestReadyz_IsOverWithSIGTERM(t *testing.T) {
	t.Parallel()
	server := startPostgres(t)
	p := startServe(t, server.URL())
	id := p.enqueue("", "nobody", `1`).GetExecution().GetId()
	release := openTx(t, server.URL(), "SELECT FROM executions WHERE id = $1 FOR UPDATE", id)
	client := p.executions()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = client.CancelExecution(testTime(t), &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
	}()
	eventually(t, "a cancel that waits for the row", func() bool {
		return p.is("/metrics", http.StatusOK, `grpc_server_started_total{grpc_method="CancelExecution"`)
	})
	p.signal(syscall.SIGTERM)
	eventually(t, "not ready", func() bool { return p.is("/readyz", http.StatusServiceUnavailable, "stopping") })
	select {
	case <-answered:
		t.Error("the call was over: nothing was shown")
	default:
	}
	release()
	if status := p.wait(10 * time.Second); status != 0 {
		t.Errorf("status %d, want 0", status)
	}
	<-answered
}

func TestHTTP_OffServesNone(t *testing.T) {
	t.Parallel()
	p := startServe(t, startPostgres(t).URL(), "--http-listen", "off")
	if p.ready.HTTP != "" {
		t.Errorf("it listens on %s", p.ready.HTTP)
	}
	p.stop(syscall.SIGTERM)
}

// TestHTTP_BusyPort: serve refuses to start, dev takes another.
func TestHTTP_BusyPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	busy := listener.Addr().String()

	p := launch(t, "serve", "--migrate", "--database-url", startPostgres(t).URL(), "--listen", "127.0.0.1:0", "--http-listen", busy)
	if status := p.wait(60 * time.Second); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if want := "another program listens on " + busy + "; choose another port with --http-listen"; !strings.Contains(p.stderr.String(), want) {
		t.Errorf("said %q, want %q", p.stderr, want)
	}
	d := start(t, "dev", "--ephemeral", "--listen", "127.0.0.1:0", "--http-listen", busy)
	if d.ready.HTTP == busy || !d.is("/readyz", http.StatusOK, "ready") {
		t.Errorf("dev listens on %q, want a free port", d.ready.HTTP)
	}
	eventually(t, "the hint", func() bool { return strings.Contains(d.stderr.String(), "curl -s http://"+d.ready.HTTP+"/metrics") })
	d.stop(syscall.SIGTERM)
}
