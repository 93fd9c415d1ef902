package history_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/testdb"
	"github.com/leasehold/leasehold/server/internal/testsink"
	"github.com/leasehold/leasehold/server/internal/webhook"
)

var databases testdb.Server

// tellTime in the environment makes the test's binary a process that only tells the time.
const tellTime = "LEASEHOLD_TEST_TELL_TIME"

func TestMain(m *testing.M) {
	if os.Getenv(tellTime) != "" {
		fmt.Print(history.Now())
		os.Exit(0)
	}
	code := m.Run()
	databases.Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const (
	patient = 4 * time.Minute  // for what has to come, on a slow machine
	long    = 10 * time.Minute // a lease that does not end within a test
	work    = "work"
)

// world is a cluster whose clients are all recorded, and whose events go to a receiver that is.
type world struct {
	*drill.Cluster
	t        *testing.T
	url      string
	recorder history.Recorder
	lose     loser
}

func newWorld(t *testing.T, replicas int) *world {
	t.Helper()
	w := &world{t: t, url: databases.New(t)}
	receiver := testsink.StartReceiver(t, func(_ http.ResponseWriter, _ *http.Request, d *testsink.Delivery) {
		w.recorder.Delivered(history.Delivery{
			Client: "consumer", ID: uuid.MustParse(d.ID), Type: d.Type, Execution: uuid.MustParse(d.Execution), Sequence: d.Number(), Namespace: d.Namespace,
		})
	})
	cluster, err := drill.Start(t.Context(), drill.Config{
		URL: w.url, Replicas: replicas,
		Publisher: func() (outbox.Publisher, error) {
			return webhook.New(webhook.Config{URL: receiver.URL, Source: "/history"})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Cluster = cluster
	t.Cleanup(cluster.Stop)
	return w
}

// loser makes the next call of a method unclear, before it is sent or after it was answered.
type loser struct{ method, when string }

func (l *loser) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if l.method != method {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	l.method = ""
	if l.when == "answer" {
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
	}
	return status.Error(codes.Unavailable, "the connection broke")
}

// client is a recorded client of a replica, with a connection of its own.
func (w *world) client(name string, replica int) *drill.Client {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+w.Replica(replica).Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(w.recorder.Unary(name), w.lose.unary))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return &drill.Client{
		Executions: leaseholdv1.NewExecutionServiceClient(conn), Workers: leaseholdv1.NewWorkerServiceClient(conn),
		Operators: leaseholdv1.NewOperatorServiceClient(conn),
	}
}

// connect connects to the database, until the test ends.
func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (w *world) load(conn *pgx.Conn, namespace string) history.Committed {
	w.t.Helper()
	c, err := history.Load(w.t.Context(), conn, namespace)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// settled waits until all is done and published.
func (w *world) settled(conn *pgx.Conn) {
	w.t.Helper()
	err := drill.Await(w.t.Context(), patient, "end of all work and events", func(ctx context.Context) (bool, error) {
		var left int
		err := conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM executions WHERE ended_at IS NULL) + (SELECT count(*) FROM outbox_events WHERE status <> 'PUBLISHED')`).Scan(&left)
		return left == 0, err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// none fails the test for every violation.
func none(t *testing.T, what string, found []history.Violation) {
	t.Helper()
	for _, v := range found {
		t.Errorf("%s: %s", what, v)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
