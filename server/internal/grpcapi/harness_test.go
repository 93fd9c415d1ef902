package grpcapi

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeApp is the application by hand: each field, if set, answers its calls; if not, the
// answer is a zero value.
type fakeApp struct {
	enqueue    func(context.Context, *task.ExecutionSpec) (scheduler.Enqueued, error)
	enqueueAll func(context.Context, []*task.ExecutionSpec) ([]scheduler.Enqueued, error)
	cancel     func(context.Context, uuid.UUID, string) (*scheduler.ExecutionView, error)
	get        func(context.Context, scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error)
	list       func(context.Context, scheduler.ListQuery) (scheduler.ExecutionPage, error)
	timeline   func(context.Context, uuid.UUID, int64, int) ([]scheduler.EntryView, error)
	inputs     func(context.Context, scheduler.InputsQuery) (scheduler.Inputs, error)
	register   func(context.Context, scheduler.Registration) (scheduler.Session, error)
	drain      func(context.Context, uuid.UUID, uuid.UUID) (int, error)
	deregister func(context.Context, uuid.UUID, uuid.UUID, bool) (int, error)
	poll       func(context.Context, scheduler.Poll) (scheduler.PollAnswer, error)
	renew      func(context.Context, []scheduler.Renewal) []scheduler.Result[scheduler.Renewed]
	report     func(context.Context, []scheduler.Report) []scheduler.Result[scheduler.Reported]
	events     func(context.Context, outbox.ListQuery) (outbox.EventPage, error)
	change     func(context.Context, outbox.Action, outbox.Selection, string) (outbox.Total, error)
	watch      func(context.Context, uuid.UUID, int64, func(scheduler.Update) error) error

	fakeOperators
}

func (f *fakeApp) Enqueue(ctx context.Context, s *task.ExecutionSpec) (scheduler.Enqueued, error) {
	if f.enqueue == nil {
		return scheduler.Enqueued{}, nil
	}
	return f.enqueue(ctx, s)
}

func (f *fakeApp) EnqueueAll(ctx context.Context, s []*task.ExecutionSpec) ([]scheduler.Enqueued, error) {
	if f.enqueueAll == nil {
		return make([]scheduler.Enqueued, len(s)), nil
	}
	return f.enqueueAll(ctx, s)
}

func (f *fakeApp) Cancel(ctx context.Context, id uuid.UUID, reason string) (*scheduler.ExecutionView, error) {
	if f.cancel == nil {
		return nil, nil
	}
	return f.cancel(ctx, id, reason)
}

func (f *fakeApp) Retry(context.Context, scheduler.Retry) (scheduler.Retried, error) {
	return scheduler.Retried{}, nil
}

func (f *fakeApp) GetExecution(ctx context.Context, q scheduler.ExecutionQuery) (*scheduler.ExecutionView, bool, error) {
	if f.get == nil {
		return &scheduler.ExecutionView{}, false, nil
	}
	return f.get(ctx, q)
}

func (f *fakeApp) ListExecutions(ctx context.Context, q scheduler.ListQuery) (scheduler.ExecutionPage, error) {
	if f.list == nil {
		return scheduler.ExecutionPage{}, nil
	}
	return f.list(ctx, q)
}

func (f *fakeApp) ListTimeline(ctx context.Context, id uuid.UUID, after int64, limit int) ([]scheduler.EntryView, error) {
	if f.timeline == nil {
		return nil, nil
	}
	return f.timeline(ctx, id, after, limit)
}

func (f *fakeApp) StepInputs(ctx context.Context, q scheduler.InputsQuery) (scheduler.Inputs, error) {
	if f.inputs == nil {
		return scheduler.Inputs{Next: -1}, nil
	}
	return f.inputs(ctx, q)
}

func (f *fakeApp) Register(ctx context.Context, r scheduler.Registration) (scheduler.Session, error) {
	if f.register == nil {
		return scheduler.Session{}, nil
	}
	return f.register(ctx, r)
}

func (f *fakeApp) Drain(ctx context.Context, worker, session uuid.UUID) (int, error) {
	if f.drain == nil {
		return 0, nil
	}
	return f.drain(ctx, worker, session)
}

func (f *fakeApp) Deregister(ctx context.Context, worker, session uuid.UUID, force bool) (int, error) {
	if f.deregister == nil {
		return 0, nil
	}
	return f.deregister(ctx, worker, session, force)
}

func (f *fakeApp) Poll(ctx context.Context, p scheduler.Poll) (scheduler.PollAnswer, error) {
	if f.poll == nil {
		return scheduler.PollAnswer{}, nil
	}
	return f.poll(ctx, p)
}

func (f *fakeApp) Renew(ctx context.Context, r []scheduler.Renewal) []scheduler.Result[scheduler.Renewed] {
	if f.renew == nil {
		return make([]scheduler.Result[scheduler.Renewed], len(r))
	}
	return f.renew(ctx, r)
}

func (f *fakeApp) Report(ctx context.Context, r []scheduler.Report) []scheduler.Result[scheduler.Reported] {
	if f.report == nil {
		return make([]scheduler.Result[scheduler.Reported], len(r))
	}
	return f.report(ctx, r)
}

func (f *fakeApp) List(ctx context.Context, q outbox.ListQuery) (outbox.EventPage, error) {
	if f.events == nil {
		return outbox.EventPage{}, nil
	}
	return f.events(ctx, q)
}

func (f *fakeApp) Change(ctx context.Context, a outbox.Action, s outbox.Selection, reason string) (outbox.Total, error) {
	if f.change == nil {
		return outbox.Total{}, nil
	}
	return f.change(ctx, a, s, reason)
}

func (f *fakeApp) Watch(ctx context.Context, id uuid.UUID, after int64, tell func(scheduler.Update) error) error {
	if f.watch == nil {
		return tell(scheduler.Update{Snapshot: &scheduler.ExecutionView{}})
	}
	return f.watch(ctx, id, after, tell)
}

// logBook keeps what was logged.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBook) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// rig is a server on a listener in memory, with a connection to it.
type rig struct {
	server     *Server
	conn       *grpc.ClientConn
	executions leaseholdv1.ExecutionServiceClient
	workers    leaseholdv1.WorkerServiceClient
	operators  leaseholdv1.OperatorServiceClient
	log        *logBook
}

func newRig(t testing.TB, app *fakeApp, config Config) *rig {
	t.Helper()
	r := &rig{log: &logBook{}}
	config.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	server, err := New(config, Deps{Executions: app, Queries: app, Sessions: app, Leases: app, Events: app, Watches: app, Operators: app, Fleet: app})
	if err != nil {
		t.Fatal(err)
	}
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///leasehold",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)),
		grpc.WithDisableRetry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Shutdown(nil)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	r.server, r.conn = server, conn
	r.executions, r.workers = leaseholdv1.NewExecutionServiceClient(conn), leaseholdv1.NewWorkerServiceClient(conn)
	r.operators = leaseholdv1.NewOperatorServiceClient(conn)
	return r
}

// refusal is an error taken apart.
type refusal struct {
	code    codes.Code
	info    *errdetails.ErrorInfo
	fields  map[string]string // reasons by field
	count   int               // violations
	details []any
	text    string
}

func refusalOf(t testing.TB, err error) refusal {
	t.Helper()
	if err == nil {
		t.Fatal("the call was answered OK, want an error")
	}
	return takeApart(status.Convert(err))
}

func refusalOfItem(s *rpcstatus.Status) refusal { return takeApart(status.FromProto(s)) }

func takeApart(st *status.Status) refusal {
	r := refusal{code: st.Code(), info: &errdetails.ErrorInfo{}, fields: map[string]string{}, details: st.Details(), text: st.String()}
	for _, d := range r.details {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			r.info = d
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				r.fields[v.GetField()] = v.GetReason()
				r.count++
			}
		}
	}
	return r
}

func oneStep() *leaseholdv1.EnqueueExecutionRequest {
	return &leaseholdv1.EnqueueExecutionRequest{
		Name: "report", Steps: []*leaseholdv1.StepSpec{{Name: "a", Capability: "example.echo"}},
	}
}

func jsonPayload(text string) *leaseholdv1.Payload {
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: text}}
}

func ptr[T any](v T) *T { return &v }

const (
	someID  = "0192d5a0-5a5a-7a5a-8a5a-5a5a5a5a5a5a"
	otherID = "0192d5a0-5a5a-7a5a-8a5a-5a5a5a5a5a5b"
)

func waiting(d time.Duration) *leaseholdv1.LeaseAttemptRequest {
	r := poll()
	r.WaitTimeout = durationpb.New(d)
	return r
}
