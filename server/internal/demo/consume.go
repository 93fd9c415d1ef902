package demo

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/leasehold/leasehold/api/consumer"
	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// shopSchema is that of the business. A coupon is a unique fact; times is how often it was
// issued, which must be once: like a balance, it does not forgive a repeat.
const shopSchema = consumer.InboxMigration + `
CREATE TABLE asked (
    campaign text NOT NULL,
    customer text NOT NULL,
    PRIMARY KEY (campaign, customer)
);
CREATE TABLE coupons (
    campaign     text NOT NULL,
    customer     text NOT NULL,
    execution_id uuid NOT NULL,
    times        int  NOT NULL DEFAULT 1,
    UNIQUE (campaign, customer)
);`

const (
	stream         = "COUPONS"
	succeeded      = "leasehold.default.leasehold.execution.v1.succeeded" // a subject
	ackWait        = 2 * time.Second
	durableName    = "shop"
	fetchedAtOnce  = 10
	crashes        = 3
	crashedMessage = "the consumer crashed after a commit, before its acknowledgement"
)

var errCrashed = errors.New(crashedMessage)

// shop consumes the events of executions that succeeded: then a coupon counts as issued.
type shop struct {
	db         *pgxpool.Pool
	executions leaseholdv1.ExecutionServiceClient
	crashEvery int64 // so many handled events

	handled  atomic.Int64
	repeated atomic.Int64 // events that the inbox ignored
}

// consume handles messages until ctx ends, or it crashes.
func (s *shop) consume(ctx context.Context, messages jetstream.MessagesContext) error {
	for {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		event, err := consumer.ParseEvent(msg.Data())
		if err != nil {
			return errors.Join(err, msg.Term())
		}
		coupon, err := s.couponOf(ctx, event.ExecutionID) // before the transaction, not in it
		if err != nil {
			return err
		}
		outcome, err := s.issue(ctx, event, coupon)
		if err != nil {
			return err
		}
		if outcome == consumer.Repeat {
			s.repeated.Add(1)
		} else if n := s.handled.Add(1); n%s.crashEvery == 0 && n <= crashes*s.crashEvery {
			return errCrashed
		}
		if err := msg.Ack(); err != nil {
			return err
		}
	}
}

// issue writes the fact and remembers the event, both or neither.
func (s *shop) issue(ctx context.Context, event *consumer.Event, coupon Coupon) (outcome consumer.Outcome, err error) {
	inbox := consumer.Inbox{Consumer: "shop"}
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		outcome, err = inbox.Handle(ctx, tx, event, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO coupons (campaign, customer, execution_id) VALUES ($1, $2, $3)
				ON CONFLICT (campaign, customer) DO UPDATE SET times = coupons.times + 1`,
				coupon.Campaign, coupon.Customer, event.ExecutionID)
			return err
		})
		return err
	})
	return outcome, err
}

// couponOf asks the server what an execution was about: events do not carry payloads.
func (s *shop) couponOf(ctx context.Context, executionID uuid.UUID) (Coupon, error) {
	answer, err := s.executions.GetExecution(ctx, &leaseholdv1.GetExecutionRequest{ExecutionId: executionID.String()})
	if err != nil {
		return Coupon{}, fmt.Errorf("look up execution %s: %w", executionID, err)
	}
	labels := answer.GetExecution().GetLabels()
	return Coupon{Campaign: labels["campaign"], Customer: labels["customer"]}, nil
}

// run consumes, and starts again after each crash as another process would, until ctx ends.
func (s *shop) run(ctx context.Context, js jetstream.JetStream, tell func(format string, args ...any)) error {
	durable, err := js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: durableName, FilterSubject: succeeded, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
	})
	if err != nil {
		return fmt.Errorf("make the consumer of events: %w", err)
	}
	for {
		messages, err := durable.Messages(jetstream.PullMaxMessages(fetchedAtOnce))
		if err != nil {
			return fmt.Errorf("consume events: %w", err)
		}
		err = s.consume(ctx, messages)
		messages.Stop()
		switch {
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, errCrashed):
			return fmt.Errorf("consume events: %w", err)
		}
		tell("%v", err)
	}
}
