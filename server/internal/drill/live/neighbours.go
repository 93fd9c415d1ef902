package live

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
)

const (
	besideCapability = "drill.beside"
	besideCount      = 8
	besideFor        = 6 * time.Second // that renewals are measured
	// besideMost is how long a renewal in the middle may take. A flush that waits for the locked row
	// takes as long as PostgreSQL lets it wait for a lock, 2 s, and so does every one behind it.
	besideMost = time.Second
)

// neighbours renews a lease whose row somebody holds, again and again, and others at the same
// server, which share its transactions: these must not wait.
func (x *exercise) neighbours(ctx context.Context, locked *leaseholdv1.RenewLeaseRequest) error {
	c, err := x.client(0, "neighbour")
	if err != nil {
		return err
	}
	only := &leaseholdv1.StepSpec{Name: "only", Capability: besideCapability}
	if err := enqueueMany(ctx, x, besideCount, "beside", only); err != nil {
		return err
	}
	w, leases, err := x.leaseBeside(ctx, c)
	if err != nil {
		return err
	}
	renewing, cancel := context.WithTimeout(ctx, besideFor)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for range besideCount {
		all.Go(func() {
			for renewing.Err() == nil {
				_, _ = c.Workers.RenewLease(renewing, locked) // UNAVAILABLE, sooner or later
				pause(renewing, 10*time.Millisecond)
			}
		})
	}
	took := make([][]time.Duration, len(leases))
	for i, l := range leases {
		all.Go(func() {
			began := time.Now() // monotonic: one that is refused goes on until it is answered OK
			for renewing.Err() == nil {
				_, err := w.Renew(renewing, l, time.Minute)
				if err == nil || renewing.Err() != nil {
					took[i] = append(took[i], time.Since(began))
				}
				pause(renewing, 10*time.Millisecond)
				if err == nil {
					began = time.Now() // monotonic
				}
			}
		})
	}
	all.Wait()
	for _, l := range leases {
		if _, err := w.Report(ctx, l, core.Succeeded(nil)); err != nil {
			return fmt.Errorf("report beside a locked lease: %w", err)
		}
	}
	middle := middleOf(slices.Concat(took...))
	x.note("renewals beside a locked lease took %s", middle.Round(time.Millisecond))
	if middle > besideMost {
		return fmt.Errorf("renewals beside a lease that somebody had locked took %s, half of them longer", middle)
	}
	return nil
}

// leaseBeside leases all that was enqueued for it.
func (x *exercise) leaseBeside(ctx context.Context, c *core.Client) (*core.Worker, []*leaseholdv1.Lease, error) {
	w, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: x.namespace, Capabilities: []string{besideCapability}, Slots: besideCount})
	if err != nil {
		return nil, nil, fmt.Errorf("register a neighbour: %w", err)
	}
	var leases []*leaseholdv1.Lease
	for len(leases) < besideCount {
		answer, err := w.Lease(ctx, core.Poll{Max: besideCount, Wait: 5 * time.Second, TTL: time.Minute, Request: uuid.NewString()})
		if err != nil {
			return nil, nil, fmt.Errorf("lease beside a locked lease: %w", err)
		}
		leases = append(leases, answer.GetLeases()...)
	}
	return w, leases, nil
}

// middleOf is the median; of nothing it is as long as they were measured.
func middleOf(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return besideFor
	}
	slices.Sort(took)
	return took[len(took)/2]
}
