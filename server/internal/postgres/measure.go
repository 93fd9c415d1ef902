package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/server/internal/outbox"
	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var (
	_ scheduler.MeasureStore = (*Store)(nil)
	_ outbox.BacklogSource   = (*Outbox)(nil)
)

// The bounds of what is counted, so that a look at millions stays cheap. What reaches one says
// "so many or more".
const (
	countedRequests = 100_000 // of one capability, node and priority
	countedLevels   = 1000    // combinations of these three
	countedLeases   = 100_000 // of all capabilities
	countedHeads    = 10_000  // executions with events that are on their way, and with dead ones
	countedEvents   = 100     // of each of these executions
	namedFirst      = 200     // capabilities that are told with nothing waiting
)

// Ping asks whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	return outwardOrNil(ctx, "ping", s.pool.Ping(ctx))
}

// OldestTransaction is the age of the oldest open transaction in the database. It reads no
// table: it is told also while that very transaction makes all others slow.
func (s *Store) OldestTransaction(ctx context.Context) (time.Duration, error) {
	oldest, err := s.reads.MeasureTransactions(ctx)
	return fromInterval(oldest), outwardOrNil(ctx, "measure transactions", err)
}

// QueueDepths tells how much waits and runs, in one snapshot.
func (s *Store) QueueDepths(ctx context.Context) ([]scheduler.QueueDepth, error) {
	var queues []scheduler.QueueDepth
	err := s.readOnly(ctx, "measure queues", func(q *dbsqlc.Queries) error {
		var err error
		queues, err = measureQueues(ctx, q)
		return err
	})
	return queues, err
}

func measureQueues(ctx context.Context, q *dbsqlc.Queries) ([]scheduler.QueueDepth, error) {
	requests, err := q.MeasureRequests(ctx, dbsqlc.MeasureRequestsParams{Counted: countedRequests, Levels: countedLevels})
	if err != nil {
		return nil, fmt.Errorf("measure requests: %w", err)
	}
	leases, err := q.MeasureLeases(ctx, countedLeases)
	if err != nil {
		return nil, fmt.Errorf("measure leases: %w", err)
	}
	depths := map[int32]scheduler.QueueDepth{}
	for _, r := range requests {
		depths[r.CapabilityID] = scheduler.QueueDepth{
			Ready: int(r.Ready), Delayed: int(r.Delayed), OldestReady: fromInterval(r.OldestReady),
		}
	}
	for _, r := range leases {
		d := depths[r.CapabilityID]
		d.Running = int(r.Running)
		depths[r.CapabilityID] = d
	}
	ids := make([]int32, 0, len(depths))
	for id := range depths {
		ids = append(ids, id)
	}
	names, err := q.MeasureCapabilities(ctx, dbsqlc.MeasureCapabilitiesParams{Ids: ids, First: namedFirst})
	if err != nil {
		return nil, fmt.Errorf("read capabilities: %w", err)
	}
	queues := make([]scheduler.QueueDepth, len(names))
	for i, c := range names {
		queues[i] = depths[c.ID]
		queues[i].Namespace, queues[i].Capability = c.Namespace, c.Name
	}
	return queues, nil
}

// Backlog tells how much waits to be published.
func (o *Outbox) Backlog(ctx context.Context) (outbox.Backlog, error) {
	b := outbox.Backlog{Events: map[outbox.Status]int{}}
	err := o.store.readOnly(ctx, "measure events", func(q *dbsqlc.Queries) error {
		rows, err := q.MeasureEvents(ctx, dbsqlc.MeasureEventsParams{Heads: countedHeads, PerHead: countedEvents})
		for _, r := range rows {
			b.Events[outbox.Status(r.Status)] = int(r.Events)
			b.OldestUnsent = max(b.OldestUnsent, fromInterval(r.Oldest))
		}
		return wrap("measure events", err)
	})
	return b, err
}
