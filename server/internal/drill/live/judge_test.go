package live

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
)

// newExercise is one whose drill is over, on a server in this process.
func newExercise(t *testing.T) (*exercise, *core.Client) {
	t.Helper()
	url := database.New(t)
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	cluster, err := core.Start(t.Context(), core.Config{URL: url, Replicas: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	s := &stage{url: url, db: db, consumers: map[string]*history.Recorder{}}
	x := &exercise{stage: s, namespace: "drill-test", recorder: &history.Recorder{}, drill: drill{name: "test"}}
	x.load = &load{x: x}
	conn, err := grpc.NewClient("passthrough:///"+cluster.Replica(0).Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(x.recorder.Unary("test")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return x, &core.Client{Executions: leaseholdv1.NewExecutionServiceClient(conn), Workers: leaseholdv1.NewWorkerServiceClient(conn)}
}

// finishOne has one execution enqueued and done, and its events noted as published.
func finishOne(t *testing.T, x *exercise, c *core.Client) {
	t.Helper()
	ctx := t.Context()
	if _, err := c.Executions.EnqueueExecution(ctx, x.load.request()); err != nil {
		t.Fatal(err)
	}
	w, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: x.namespace, Capabilities: []string{capability}, Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	for {
		answer, err := w.Lease(ctx, core.Poll{Request: uuid.NewString()})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range answer.GetLeases() {
			if _, err := w.Report(ctx, l, core.Succeeded(nil)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := x.number(ctx, `SELECT count(*) FROM executions WHERE ended_at IS NULL`); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			return
		}
	}
}

// settleEvents publishes everything, as a relay would.
func settleEvents(t *testing.T, x *exercise) {
	t.Helper()
	if _, err := x.db.Exec(t.Context(), `UPDATE outbox_events SET status = 'PUBLISHED'; DELETE FROM outbox_heads`); err != nil {
		t.Fatal(err)
	}
	rows, err := x.db.Query(t.Context(), `SELECT id, event_type, aggregate_id, sequence FROM outbox_events ORDER BY aggregate_id, sequence`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		d := history.Delivery{Namespace: x.namespace}
		if err := rows.Scan(&d.ID, &d.Type, &d.Execution, &d.Sequence); err != nil {
			t.Fatal(err)
		}
		x.consumerOf(x.namespace).Delivered(d)
	}
}

// TestJudge_SeesWhatIsWrong: a verdict that is always good is none. Each case spoils one thing
// after a drill that went well.
func TestJudge_SeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil   func(t *testing.T, x *exercise)
		outcome Outcome
		lost    bool
		doubled bool
		why     string
	}{
		"nothing": {func(*testing.T, *exercise) {}, Passed, false, false, ""},
		"what was accepted is gone": {func(t *testing.T, x *exercise) {
			spoilBySQL(t, x, `DELETE FROM executions; DELETE FROM steps; DELETE FROM attempts; DELETE FROM outbox_events; DELETE FROM timeline_entries`)
		}, Failed, true, false, "durable"},
		"a token twice": {func(t *testing.T, x *exercise) {
			spoilBySQL(t, x, `INSERT INTO attempts SELECT gen_random_uuid(), step_id, number + 1, round, state, reason, worker_id, session_id, worker_name, node,
				lease_version, ended_at, start_to_close_at, ended_at, NULL, NULL, outcome, lease_entry, end_entry FROM attempts`)
		}, Failed, true, true, "one-lease"},
		"an event is not heard of": {func(t *testing.T, x *exercise) {
			x.consumers[x.namespace] = &history.Recorder{}
			x.consumers[x.namespace].Consumes()
		}, Failed, false, false, "delivery"},
		"no call was recorded": {func(_ *testing.T, x *exercise) { x.recorder = &history.Recorder{} }, Failed, false, false, "nothing to compare"},
		"an answer that no client should get": {func(t *testing.T, x *exercise) {
			call := x.recorder.Unary("test")
			_ = call(t.Context(), "/leasehold.v1.ExecutionService/CancelExecution", &leaseholdv1.CancelExecutionRequest{}, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					return status.Error(codes.Internal, "broken")
				})
		}, Failed, false, false, "answers"},
		"a counter is wrong": {func(t *testing.T, x *exercise) {
			spoilBySQL(t, x, `UPDATE steps SET counted = counted + 1`)
		}, Failed, false, false, "a step's counters are those of its attempts"},
		"the drill itself did not get through": {func(_ *testing.T, x *exercise) { x.err = io.ErrUnexpectedEOF }, Failed, false, false, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, client := newExercise(t)
			finishOne(t, x, client)
			settleEvents(t, x)
			c.spoil(t, x)
			r := x.judge(t.Context())
			if r.Outcome != c.outcome || (r.Lost > 0) != c.lost || c.doubled && r.Doubled == 0 {
				t.Errorf("judged %+v", r)
			}
			if told := strings.Join(r.Why, "\n"); !strings.Contains(told, c.why) || (told == "") != (c.why == "") {
				t.Errorf("told %q, want something of %q", told, c.why)
			}
		})
	}
}

func spoilBySQL(t *testing.T, x *exercise, statement string) {
	t.Helper()
	if _, err := x.db.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestReadHistory_OfAWorkerThatWasKilledAtOnce has none, which is no fault.
func TestReadHistory_OfAWorkerThatWasKilledAtOnce(t *testing.T) {
	t.Parallel()
	h, err := readHistory(filepath.Join(t.TempDir(), "none"))
	if err != nil || len(h.Ops) != 0 || h.Clock == "" {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestForget_TheLastMoments: an asynchronous failover may lose what was answered between the end
// of the replication and the promotion, and nothing else.
func TestForget_TheLastMoments(t *testing.T) {
	t.Parallel()
	l := &lostMoments{cut: 100, cutOff: 110, promoted: 200}
	here, gone := uuid.New(), uuid.New()
	kept, lost := uuid.New(), uuid.New()
	c := &history.Committed{Executions: []history.Execution{{ID: here}}, Attempts: []history.Attempt{{ID: kept}}}
	enqueue := func(id uuid.UUID, begin, end int64) history.Op {
		return history.Op{Kind: history.Enqueue, Execution: id, Begin: begin, End: end, Outcome: history.OK}
	}
	of := func(kind history.Kind, id uuid.UUID, begin, end int64) history.Op {
		return history.Op{Kind: kind, Attempt: id, Begin: begin, End: end, Outcome: history.OK}
	}
	for name, tt := range map[string]struct {
		ops  []history.Op
		kept int
		ok   int // of those that are kept: known to have succeeded
		gone int
	}{
		"before":                         {[]history.Op{enqueue(gone, 10, 20)}, 1, 1, 0},
		"while the replication ended":    {[]history.Op{enqueue(gone, 90, 105), enqueue(here, 90, 105)}, 2, 0, 1},
		"in the lost moments":            {[]history.Op{enqueue(gone, 120, 130)}, 0, 0, 1},
		"answered after the promotion":   {[]history.Op{enqueue(gone, 120, 210)}, 1, 1, 0},
		"after":                          {[]history.Op{enqueue(gone, 220, 230)}, 1, 1, 0},
		"a lost grant, and what follows": {[]history.Op{of(history.Grant, lost, 120, 130), of(history.Work, lost, 130, 230), of(history.Report, lost, 230, 240)}, 0, 0, 0},
		"a grant that stayed":            {[]history.Op{of(history.Grant, kept, 80, 90), of(history.Work, kept, 90, 230), of(history.Report, kept, 230, 240)}, 3, 3, 0},
		"an attempt that was certain":    {[]history.Op{of(history.Grant, lost, 80, 90), of(history.Report, lost, 120, 130)}, 1, 1, 0},
		"an attempt of after":            {[]history.Op{of(history.Grant, lost, 220, 230), of(history.Report, lost, 240, 250)}, 2, 2, 0},
		"work on a grant that is unsure": {[]history.Op{of(history.Grant, kept, 90, 105), of(history.Work, kept, 105, 230)}, 1, 0, 0},
	} {
		h, n := l.forget(history.History{Ops: tt.ops}, c)
		ok := len(slices.DeleteFunc(slices.Clone(h.Ops), func(o history.Op) bool { return o.Outcome != history.OK }))
		if len(h.Ops) != tt.kept || ok != tt.ok || n != tt.gone {
			t.Errorf("%s: kept %d, %d of them OK, %d gone; want %d, %d, %d", name, len(h.Ops), ok, n, tt.kept, tt.ok, tt.gone)
		}
	}
}

// TestTwice_TokensOfTheLastMoments: what was granted then is gone, and what it was granted with must not
// come again.
func TestTwice_TokensOfTheLastMoments(t *testing.T) {
	t.Parallel()
	l := &lostMoments{cut: 100, cutOff: 110, promoted: 200}
	gone := history.Op{Kind: history.Grant, Attempt: uuid.New(), Version: 7, Begin: 120, End: 130, Outcome: history.OK}
	for version, want := range map[int64]int{7: 1, 8: 0} {
		c := &history.Committed{Attempts: []history.Attempt{{ID: uuid.New(), Version: version}}}
		if broken := l.twice(history.History{Ops: []history.Op{gone}}, c); len(broken) != want {
			t.Errorf("version %d: %v, want %d", version, broken, want)
		}
	}
}
