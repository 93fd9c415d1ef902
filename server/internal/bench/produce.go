package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	capability       = "bench"
	producersByConn  = 4   // that share a connection
	batchOfProducers = 100 // executions of a batch, where the scenario does not say
	fillers          = 4   // producers that enqueue in batches
)

// request is the i-th execution: its key makes it safe to ask for again.
func request(i int64, steps ...*leaseholdv1.StepSpec) *leaseholdv1.EnqueueExecutionRequest {
	return &leaseholdv1.EnqueueExecutionRequest{Name: "bench", IdempotencyKey: fmt.Sprint(i), Steps: steps}
}

// oneStep is an execution of one step, whose input is its number.
func oneStep(i int64) *leaseholdv1.EnqueueExecutionRequest {
	return request(i, numbered(capability, i))
}

func numbered(capability string, i int64) *leaseholdv1.StepSpec {
	return &leaseholdv1.StepSpec{
		Name: "step", Capability: capability, Input: &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: fmt.Sprintf(`{"n":%d}`, i)}},
	}
}

// production says what is produced, and by how many producers at once.
type production struct {
	producers int
	enough    func(i int64) bool // that the i-th one, from 0 on, is not produced any more
	each      func(i int64) *leaseholdv1.EnqueueExecutionRequest
	batch     int        // executions of a call; 0: one by one, by the unary call
	times     *stopwatch // of the calls; nil: nobody asks
}

// upTo is enough of n executions.
func upTo(n int64) func(int64) bool { return func(i int64) bool { return i >= n } }

// during is enough after some time.
func during(d time.Duration) func(int64) bool {
	began := time.Now() // monotonic
	return func(int64) bool { return time.Since(began) >= d }
}

// produce enqueues until it is enough, and says how many that were.
func (s *site) produce(ctx context.Context, p production) (int64, error) {
	var next, accepted atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	var client leaseholdv1.ExecutionServiceClient
	for i := range p.producers {
		if i%producersByConn == 0 {
			conn, err := s.dial(i / producersByConn)
			if err != nil {
				return 0, err
			}
			client = leaseholdv1.NewExecutionServiceClient(conn)
		}
		group.Go(func() error {
			for {
				step := int64(max(p.batch, 1))
				first := next.Add(step) - step
				if p.enough(first) {
					return nil
				}
				last := first + 1
				for last < first+step && !p.enough(last) {
					last++
				}
				if err := s.enqueue(ctx, client, p, first, last); err != nil {
					s.ledger.doubt(int(last - first))
					return fmt.Errorf("enqueue: %w", err)
				}
				accepted.Add(last - first)
			}
		})
	}
	err := group.Wait()
	return accepted.Load(), err
}

// enqueue makes one call, for the executions from first to before last.
func (s *site) enqueue(ctx context.Context, client leaseholdv1.ExecutionServiceClient, p production, first, last int64) error {
	began := time.Now() // monotonic
	var err error
	if p.batch > 0 {
		err = s.enqueueBatch(ctx, client, p, first, last)
	} else {
		err = s.enqueueOne(ctx, client, p.each(first))
	}
	if err == nil && p.times != nil {
		p.times.record(time.Since(began))
	}
	return err
}

func (s *site) enqueueOne(ctx context.Context, client leaseholdv1.ExecutionServiceClient, req *leaseholdv1.EnqueueExecutionRequest) error {
	return s.insist(ctx, func(ctx context.Context) error {
		answer, err := client.EnqueueExecution(ctx, req)
		if err == nil {
			s.ledger.accept(req.GetIdempotencyKey(), answer.GetExecution().GetId())
		}
		return err
	})
}

func (s *site) enqueueBatch(ctx context.Context, client leaseholdv1.ExecutionServiceClient, p production, first, last int64) error {
	batch := &leaseholdv1.BatchEnqueueExecutionsRequest{}
	for i := first; i < last; i++ {
		batch.Requests = append(batch.Requests, p.each(i))
	}
	return s.insist(ctx, func(ctx context.Context) error {
		answer, err := client.BatchEnqueueExecutions(ctx, batch)
		if err != nil {
			return err
		}
		if got := len(answer.GetResults()); got != len(batch.GetRequests()) {
			return fmt.Errorf("%d of a batch of %d were answered", got, len(batch.GetRequests()))
		}
		for i, one := range answer.GetResults() {
			if refused := one.GetError(); refused != nil {
				return status.ErrorProto(refused)
			}
			s.ledger.accept(batch.GetRequests()[i].GetIdempotencyKey(), one.GetResponse().GetExecution().GetId())
		}
		return nil
	})
}

// fill enqueues in batches what is to be worked on later.
func (s *site) fill(ctx context.Context, n int64, each func(int64) *leaseholdv1.EnqueueExecutionRequest) error {
	return s.fillBy(ctx, n, each, batchOfProducers)
}

// fillBy does so in batches of another size.
func (s *site) fillBy(ctx context.Context, n int64, each func(int64) *leaseholdv1.EnqueueExecutionRequest, batch int) error {
	s.tell("enqueueing %s executions first", thousands(n))
	_, err := s.produce(ctx, production{producers: fillers, enough: upTo(n), each: each, batch: batch})
	return err
}
