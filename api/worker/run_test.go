package worker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started is a worker under test.
type started struct {
	stop   context.CancelFunc
	result chan error
}

// start runs w until stop is called, or the test ends.
func start(t *testing.T, w *worker.Worker) *started {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &started{stop: cancel, result: make(chan error, 1)}
	go func() { s.result <- w.Run(ctx) }()
	return s
}

// stopped stops the worker and returns what Run said.
func (s *started) stopped() error {
	s.stop()
	return <-s.result
}

func (s *started) mustStop(t *testing.T) {
	t.Helper()
	if err := s.stopped(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func config(conn grpc.ClientConnInterface) worker.Config {
	return worker.Config{Conn: conn, Slots: 4, Logger: quiet()}
}

type (
	payload = leaseholdv1.Payload
	rawJob  = worker.Job[*payload]
	number  struct {
		N int `json:"n"`
	}
)

func jsonPayload(s string) *payload {
	return &payload{Body: &leaseholdv1.Payload_Json{Json: s}}
}

func lease(capability, input string) *leaseholdv1.Lease {
	return &leaseholdv1.Lease{Capability: capability, Input: jsonPayload(input), AttemptNumber: 1}
}

// ended is what a handler saw when its context ended.
type ended struct {
	after time.Duration
	cause error
}

// untilEnd is a handler that works until its context ends, tells ends, and returns the
// context's error.
func untilEnd(ends chan<- ended) func(context.Context, *rawJob) (*payload, error) {
	return func(ctx context.Context, _ *rawJob) (*payload, error) {
		begun := time.Now()
		<-ctx.Done()
		ends <- ended{time.Since(begun), context.Cause(ctx)}
		return nil, ctx.Err()
	}
}

func TestRun_HandlesAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		cfg := config(conn)
		cfg.Namespace, cfg.Node, cfg.Version, cfg.Labels = "billing", "n1", "v3", map[string]string{"zone": "a"}
		w := worker.New(cfg)
		worker.Handle(w, "double", func(_ context.Context, job *worker.Job[number]) (number, error) {
			return number{job.Input.N * 2}, nil
		})
		worker.HandleRaw(w, "raw", func(_ context.Context, job *rawJob) (*payload, error) {
			return job.Input, nil
		})
		s := start(t, w)
		f.enqueue(lease("double", `{"n": 21}`))
		synctest.Wait()
		f.enqueue(&leaseholdv1.Lease{Capability: "raw", Input: &payload{Body: &leaseholdv1.Payload_Data{Data: []byte{0, 0xff}}}})
		synctest.Wait()
		s.mustStop(t)

		st := f.state()
		if len(st.reports) != 2 || st.reports[0].GetSucceeded().GetOutput().GetJson() != `{"n":42}` ||
			string(st.reports[1].GetSucceeded().GetOutput().GetData()) != "\x00\xff" {
			t.Fatalf("reports = %v, want a success with 42 and one with the bytes of the input", st.reports)
		}
		req := st.registers[0]
		if fmt.Sprint(req.GetCapabilities()) != "[double raw]" || req.GetSlots() != 4 || req.GetNamespace() != "billing" ||
			req.GetNode() != "n1" || req.GetVersion() != "v3" || req.GetLabels()["zone"] != "a" || req.GetRequestId() == "" {
			t.Errorf("registered as %v", req)
		}
		if st.deregisters != 1 || st.parked != 0 {
			t.Errorf("after the stop: %d deregistered, %d parked polls; want 1, 0", st.deregisters, st.parked)
		}
	})
}

func TestRun_RefusesBadSettings(t *testing.T) {
	t.Parallel()
	h := func(context.Context, *rawJob) (*payload, error) { return nil, nil }
	conn := new(grpc.ClientConn)
	for _, tc := range []struct {
		want string
		w    func() *worker.Worker
	}{
		{"exactly one of Address, Addresses and Conn", func() *worker.Worker { return worker.New(worker.Config{}) }},
		{"exactly one of Address, Addresses and Conn", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, Address: "x"}) }},
		{"no handler", func() *worker.Worker { return worker.New(worker.Config{Conn: conn}) }},
		{"Slots: -1", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, Slots: -1}) }},
		{"LeaseDuration: 1ms", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, LeaseDuration: time.Millisecond}) }},
		{"WaitTimeout: 1m0s", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, WaitTimeout: time.Minute}) }},
		{"Namespace", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, Namespace: "a b"}) }},
		{"Name: must", func() *worker.Worker { return worker.New(worker.Config{Conn: conn, Name: "\xff"}) }},
		{"Labels", func() *worker.Worker {
			return worker.New(worker.Config{Conn: conn, Labels: map[string]string{"": "x"}})
		}},
		{`capability "a b"`, func() *worker.Worker {
			w := worker.New(worker.Config{Conn: conn})
			worker.HandleRaw(w, "a b", h)
			return w
		}},
		{"two handlers", func() *worker.Worker {
			w := worker.New(worker.Config{Conn: conn})
			worker.HandleRaw(w, "a", h)
			worker.HandleRaw(w, "a", h)
			return w
		}},
		{"is nil", func() *worker.Worker {
			w := worker.New(worker.Config{Conn: conn})
			worker.Handle[number, number](w, "a", nil)
			return w
		}},
	} {
		if err := tc.w().Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Run = %v, want an error with %q", err, tc.want)
		}
	}
}

func TestRun_FirstRegistrationRefusedIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.onRegister = func(int, *leaseholdv1.RegisterWorkerRequest, *leaseholdv1.RegisterWorkerResponse) error {
			return refuse(codes.PermissionDenied, "PERMISSION_DENIED")
		}
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", untilEnd(nil))
		if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "PERMISSION_DENIED") {
			t.Errorf("Run = %v, want the refusal", err)
		}
	})
}

func TestRun_OnlyOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.HandleRaw(w, "x", untilEnd(nil))
		s := start(t, w)
		synctest.Wait()
		if err := w.Run(t.Context()); !errors.Is(err, worker.ErrRunning) {
			t.Errorf("second Run = %v, want ErrRunning", err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("HandleRaw while running did not panic")
				}
			}()
			worker.HandleRaw(w, "y", untilEnd(nil))
		}()
		s.mustStop(t)
		s = start(t, w) // and again after it returned
		synctest.Wait()
		s.mustStop(t)
		if n := len(f.state().registers); n != 2 {
			t.Errorf("%d registrations, want 2", n)
		}
	})
}

// TestRun_ReconnectsOverTCP is the one test on a real socket and real time: connect by Address,
// lose the server, find it again, leave no goroutine behind (TestMain looks).
func TestRun_ReconnectsOverTCP(t *testing.T) {
	f := newFake()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	serve := func(l net.Listener) *grpc.Server {
		server := grpc.NewServer()
		leaseholdv1.RegisterWorkerServiceServer(server, f)
		go func() { _ = server.Serve(l) }()
		return server
	}
	server := serve(listener)

	w := worker.New(worker.Config{Address: address, Logger: quiet()})
	done := make(chan int, 2)
	worker.Handle(w, "n", func(_ context.Context, job *worker.Job[number]) (struct{}, error) {
		done <- job.Input.N
		return struct{}{}, nil
	})
	s := start(t, w)
	f.enqueue(lease("n", `{"n":1}`))
	if got := <-done; got != 1 {
		t.Errorf("handled %d, want 1", got)
	}
	server.Stop()
	f.enqueue(lease("n", `{"n":2}`))
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	server = serve(listener)
	defer server.Stop()
	if got := <-done; got != 2 {
		t.Errorf("handled %d after the restart, want 2", got)
	}
	s.mustStop(t)
}
