package worker_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

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

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func config(conn grpc.ClientConnInterface) worker.Config {
	return worker.Config{Conn: conn, Slots: 4, Logger: quiet()}
}

type number struct {
	N int `json:"n"`
}

func jsonPayload(s string) *leaseholdv1.Payload {
	return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: s}}
}

func lease(capability, input string) *leaseholdv1.Lease {
	return &leaseholdv1.Lease{Capability: capability, Input: jsonPayload(input), AttemptNumber: 1}
}

func TestRun_HandlesAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		_, conn := connect(t, f)
		w := worker.New(config(conn))
		worker.Handle(w, "double", func(_ context.Context, job *worker.Job[number]) (number, error) {
			return number{job.Input.N * 2}, nil
		})
		worker.HandleRaw(w, "fail", func(context.Context, *worker.Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error) {
			return nil, errors.New("no")
		})
		s := start(t, w)
		f.enqueue(lease("double", `{"n": 21}`))
		synctest.Wait()

		st := f.state()
		if len(st.reports) != 1 || st.reports[0].GetSucceeded().GetOutput().GetJson() != `{"n":42}` {
			t.Fatalf("reports = %v, want one success with 42", st.reports)
		}
		if got := st.registers[0].GetCapabilities(); len(got) != 2 || got[0] != "double" || got[1] != "fail" {
			t.Errorf("capabilities = %v", got)
		}
		if err := s.stopped(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		if st := f.state(); st.deregisters != 1 || st.drained != 1 || st.parked != 0 {
			t.Errorf("after stop: %d deregistered, %d drained, %d parked polls; want 1, 1, 0", st.deregisters, st.drained, st.parked)
		}
		_ = time.Now
	})
}
