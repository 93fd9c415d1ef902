package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Worker offers capabilities. Make it with New, give it handlers, then Run it.
type Worker struct {
	cfg    Config
	counts counters

	mu       sync.Mutex
	handlers map[string]Handler
	errs     []error // of New and Handle, returned by Run
	running  bool
	run      *run // nil: none yet; else the last one
}

// Handler runs one attempt and returns its output, nil for none.
type Handler func(ctx context.Context, a *Attempt) (*leaseholdv1.Payload, error)

// Interceptor stands around every handler of a worker, for logging, metrics, tracing or
// whatever else is the same for all. It runs the attempt by calling next, once or not at all,
// and may change the context, the output and the error; how the error ends the attempt is as
// for a handler's own. A panic of the handler passes through it.
type Interceptor func(ctx context.Context, a *Attempt, next Handler) (*leaseholdv1.Payload, error)

// New returns a worker without handlers. What is wrong with cfg is told by Run.
func New(cfg Config) *Worker {
	w := &Worker{cfg: cfg.withDefaults(), handlers: make(map[string]Handler)}
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
	w.handle(capability, func(ctx context.Context, a *Attempt) (*leaseholdv1.Payload, error) {
		job := &Job[In]{Attempt: a}
		if err := DecodePayload(a.lease.pb.GetInput(), &job.Input); err != nil {
			return nil, Permanent(WithType(fmt.Errorf("decode input: %w", err), TypeInvalidInput))
		}
		out, err := h(ctx, job)
		if err != nil {
			return nil, err
		}
		output, err := EncodePayload(out)
		if err != nil {
			return nil, Permanent(WithType(fmt.Errorf("encode output: %w", err), TypeInvalidResult))
		}
		return output, nil
	})
}

// HandleRaw is Handle for a function that takes and returns payloads as they are on the
// wire, JSON text or bytes. A nil input is none, a nil output is none.
func HandleRaw(w *Worker, capability string, h func(ctx context.Context, job *Job[*leaseholdv1.Payload]) (*leaseholdv1.Payload, error)) {
	if h == nil {
		w.handle(capability, nil)
		return
	}
	w.handle(capability, func(ctx context.Context, a *Attempt) (*leaseholdv1.Payload, error) {
		return h(ctx, &Job[*leaseholdv1.Payload]{Input: a.lease.pb.GetInput(), Attempt: a})
	})
}

func (w *Worker) handle(capability string, h Handler) {
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
// at most 10 s. When ctx ends it asks for no more at once, lets handlers finish for Config.Grace
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
	r, err := w.start()
	if err != nil {
		return err
	}
	defer w.finish(r)
	return r.serve(ctx)
}

// start checks that the worker can run and marks it as running.
func (w *Worker) start() (*run, error) {
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
	s, err := newServers(w.cfg)
	if err != nil {
		return nil, fmt.Errorf("leasehold: connect: %w", err)
	}
	handlers := make(map[string]Handler, len(w.handlers))
	for capability, h := range w.handlers {
		handlers[capability] = intercepted(h, w.cfg.Interceptors)
	}
	w.running = true
	w.run = newRun(w.cfg, handlers, s, &w.counts)
	return w.run, nil
}

// intercepted puts interceptors around a handler, the first outermost.
func intercepted(h Handler, list []Interceptor) Handler {
	for _, around := range slices.Backward(list) {
		next := h
		h = func(ctx context.Context, a *Attempt) (*leaseholdv1.Payload, error) { return around(ctx, a, next) }
	}
	return h
}

func (w *Worker) finish(r *run) {
	r.servers.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = false
}
