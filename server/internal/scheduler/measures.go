package scheduler

import (
	"context"
	"time"
)

// MeasureStore tells how much there is of what metrics show.
type MeasureStore interface {
	// OldestTransaction is the age of the oldest open transaction in the store's database,
	// anybody's, as far as this service may see it; 0: none.
	OldestTransaction(ctx context.Context) (time.Duration, error)
	// QueueDepths is how much waits and runs of each capability, as committed, in one snapshot.
	QueueDepths(ctx context.Context) ([]QueueDepth, error)
}

// QueueDepth is how much waits and runs of one capability. Each is counted up to a limit of
// the store's.
type QueueDepth struct {
	Namespace   string
	Capability  string
	Ready       int           // due, and waiting for a worker
	Delayed     int           // due later: a start, a backoff or a release
	Running     int           // live leases
	OldestReady time.Duration // since the first one of Ready was due; 0: none
}
