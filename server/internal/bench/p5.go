package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	leasesOfPoll  = 10  // whose latency is measured
	leasesCounted = 100 // of a poll whose buffers are counted
	pollsCounted  = 5
	warmUp        = 3         // polls that are not measured
	mostReports   = 500       // of a call
	pileSlots     = 10_000    // of the worker
	biggestLeases = pileSlots // held at once
)

// pile is a backlog of one size, on a site of its own.
type pile struct {
	*site
	size    int64
	client  leaseholdv1.WorkerServiceClient
	session *leaseholdv1.RegisterWorkerResponse
}

// runP5 leases from backlogs of several sizes. Each is built once, and what was worked off is added
// again; the runs within them alternate.
func runP5(ctx context.Context, t *trial) (err error) {
	var piles []*pile
	defer func() {
		for _, b := range piles {
			err = errors.Join(err, b.close())
		}
	}()
	var parts []part
	for _, size := range t.cfg.Backlogs {
		b, err := t.newPile(ctx, int64(size))
		if err != nil {
			return err
		}
		piles = append(piles, b)
		parts = append(parts, part{short(b.size), func(ctx context.Context) (Point, error) { return t.leaseFrom(ctx, b) }})
	}
	p99 := func(p, first Point) float64 { return by(p.Latency.P99, first.Latency.P99) }
	if err := t.compare(ctx, parts, p99, larger); err != nil {
		return err
	}
	for _, b := range piles {
		if err := t.judge(ctx, b.site, true); err != nil {
			return err
		}
	}
	return nil
}

// newPile builds a backlog.
func (t *trial) newPile(ctx context.Context, size int64) (*pile, error) {
	t.tell("%s: building a backlog of %s", t.scenario.name, thousands(size))
	s, err := t.newSite(ctx, 1)
	if err != nil {
		return nil, err
	}
	b := &pile{site: s, size: size}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return b, nil
}

func (b *pile) prepare(ctx context.Context) error {
	if err := b.grow(ctx, b.size); err != nil {
		return err
	}
	// Statistics are fresh, and no vacuum or checkpoint has to make up for the building meanwhile.
	if _, err := b.db.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		return fmt.Errorf("vacuum the backlog: %w", err)
	}
	_, _ = b.db.Exec(ctx, `CHECKPOINT`) // Not every role may.
	conn, err := b.dial(0)
	if err != nil {
		return err
	}
	b.client = leaseholdv1.NewWorkerServiceClient(conn)
	b.session, err = b.register(ctx, b.client, capability, pileSlots)
	return err
}

// leaseFrom measures some polls, and reports what they brought.
func (t *trial) leaseFrom(ctx context.Context, b *pile) (p Point, err error) {
	if done, _ := b.progress.now(); b.piled-done < b.size {
		if err := b.grow(ctx, b.size-(b.piled-done)); err != nil {
			return p, err
		}
	}
	held, err := b.polls(ctx, warmUp, leasesOfPoll, nil)
	if err != nil {
		return p, err
	}
	times, began, used := newStopwatch(), time.Now(), b.processorTime() // monotonic
	wanted := min(t.executions(), b.size/2, biggestLeases/2)
	more, err := b.polls(ctx, max(wanted/leasesOfPoll, 1), leasesOfPoll, times)
	if err != nil {
		return p, err
	}
	took := time.Since(began)
	n := int64(len(more))
	p = Point{Count: n, Seconds: took.Seconds(), Rate: by(float64(n), took.Seconds()), Latency: times.latency(), CPU: b.cpu(b.processorTime().since(used), n)}
	held = append(held, more...)
	more, p.Figures, err = b.countBuffers(ctx)
	if err != nil {
		return p, err
	}
	return p, b.handIn(ctx, b.client, append(held, more...))
}

// countBuffers leases some more, and counts the buffers that all statements looked at meanwhile,
// and those of the claim alone.
func (b *pile) countBuffers(ctx context.Context) (held []*leaseholdv1.Lease, figures map[string]float64, err error) {
	before, err := b.counters(ctx)
	if err != nil {
		return nil, nil, err
	}
	if held, err = b.polls(ctx, pollsCounted, leasesCounted, nil); err != nil {
		return nil, nil, err
	}
	after, err := b.counters(ctx)
	if err != nil || !after.statements || len(held) == 0 {
		return held, nil, err
	}
	by100 := func(buffers int64) float64 { return float64(buffers) / float64(len(held)) * 100 }
	counted := after.since(before)
	return held, map[string]float64{"buffers_per_100_leases": by100(counted.buffers), "claim_buffers_per_100_leases": by100(counted.claimBuffers)}, nil
}

// polls leases several times, one poll after the other.
func (b *pile) polls(ctx context.Context, n int64, most int, times *stopwatch) (held []*leaseholdv1.Lease, err error) {
	for range n {
		began := time.Now() // monotonic
		leases, err := b.lease(ctx, b.client, b.session, most, 0)
		if err != nil {
			return nil, err
		}
		if times != nil {
			times.record(time.Since(began))
		}
		held = append(held, leases...)
	}
	return held, nil
}

// handIn reports leases as successes.
func (s *site) handIn(ctx context.Context, client leaseholdv1.WorkerServiceClient, held []*leaseholdv1.Lease) error {
	for len(held) > 0 {
		n := min(len(held), mostReports)
		s.reportBatch(ctx, client, held[:n], nil)
		held = held[n:]
	}
	return ctx.Err()
}

// short writes a number as people say it.
func short(n int64) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%dk", n/1000)
	default:
		return fmt.Sprint(n)
	}
}
