package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
)

// A worker that greets. Instead of the server of the example, give the address of yours.
func Example() {
	server := newExampleServer(`{"name": "Ada"}`)
	defer server.stop()

	type (
		Greeting struct {
			Name string `json:"name"`
		}
		Greeted struct {
			Text string `json:"text"`
		}
	)
	w := worker.New(worker.Config{Address: server.address, Slots: 4, Logger: quiet()})
	worker.Handle(w, "greet/v1", func(_ context.Context, job *worker.Job[Greeting]) (Greeted, error) {
		if job.Input.Name == "" {
			return Greeted{}, worker.Permanent(errors.New("nobody to greet"))
		}
		fmt.Printf("attempt %d of step %q\n", job.AttemptNumber(), job.StepName())
		return Greeted{Text: "Hello, " + job.Input.Name}, nil
	})

	// A program would take a context that ends with SIGTERM, by signal.NotifyContext.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		server.awaitReport()
		cancel()
	}()
	if err := w.Run(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(server.awaitReport().GetSucceeded().GetOutput().GetJson())
	// Output:
	// attempt 1 of step "greet"
	// {"text":"Hello, Ada"}
}

// A handler that does its work in pieces looks at its context between them, and sends the
// fencing token along with each change.
func ExampleJob_LeaseVersion() {
	server := newExampleServer(`["a", "b"]`)
	defer server.stop()

	var store fencedStore
	w := worker.New(worker.Config{Address: server.address, Logger: quiet()})
	worker.Handle(w, "greet/v1", func(ctx context.Context, job *worker.Job[[]string]) (int, error) {
		for i, name := range job.Input {
			if ctx.Err() != nil {
				return i, context.Cause(ctx) // ErrLeaseLost, ErrCanceled, ErrDeadline or ErrStopping
			}
			if err := store.put(name, job.LeaseVersion()); err != nil {
				return i, err
			}
		}
		return len(job.Input), nil
	})

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		server.awaitReport()
		cancel()
	}()
	if err := w.Run(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(store.names, store.put("late", 1))
	// Output: [a b] refused: somebody with a later lease was here
}

// fencedStore refuses the changes of who has lost the step to somebody else.
type fencedStore struct {
	newest int64
	names  []string
}

func (s *fencedStore) put(name string, leaseVersion int64) error {
	if leaseVersion < s.newest {
		return errors.New("refused: somebody with a later lease was here")
	}
	s.newest = leaseVersion
	s.names = append(s.names, name)
	return nil
}

// exampleServer is a server with one step to do.
type exampleServer struct {
	address string
	fake    *fakeServer
	server  *grpc.Server
}

func newExampleServer(input string) *exampleServer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := &exampleServer{address: listener.Addr().String(), fake: newFake(), server: grpc.NewServer(grpc.Creds(insecure.NewCredentials()))}
	leaseholdv1.RegisterWorkerServiceServer(s.server, s.fake)
	l := lease("greet/v1", input)
	l.StepName = "greet"
	s.fake.enqueue(l)
	go func() { _ = s.server.Serve(listener) }()
	return s
}

func (s *exampleServer) awaitReport() *report {
	for {
		if st := s.fake.state(); len(st.reports) > 0 {
			return st.reports[0]
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *exampleServer) stop() { s.server.Stop() }
