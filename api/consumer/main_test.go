package consumer_test

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/api/consumer"
)

// database is the URL of a PostgreSQL that is there while the tests run.
var database string

func TestMain(m *testing.M) {
	giveBack, err := borrowPostgres()
	if err != nil {
		fmt.Fprintln(os.Stderr, "start PostgreSQL:", err)
		os.Exit(1)
	}
	code := m.Run()
	giveBack()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// borrowPostgres starts a server that ends with its stdin.
func borrowPostgres() (giveBack func(), err error) {
	lend := exec.Command("go", "run", "../../server/internal/devpg/lend")
	lend.Stderr = os.Stderr
	stdin, err := lend.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := lend.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := lend.Start(); err != nil {
		return nil, err
	}
	giveBack = func() {
		_ = stdin.Close()
		_ = lend.Wait()
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		giveBack()
		return nil, fmt.Errorf("read its URL: %w", err)
	}
	database = strings.TrimSpace(line)
	return giveBack, nil
}

var databases atomic.Int32

// openDatabase makes an empty database, with the tables of this package and others.
func openDatabase(ctx context.Context, statements ...string) (*pgxpool.Pool, error) {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	name := fmt.Sprintf("test%d", databases.Add(1))
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + name
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for _, statement := range append([]string{consumer.InboxMigration, consumer.FenceMigration}, statements...) {
		if _, err := pool.Exec(ctx, statement); err != nil {
			pool.Close()
			return nil, fmt.Errorf("%s: %w", statement, err)
		}
	}
	return pool, nil
}

func newDatabase(t *testing.T, statements ...string) *pgxpool.Pool {
	t.Helper()
	pool, err := openDatabase(t.Context(), statements...)
	if err != nil {
		t.Fatalf("make a database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newEvent(execution uuid.UUID, sequence int64) *consumer.Event {
	return &consumer.Event{ID: uuid.New(), ExecutionID: execution, Sequence: sequence, Type: "leasehold.step.v1.succeeded"}
}

func begin(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // Most have ended before.
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func rollback(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatalf("roll back: %v", err)
	}
}

// number is what a query answers.
func number(t *testing.T, pool *pgxpool.Pool, query string, args ...any) (n int64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// awaitWaiting returns when so many of the database's transactions wait for another one.
func awaitWaiting(t *testing.T, pool *pgxpool.Pool, want int64) {
	t.Helper()
	const waiting = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`
	var got int64
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = number(t, pool, waiting); got == want {
			return
		}
	}
	t.Fatalf("%d transactions wait, want %d", got, want)
}
