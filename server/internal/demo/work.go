package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
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
	Replicas []string // addresses, in the order of preference
	Mailbox  string   // URL of the mail provider's database
	Pace     time.Duration
	Careless int       // which of its coupons it treats carelessly, from 1; 0: none
	Out      io.Writer // what the demo reads
	Logger   *slog.Logger
}

// mailer is a worker's work.
type mailer struct {
	mailbox mailbox
	pace    time.Duration
}

// Work is the life of a worker process: it sends coupons until ctx ends.
func Work(ctx context.Context, cfg WorkerConfig) error {
	box, err := openMailbox(ctx, cfg.Mailbox)
	if err != nil {
		return err
	}
	defer box.close()
	m := mailer{mailbox: box, pace: cfg.Pace}
	send, options := m.send, []grpc.DialOption(nil)
	if cfg.Careless > 0 {
		send, options = m.carelessly(cfg.Careless, cfg.Out), []grpc.DialOption{withoutRenewals()}
	}
	conn, err := dial(cfg.Replicas, 0, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	w := worker.New(worker.Config{Conn: conn, Name: cfg.Name, Slots: slots, LeaseDuration: leaseDuration, Logger: cfg.Logger})
	worker.Handle(w, capability, send)
	return w.Run(ctx)
}

// receipt is the output of a step.
type receipt struct {
	SentTo string `json:"sent_to"`
}

// send is a handler as it should be: it passes its context on, and brings its lease version.
func (m mailer) send(ctx context.Context, job *worker.Job[Coupon]) (receipt, error) {
	if err := m.print(ctx); err != nil {
		return receipt{}, err
	}
	if err := m.mailbox.deliver(ctx, job.Input, job.LeaseVersion()); err != nil {
		return receipt{}, err
	}
	return receipt{SentTo: job.Input.Customer}, nil
}

// print is the work that takes time.
func (m mailer) print(ctx context.Context) error {
	select {
	case <-time.After(m.pace):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// carelessly is send, but once it does everything wrong: it loses its lease in the middle, for
// it is frozen, hears of that, sends all the same, and reports a success. What stops it is the
// fence, and then the server.
func (m mailer) carelessly(nth int, out io.Writer) func(context.Context, *worker.Job[Coupon]) (receipt, error) {
	var jobs atomic.Int64
	return func(ctx context.Context, job *worker.Job[Coupon]) (receipt, error) {
		if jobs.Add(1) != int64(nth) {
			return m.send(ctx, job)
		}
		fmt.Fprintln(out, holding, job.Input.Key(), job.ExecutionID(), job.LeaseVersion())
		<-ctx.Done() // Here it is frozen.
		err := m.mailbox.deliver(context.WithoutCancel(ctx), job.Input, job.LeaseVersion())
		fmt.Fprintln(out, delivered, err)
		return receipt{SentTo: job.Input.Customer}, nil
	}
}

// The words that begin the lines of the careless worker.
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
