package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Worker offers capabilities. Make it with New, give it handlers, then Run it.
type Worker struct {
	cfg Config

	mu       sync.Mutex
	handlers map[string]handler
	errs     []error // of New and Handle, returned by Run
	running  bool
}

// handler runs one attempt and returns its output.
type handler func(ctx context.Context, a *attempt) (*leaseholdv1.Payload, error)

// New returns a worker without handlers. What is wrong with cfg is told by Run.
func New(cfg Config) *Worker {
	w := &Worker{cfg: cfg.withDefaults(), handlers: make(map[string]handler)}
	if err := w.cfg.validate(); err != nil {
		w.errs = append(w.errs, err)
	}
	return w
}

// Handle makes w offer a capability, 1 to 128 bytes of A-Z a-z 0-9 . _ / -, by a function
// with JSON input and output. A missing input leaves job.Input at its zero value; one that
// does not decode fails the attempt for good (TypeInvalidInput), as does an output that does
// not encode (TypeInvalidResult). h runs on a goroutine of its own, up to Config.Slots at
// once; what its errors mean stands in the package's documentation.
//
// A bad name, a second handler for the same capability and a nil h are errors of Run. Handle
// panics while Run runs: capabilities are told once, when the worker registers.
func Handle[In, Out any](w *Worker, capability string, h func(ctx context.Context, job *Job[In]) (Out, error)) {
	if h == nil {
		w.handle(capability, nil)
		return
	}
	w.handle(capability, func(ctx context.Context, a *attempt) (*leaseholdv1.Payload, error) {
		job := &Job[In]{attempt: a}
		if err := decodeJSON(a.lease.GetInput(), &job.Input); err != nil {
			return nil, Permanent(WithType(fmt.Errorf("decode input: %w", err), TypeInvalidInput))
		}
		out, err := h(ctx, job)
		if err != nil {
			return nil, err
		}
		body, err := json.Marshal(out)
		if err != nil {
			return nil, Permanent(WithType(fmt.Errorf("encode output: %w", err), TypeInvalidResult))
		}
		return &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(body)}, ContentType: "application/json"}, nil
	})
}

// HandleRaw is Handle for a function that takes and returns payloads as they are on the
// wire, JSON text or bytes. A nil input is none, a nil output is none.
func HandleRaw(w *Worker, capability string, h func(ctx context.Context, job *Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error)) {
	if h == nil {
		w.handle(capability, nil)
		return
	}
	w.handle(capability, func(ctx context.Context, a *attempt) (*leaseholdv1.Payload, error) {
		return h(ctx, &Job[*leaseholdv1.Payload]{Input: a.lease.GetInput(), attempt: a})
	})
}

func (w *Worker) handle(capability string, h handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		panic(fmt.Sprintf("leasehold: handler for capability %q added while the worker runs", capability))
	}
	_, taken := w.handlers[capability]
	switch err := validCapability(capability); {
	case err != nil:
		w.errs = append(w.errs, err)
	case h == nil:
		w.errs = append(w.errs, fmt.Errorf("handler for capability %q is nil", capability))
	case taken:
		w.errs = append(w.errs, fmt.Errorf("capability %q has two handlers", capability))
	default:
		w.handlers[capability] = h
	}
}

// Run registers the worker and works until ctx ends; it reconnects by itself, with backoff of
// at most 10 s. When ctx ends it stops polling at once, lets handlers finish for Config.Grace
// while their leases go on being renewed, then ends their contexts with ErrStopping, hands
// back what is left, deregisters and returns nil, at most a second after the grace. What
// handlers get is not ctx itself but a context with its values.
//
// A handler that does not return even then is left behind: its attempt is handed back, so it
// may be running still while another worker has begun, until the process ends. Guard with
// Job.LeaseVersion what must not see both.
//
// Errors: ErrSuperseded when another process took the worker's name (handlers get Config.Grace
// then, too); ErrRunning; bad settings or handlers; a first registration that the server
// refused for a reason which does not pass by itself. Run may be called again after it
// returned.
func (w *Worker) Run(ctx context.Context) error {
	handlers, err := w.start()
	if err != nil {
		return err
	}
	defer w.finish()

	conn := w.cfg.Conn
	if conn == nil {
		dialed, err := dial(w.cfg.Address)
		if err != nil {
			return fmt.Errorf("leasehold: connect to %q: %w", w.cfg.Address, err)
		}
		defer func() { _ = dialed.Close() }()
		conn = dialed
	}
	return newRun(w.cfg, handlers, conn).serve(ctx)
}

// start checks that the worker can run and marks it as running.
func (w *Worker) start() (map[string]handler, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running {
		return nil, ErrRunning
	}
	errs := slices.Clone(w.errs)
	if n := len(w.handlers); n == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("no handler was given"))
	} else if n > maxCapabilities {
		errs = append(errs, fmt.Errorf("%d capabilities, at most %d are allowed", n, maxCapabilities))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("leasehold: worker is not usable: %w", err)
	}
	w.running = true
	return maps.Clone(w.handlers), nil
}

func (w *Worker) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
}

// dial makes a connection that notices a dead peer and comes back soon: gRPC's own backoff
// goes up to two minutes. The server allows pings every 10 s.
func dial(address string) (*grpc.ClientConn, error) {
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay = backoffBase
	reconnect.MaxDelay = backoffCap / 2
	return grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}))
}
