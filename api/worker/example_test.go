package worker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"expvar"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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
func ExampleAttempt_LeaseVersion() {
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

	server.runUntilReport(w)
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

// A handler that resumes where an earlier attempt was.
func ExampleAttempt_SaveCheckpoint() {
	importRows := func(ctx context.Context, job *worker.Job[[]string]) (int, error) {
		var next int
		if _, err := job.DecodeCheckpoint(&next); err != nil {
			return 0, worker.Permanent(err)
		}
		for ; next < len(job.Input); next++ {
			if err := ctx.Err(); err != nil {
				return 0, err // the checkpoint is what the next attempt needs
			}
			fmt.Println("import", job.Input[next])
			job.Progress(float64(next+1)/float64(len(job.Input)), job.Input[next])
			if err := job.SaveCheckpoint(ctx, next+1); err != nil {
				return 0, err
			}
		}
		return next, nil
	}

	server := newExampleServer(`["a", "b", "c"]`)
	defer server.stop()
	server.lease.Checkpoint = &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: "1"}} // of the first attempt
	w := worker.New(worker.Config{Address: server.address, Logger: quiet()})
	worker.Handle(w, "greet/v1", importRows)
	server.runUntilReport(w)
	// Output:
	// import b
	// import c
}

// Logging and a context for all handlers. For tracing, start a span here, as a child of what
// a.TraceContext() carries.
func ExampleInterceptor() {
	logged := func(ctx context.Context, a *worker.Attempt, next worker.Handler) (*leaseholdv1.Payload, error) {
		begun := time.Now()
		output, err := next(ctx, a)
		fmt.Printf("step %q, attempt %d: error %v, quick: %t\n", a.StepName(), a.AttemptNumber(), err, time.Since(begun) < time.Minute)
		return output, err
	}

	server := newExampleServer(`1`)
	defer server.stop()
	w := worker.New(worker.Config{Address: server.address, Interceptors: []worker.Interceptor{logged}, Logger: quiet()})
	worker.Handle(w, "greet/v1", func(context.Context, *worker.Job[int]) (int, error) {
		return 0, errors.New("nobody is there")
	})
	server.runUntilReport(w)
	// Output: step "greet", attempt 1: error nobody is there, quick: true
}

// Several servers, with TLS. Interceptors and stats handlers of grpc for metrics and tracing
// are DialOptions, too.
func ExampleConfig_addresses() {
	w := worker.New(worker.Config{
		Addresses:   []string{"leasehold-1.internal:50051", "leasehold-2.internal:50051", "leasehold-3.internal:50051"},
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13}))},
	})
	fmt.Println(w.Health())
	// Output: leasehold: worker does not run
}

// How a host program shows what its worker does.
func ExampleWorker_Stats() {
	server := newExampleServer(`1`)
	defer server.stop()
	w := worker.New(worker.Config{Address: server.address, Slots: 4, Logger: quiet()})
	worker.Handle(w, "greet/v1", func(context.Context, *worker.Job[int]) (int, error) { return 1, nil })
	expvar.Publish("leasehold_worker", expvar.Func(func() any { return w.Stats() }))
	http.HandleFunc("/ready", func(out http.ResponseWriter, _ *http.Request) {
		if err := w.Health(); err != nil {
			http.Error(out, err.Error(), http.StatusServiceUnavailable)
		}
	})

	server.runUntilReport(w)
	stats := w.Stats()
	fmt.Println(stats.Running, stats.Leased, stats.Succeeded, stats.Failed)
	// Output: false 1 1 0
}

// exampleServer is a server with one step to do.
type exampleServer struct {
	address string
	lease   *leaseholdv1.Lease
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
	s.lease = lease("greet/v1", input)
	s.lease.StepName = "greet"
	s.fake.enqueue(s.lease)
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

// runUntilReport runs a worker until it has reported.
func (s *exampleServer) runUntilReport(w *worker.Worker) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		s.awaitReport()
		cancel()
	}()
	if err := w.Run(ctx); err != nil {
		fmt.Println(err)
	}
}

func (s *exampleServer) stop() { s.server.Stop() }
