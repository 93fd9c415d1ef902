package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
)

// listening are the sessions by which servers hear of each other's work.
const listening = ` FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'leasehold' AND query ILIKE 'listen%'`

// allListen waits until every server has such a session.
func (x *exercise) allListen(ctx context.Context) error {
	all := func(n int64) bool { return n == replicaCount }
	return x.await(ctx, goOnLimit, "a session that listens for each server", all, `SELECT count(*)`+listening)
}

// endListeners ends them.
func (x *exercise) endListeners(ctx context.Context) (n int64, err error) {
	return x.number(ctx, `SELECT count(pg_terminate_backend(pid))`+listening)
}

// listenKilled: the sessions by which servers hear of each other's work are ended.
func listenKilled(ctx context.Context, x *exercise) error {
	for range 3 {
		if err := x.allListen(ctx); err != nil {
			return err
		}
		killed := now()
		n, err := x.endListeners(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("no session that listens was ended")
		}
		x.faults += int(n)
		if err := x.goesOn(ctx, killed, "after the sessions that listen were ended"); err != nil {
			return err
		}
	}
	return x.allListen(ctx)
}

// hintsWithheld: the sessions by which servers hear of each other's work stay open, and nothing
// comes through them any more. Producers call one server, the load's workers are at another, and
// at the third somebody waits for work whose only news is such a hint: a server must look by
// itself.
func hintsWithheld(ctx context.Context, x *exercise) error {
	const times = 8
	if err := x.standBetween(ctx); err != nil {
		return err
	}
	if err := x.allListen(ctx); err != nil {
		return err
	}
	c, err := x.client(replicaCount-1, "who-waits")
	if err != nil {
		return err
	}
	w, err := c.Register(ctx, &leaseholdv1.RegisterWorkerRequest{Namespace: x.namespace, Capabilities: []string{unhintedCapability}, Slots: 1})
	if err != nil {
		return fmt.Errorf("register who waits: %w", err)
	}
	for _, r := range x.replicas {
		r.database[0].Deafen()
		x.fault()
	}
	deafened := now()
	for range times {
		took, err := x.leasedUnhinted(ctx, w)
		if err != nil {
			return err
		}
		x.recovered(took)
	}
	if err := x.goesOn(ctx, deafened, "while hints are withheld"); err != nil {
		return err
	}
	for _, r := range x.replicas {
		n := r.database[0].Unheard()
		x.note("%d withheld from %s", n, r.name)
		if n == 0 {
			return fmt.Errorf("nothing was withheld from %s: does it listen?", r.name)
		}
	}
	ended := now()
	if _, err := x.endListeners(ctx); err != nil {
		return err
	}
	if err := x.goesOn(ctx, ended, "after the sessions that were deaf were ended"); err != nil {
		return err
	}
	return x.allListen(ctx)
}

const (
	unhintedCapability = "drill.unhinted"
	unhintedLimit      = 5 * time.Second // until work is leased of which no hint tells: a second, on a machine that keeps up
	parkedSoon         = time.Second     // until a poll is parked and its server has nothing more to look for
)

// leasedUnhinted has a worker wait at its server, enqueues a step by another, and tells how long
// after that it was leased.
func (x *exercise) leasedUnhinted(ctx context.Context, w *core.Worker) (time.Duration, error) {
	var enqueued time.Time
	var enqueuing errgroup.Group
	enqueuing.Go(func() error {
		pause(ctx, parkedSoon)
		err := enqueueMany(ctx, x, 1, "unhinted", &leaseholdv1.StepSpec{Name: "only", Capability: unhintedCapability})
		enqueued = time.Now() // monotonic
		return err
	})
	answer, err := w.Lease(ctx, core.Poll{Wait: parkedSoon + 2*unhintedLimit, TTL: time.Minute, Request: uuid.NewString()})
	leased := time.Now() // monotonic
	if err := errors.Join(err, enqueuing.Wait()); err != nil {
		return 0, fmt.Errorf("while hints are withheld: %w", err)
	}
	took := max(leased.Sub(enqueued), 0)
	if len(answer.GetLeases()) == 0 || took > unhintedLimit {
		return 0, fmt.Errorf("while hints are withheld, a free worker has got %d leases of 1 after %s, want it within %s",
			len(answer.GetLeases()), took.Round(time.Second/10), unhintedLimit)
	}
	_, err = w.Report(ctx, answer.GetLeases()[0], core.Succeeded(nil))
	return took, err
}
