package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// limitRetry is when a call that met a limit of its namespace may be worth a repeat: somebody has
// to make room first.
const limitRetry = time.Minute

// roomForCapabilities refuses new ones when their namespace has as many as it can. Known ones are
// not counted: what works goes on working.
func (t *txn) roomForCapabilities(ctx context.Context, p dbsqlc.InsertCapabilitiesParams) error {
	rows, err := t.q.NewCapabilities(ctx, dbsqlc.NewCapabilitiesParams{
		Most: scheduler.MaxCapabilities, Namespaces: p.Namespaces, Names: p.Names,
	})
	if err != nil {
		return fmt.Errorf("count capabilities: %w", err)
	}
	for _, r := range rows {
		if int(r.Existing+r.Added) > scheduler.MaxCapabilities {
			return full(r.Namespace, scheduler.ReasonTooManyCapabilities, "capabilities", scheduler.MaxCapabilities)
		}
	}
	return nil
}

// roomForWorker refuses a new name when its namespace has as many workers as it can.
func (t *txn) roomForWorker(ctx context.Context, namespace, name string) error {
	row, err := t.q.NewWorker(ctx, dbsqlc.NewWorkerParams{Namespace: namespace, Name: name, Most: scheduler.MaxWorkers})
	if err != nil {
		return fmt.Errorf("count workers: %w", err)
	}
	if row.Added && row.Existing >= scheduler.MaxWorkers {
		return full(namespace, scheduler.ReasonTooManyWorkers, "workers", scheduler.MaxWorkers)
	}
	return nil
}

// roomForDrain refuses a new drain when its namespace has as many as it can.
func (t *txn) roomForDrain(ctx context.Context, d scheduler.Drain) error {
	row, err := t.q.NewDrain(ctx, dbsqlc.NewDrainParams{
		Namespace: d.Namespace, Kind: string(d.Kind), Value: d.Value, Most: scheduler.MaxDrains,
	})
	if err != nil {
		return fmt.Errorf("count drains: %w", err)
	}
	if row.Added && row.Existing >= scheduler.MaxDrains {
		return full(d.Namespace, scheduler.ReasonTooManyDrains, "drains", scheduler.MaxDrains)
	}
	return nil
}

func full(namespace string, reason task.Reason, what string, limit int) error {
	return own(&scheduler.ExhaustedError{
		Reason: reason, Limit: limit, RetryAfter: limitRetry,
		Message: fmt.Sprintf("namespace %q has %d %s, the most that it can", namespace, limit, what),
	})
}
