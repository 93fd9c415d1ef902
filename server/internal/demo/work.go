package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/leasehold/leasehold/api/worker"
)

const (
	executionName = "coupon"
	capability    = "coupon.send/v1"
	slots         = 4
	leaseDuration = 3 * time.Second
)

// WorkerConfig says how one of the workers works.
type WorkerConfig struct {
	Name     string
	Replicas []string // addresses
	Mailbox  string   // URL of the mail provider's database
	Pace     time.Duration
	Fate     string    // what happens to it: FateSleep, FateDie, or nothing
	At       int64     // with which of its coupons, from 1
	Out      io.Writer // what the demo reads
	Logger   *slog.Logger
}

// The fates of workers.
const (
	FateSleep = "sleep"
	FateDie   = "die"
)

// mailer is a worker's work.
type mailer struct {
	mailbox mailbox
	cfg     WorkerConfig
	begun   atomic.Int64 // coupons
}

// Work is the life of a worker process: it sends coupons until ctx ends.
func Work(ctx context.Context, cfg WorkerConfig) error {
	box, err := openMailbox(ctx, cfg.Mailbox)
	if err != nil {
		return err
	}
	defer box.close()
	options := []grpc.DialOption{grpc.WithNoProxy()}
	if cfg.Fate == FateSleep {
		options = append(options, withoutRenewals())
	}
	m := &mailer{mailbox: box, cfg: cfg}
	w := worker.New(worker.Config{
		Addresses: cfg.Replicas, DialOptions: options, Name: cfg.Name, Slots: slots, LeaseDuration: leaseDuration, Logger: cfg.Logger,
	})
	worker.Handle(w, capability, m.handle)
	return w.Run(ctx)
}

// receipt is the output of a step.
type receipt struct {
	SentTo string `json:"sent_to"`
}

// send is a handler as it should be: it passes its context on, and brings its lease version.
func (m *mailer) send(ctx context.Context, job *worker.Job[Coupon]) (receipt, error) {
	if err := m.print(ctx); err != nil {
		return receipt{}, err
	}
	if err := m.mailbox.deliver(ctx, job.Input, job.LeaseVersion()); err != nil {
		return receipt{}, err
	}
	return receipt{SentTo: job.Input.Customer}, nil
}

// print is the work that takes time.
func (m *mailer) print(ctx context.Context) error {
	select {
	case <-time.After(m.cfg.Pace):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// handle is send, but for the one coupon with which the worker meets its fate.
func (m *mailer) handle(ctx context.Context, job *worker.Job[Coupon]) (receipt, error) {
	switch nth := m.begun.Add(1); {
	case nth == m.cfg.At && m.cfg.Fate == FateSleep:
		return m.sleepwalk(ctx, job), nil
	case nth == m.cfg.At && m.cfg.Fate == FateDie:
		return m.die(ctx, job)
	default:
		return m.send(ctx, job)
	}
}

// sleepwalk does everything wrong: the worker loses its lease in the middle, for it is frozen,
// hears of that, sends all the same, and reports a success. What stops it is the fence, and
// then the server.
func (m *mailer) sleepwalk(ctx context.Context, job *worker.Job[Coupon]) receipt {
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, syscall.SIGCONT)
	defer signal.Stop(woken)
	fmt.Fprintln(m.cfg.Out, holding, job.Input.Key(), job.ExecutionID(), job.LeaseVersion())
	<-woken // Here it is frozen, until long after its lease.
	<-ctx.Done()
	err := m.mailbox.deliver(context.WithoutCancel(ctx), job.Input, job.LeaseVersion())
	fmt.Fprintln(m.cfg.Out, delivered, err)
	return receipt{SentTo: job.Input.Customer}
}

// die is killed at the worst moment: when the message is sent, and nobody knows.
func (m *mailer) die(ctx context.Context, job *worker.Job[Coupon]) (receipt, error) {
	if err := m.mailbox.deliver(ctx, job.Input, job.LeaseVersion()); err != nil {
		return receipt{}, err
	}
	fmt.Fprintln(m.cfg.Out, delivered, job.Input.Key())
	<-ctx.Done() // Here it is killed.
	return receipt{}, context.Cause(ctx)
}

// The words that begin the lines of a worker with a fate.
const (
	holding   = "holding"
	delivered = "delivered"
)

// withoutRenewals is a network in which they do not get through, so that a worker that wakes
// up is not told by a renewal that its lease is lost.
func withoutRenewals() grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if strings.Contains(method, "Renew") {
			return status.Error(codes.Unavailable, "renewals do not get through")
		}
		return invoke(ctx, method, req, reply, conn, options...)
	})
}
