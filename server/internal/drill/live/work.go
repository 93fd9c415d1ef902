package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/api/worker"
	"github.com/leasehold/leasehold/server/internal/history"
)

const (
	capability    = "drill"
	leaseDuration = 2 * time.Second
)

// WorkerConfig says how one of the drill's worker processes works.
type WorkerConfig struct {
	Name      string
	Namespace string
	Replicas  []string // addresses
	History   string   // file that takes what it did
	Slots     int
	Pace      time.Duration // that a step takes
	Sleepwalk bool          // it works on one step until it is frozen and woken up, renews nothing, and reports a success
	Out       io.Writer     // what the drill reads
	Logger    *slog.Logger
}

// order is the input of a step.
type order struct {
	Fail  string `json:"fail,omitempty"`  // fail, for this reason
	Moody bool   `json:"moody,omitempty"` // fail, by chance
	Long  bool   `json:"long,omitempty"`  // work for longer than a lease lasts without renewals
}

// hands is the work of a worker process.
type hands struct {
	cfg      WorkerConfig
	recorder *history.Recorder
	mu       sync.Mutex // guards Out
	asleep   sync.Once
}

// Work is the life of a worker process: it works until ctx ends.
func Work(ctx context.Context, cfg WorkerConfig) error {
	file, err := os.OpenFile(cfg.History, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("keep a history: %w", err)
	}
	h := &hands{cfg: cfg, recorder: history.NewLog(file)}
	calls := []grpc.UnaryClientInterceptor{h.recorder.Unary(cfg.Name), h.tell}
	if cfg.Sleepwalk {
		calls = append(calls, withoutRenewals)
	}
	w := worker.New(worker.Config{
		Addresses: cfg.Replicas, DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(calls...)},
		Namespace: cfg.Namespace, Name: cfg.Name, Slots: cfg.Slots, LeaseDuration: leaseDuration, WaitTimeout: 5 * time.Second,
		Grace: 2 * time.Second, Logger: cfg.Logger,
	})
	worker.Handle(w, capability, h.handle)
	return errors.Join(w.Run(ctx), h.recorder.Err(), file.Close())
}

func (h *hands) handle(ctx context.Context, job *worker.Job[order]) (string, error) {
	defer h.recorder.Working(h.cfg.Name, job.Lease())()
	if h.cfg.Sleepwalk {
		h.asleep.Do(func() { h.sleepwalk(ctx, job.StepID()) })
	}
	pace := h.cfg.Pace
	if job.Input.Long {
		pace = leaseDuration * 3 / 2
	}
	select {
	case <-ctx.Done():
		if h.cfg.Sleepwalk {
			return "done, too late", nil
		}
		return "", context.Cause(ctx)
	case <-time.After(pace):
	}
	if job.Input.Fail != "" {
		return "", errors.New(job.Input.Fail)
	}
	if job.Input.Moody && rand.IntN(2) == 0 {
		return "", errors.New("not in the mood")
	}
	return "done", nil
}

// sleepwalk is where the worker is frozen, until long after its lease.
func (h *hands) sleepwalk(ctx context.Context, step string) {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	defer signal.Stop(woken)
	h.say(wordHolding, step)
	<-woken
	<-ctx.Done()
}

// The words that begin the lines of a worker.
const (
	wordHolding  = "holding"
	wordReported = "reported"
)

// say writes a line that the drill reads.
func (h *hands) say(words ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintln(h.cfg.Out, words...) // Nobody to tell if that fails.
}

// tell says when a report was answered, and when it was sent.
func (h *hands) tell(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	sent := history.Now()
	err := invoke(ctx, method, req, reply, conn, options...)
	if err == nil && taken(reply) {
		h.say(wordReported, sent, history.Now())
	}
	return err
}

// taken tells whether a report was accepted, or one of several.
func taken(reply any) bool {
	switch r := reply.(type) {
	case *leaseholdv1.ReportAttemptResponse:
		return true
	case *leaseholdv1.BatchReportAttemptsResponse:
		for _, one := range r.GetResults() {
			if one.GetError() == nil {
				return true
			}
		}
	}
	return false
}

// withoutRenewals is a network in which they do not get through.
func withoutRenewals(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if strings.Contains(method, "Renew") {
		return status.Error(codes.Unavailable, "renewals do not get through")
	}
	return invoke(ctx, method, req, reply, conn, options...)
}
