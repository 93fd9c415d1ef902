package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// Coupon is what a customer gets once in a campaign.
type Coupon struct {
	Campaign string `json:"campaign"`
	Customer string `json:"customer"`
}

// Key names a coupon, the same for everybody who has to do with it.
func (c Coupon) Key() string { return c.Campaign + "/" + c.Customer }

// producing is how many calls a producer has under way at once.
const producing = 16

// produce enqueues all coupons, to be sent at an instant, and returns how many executions it
// created. Whoever asks for the same coupon again, this producer after an unclear answer or
// another one, gets the execution that is there.
func produce(ctx context.Context, executions leaseholdv1.ExecutionServiceClient, coupons []Coupon, at time.Time) (created int64, err error) {
	var n atomic.Int64
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(producing)
	for _, coupon := range coupons {
		calls.Go(func() error {
			input, err := json.Marshal(coupon)
			if err != nil {
				return err
			}
			answer, err := executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{
				Name:           executionName,
				IdempotencyKey: coupon.Key(),
				Labels:         map[string]string{"campaign": coupon.Campaign, "customer": coupon.Customer},
				Start:          &leaseholdv1.EnqueueExecutionRequest_StartAt{StartAt: timestamppb.New(at)},
				Steps: []*leaseholdv1.StepSpec{{
					Name: "send", Capability: capability,
					Input:       &leaseholdv1.Payload{Body: &leaseholdv1.Payload_Json{Json: string(input)}},
					RetryPolicy: &leaseholdv1.RetryPolicy{MaximumAttempts: 10},
				}},
			})
			if err != nil {
				return fmt.Errorf("enqueue %s: %w", coupon.Key(), err)
			}
			if answer.GetCreated() {
				n.Add(1)
			}
			return nil
		})
	}
	err = calls.Wait()
	return n.Load(), err
}
