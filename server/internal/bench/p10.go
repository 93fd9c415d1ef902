package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	longWork       = "bench.long" // the capability of what is only renewed
	renewEvery     = 10 * time.Second
	renewedAtOnce  = 100 // leases of a call
	leasesOfHolder = 1000
)

// runP10 does the work of P1 alone, and while many leases are renewed.
func runP10(ctx context.Context, t *trial) error {
	return t.compare(ctx, []part{
		{"alone", func(ctx context.Context) (Point, error) {
			return t.on(ctx, 1, true, func(ctx context.Context, s *site) (Point, error) { return t.oneByOne(ctx, s, nil) })
		}},
		{"with renewals", func(ctx context.Context) (Point, error) { return t.on(ctx, 1, true, t.besideRenewals) }},
	}, byRate, smaller)
}

// holder is a worker that holds leases for long.
type holder struct {
	site    *site
	session *leaseholdv1.RegisterWorkerResponse
	leases  []*leaseholdv1.Lease
}

func (t *trial) besideRenewals(ctx context.Context, s *site) (p Point, err error) {
	holders, err := t.holdMany(ctx, s)
	if err != nil {
		return p, err
	}
	before, err := s.counters(ctx)
	if err != nil {
		return p, err
	}
	times := newStopwatch()
	p, err = t.oneByOne(ctx, s, func(ctx context.Context) (func() error, error) { return s.renewAll(ctx, holders, times) })
	if err != nil {
		return p, err
	}
	// The servers have ended: everything is counted.
	after, err := s.counters(ctx)
	if err != nil {
		return p, err
	}
	counted := after.since(before)
	p.Figures = map[string]float64{
		"renewals": float64(counted.LeaseUpdates), "renewals_hot_share": by(float64(counted.LeaseHOTUpdates), float64(counted.LeaseUpdates)),
	}
	if l := times.latency(); l != nil {
		p.Figures["renewal_p50_ms"], p.Figures["renewal_p99_ms"] = l.P50, l.P99
	}
	return p, s.handInAll(ctx, holders)
}

// holdMany enqueues executions for holders, and has these lease all of them.
func (t *trial) holdMany(ctx context.Context, s *site) ([]*holder, error) {
	n := int64(t.cfg.many(t.cfg.Leases))
	each := func(i int64) *leaseholdv1.EnqueueExecutionRequest {
		req := request(i, numbered(longWork, i))
		req.IdempotencyKey = fmt.Sprintf("long-%d", i)
		return req
	}
	if err := s.fill(ctx, n, each); err != nil {
		return nil, err
	}
	conn, err := s.dial(0)
	if err != nil {
		return nil, err
	}
	client := leaseholdv1.NewWorkerServiceClient(conn)
	var holders []*holder
	for held := int64(0); held < n; {
		h := &holder{site: s}
		if h.session, err = s.register(ctx, client, longWork, leasesOfHolder); err != nil {
			return nil, err
		}
		want := int(min(n-held, leasesOfHolder))
		for len(h.leases) < want {
			leases, err := s.lease(ctx, client, h.session, want-len(h.leases), pollTime)
			if err != nil {
				return nil, err
			}
			if len(leases) == 0 {
				return nil, errors.New("what was enqueued to be held is not leased")
			}
			h.leases = append(h.leases, leases...)
		}
		holders, held = append(holders, h), held+int64(want)
	}
	return holders, nil
}

// renewAll renews every lease every ten seconds, until the function that it
// returns is called. The calls of a round are spread over its time.
func (s *site) renewAll(ctx context.Context, holders []*holder, times *stopwatch) (end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	for i, h := range holders {
		conn, err := s.dial(i)
		if err != nil {
			cancel()
			return nil, err
		}
		client := leaseholdv1.NewWorkerServiceClient(conn)
		parts := (len(h.leases) + renewedAtOnce - 1) / renewedAtOnce
		for j := range parts {
			some := h.leases[j*renewedAtOnce : min((j+1)*renewedAtOnce, len(h.leases))]
			wait := renewEvery * time.Duration(j) / time.Duration(parts)
			group.Go(func() error {
				for pause(ctx, wait) {
					began := time.Now() // monotonic
					if err := h.renew(ctx, client, some); err != nil && ctx.Err() == nil {
						return err
					}
					times.record(time.Since(began))
					wait = renewEvery - time.Since(began)
				}
				return nil
			})
		}
	}
	return func() error {
		cancel()
		return group.Wait()
	}, nil
}

// renew renews leases in one call. A lease that is refused is lost: the verdict finds what became
// of it.
func (h *holder) renew(ctx context.Context, client leaseholdv1.WorkerServiceClient, leases []*leaseholdv1.Lease) error {
	batch := &leaseholdv1.BatchRenewLeasesRequest{}
	for _, l := range leases {
		batch.Renewals = append(batch.Renewals, &leaseholdv1.RenewLeaseRequest{
			AttemptId: l.GetAttemptId(), LeaseVersion: l.GetLeaseVersion(), SessionId: h.session.GetSessionId(), LeaseDuration: durationpb.New(leaseTime),
		})
	}
	return h.site.insist(ctx, func(ctx context.Context) error {
		answer, err := client.BatchRenewLeases(ctx, batch)
		for _, one := range answer.GetResults() {
			if refused := one.GetError(); refused != nil {
				h.site.failed(status.ErrorProto(refused))
			}
		}
		return err
	})
}

// handInAll reports what was held. What is not there any more was lost meanwhile.
func (s *site) handInAll(ctx context.Context, holders []*holder) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	conn, err := s.dial(0)
	if err != nil {
		return err
	}
	client := leaseholdv1.NewWorkerServiceClient(conn)
	for _, h := range holders {
		if err := s.handIn(ctx, client, h.leases); err != nil {
			return err
		}
	}
	return s.stop(ctx)
}
