package river

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/server/bench/internal/result"
)

// oneByOne is P1: producers insert one job at a time while workers work, until the time is over
// and all are done.
func (p *peer) oneByOne(ctx context.Context) error {
	p.book = newBook(p.capacity())
	if err := p.client.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	h := newHistograms(p.cfg.Producers)
	var next, failed atomic.Int64
	p.produce(func(producer int) {
		for first := true; first || time.Since(p.since) < p.cfg.Duration && ctx.Err() == nil; first = false {
			number := int(next.Add(1) - 1)
			if number >= len(p.book.accepted) {
				return
			}
			called := time.Now() // monotonic
			if _, err := p.client.Insert(ctx, job{Number: number}, nil); err != nil {
				failed.Add(1)
				continue
			}
			p.book.accept(number)
			record(h[producer], time.Since(called))
		}
	})
	if err := p.settled(ctx); err != nil {
		return err
	}
	p.end(p.book.reached.Load())
	p.out.Latency, p.out.Errors = result.Percentiles(merged(h)), failed.Load()
	return p.stop()
}

// drain is P2: jobs that were inserted before are worked.
func (p *peer) drain(ctx context.Context) error {
	p.book = newBook(p.cfg.Count)
	if err := p.preload(ctx, p.cfg.Count); err != nil {
		return err
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	if err := p.client.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := p.settled(ctx); err != nil {
		return err
	}
	p.end(p.book.reached.Load())
	return p.stop()
}

// batches is P3: producers insert many jobs at once, and nobody works.
func (p *peer) batches(ctx context.Context) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	h := newHistograms(p.cfg.Producers)
	var next, accepted, failed atomic.Int64
	p.produce(func(producer int) {
		for ctx.Err() == nil {
			last := int(next.Add(int64(p.cfg.Batch)))
			if last > p.cfg.Count {
				return
			}
			numbers := make([]int, p.cfg.Batch)
			for i := range numbers {
				numbers[i] = last - p.cfg.Batch + i
			}
			called := time.Now() // monotonic
			if _, err := p.client.InsertMany(ctx, jobsOf(numbers)); err != nil {
				failed.Add(1)
				continue
			}
			accepted.Add(int64(len(numbers)))
			record(h[producer], time.Since(called))
		}
	})
	p.end(accepted.Load())
	p.out.Latency, p.out.Errors = result.Percentiles(merged(h)), failed.Load()
	return p.compareRows(ctx, accepted.Load())
}

// compareRows counts what was accepted and is not there, and what is there twice.
func (p *peer) compareRows(ctx context.Context, accepted int64) error {
	var rows, numbers int64
	const q = `SELECT count(*), count(DISTINCT args ->> 'number') FROM river_job`
	if err := p.pool.QueryRow(ctx, q).Scan(&rows, &numbers); err != nil {
		return fmt.Errorf("count jobs: %w", err)
	}
	p.out.Lost, p.out.Doubled = max(accepted-numbers, 0), rows-numbers
	return nil
}

// latency is P4: a job at each tick of a clock, from the instant at which it was to be inserted
// until it starts. An insert that is late makes its job late, and delays no other.
func (p *peer) latency(ctx context.Context) error {
	count := int(p.cfg.Rate * p.cfg.Duration.Seconds())
	if count < 1 {
		return errors.New("the time is too short for a job")
	}
	p.book, p.starts = newBook(count), &starts{at: make([]time.Time, count)}
	if err := p.client.Start(ctx); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := p.begin(ctx); err != nil {
		return err
	}
	var failed atomic.Int64
	p.tick(ctx, count, func(number int) {
		if _, err := p.client.Insert(ctx, job{Number: number}, nil); err != nil {
			failed.Add(1)
			return
		}
		p.book.accept(number)
	})
	if err := p.settled(ctx); err != nil {
		return err
	}
	p.end(p.book.reached.Load())
	if err := p.stop(); err != nil { // no job starts any more
		return err
	}
	h := newHistogram()
	for number, at := range p.starts.at {
		if !at.IsZero() {
			record(h, at.Sub(p.intended(number)))
		}
	}
	p.out.Latency, p.out.Errors = result.Percentiles(h), failed.Load()
	return nil
}

// tick calls do for each number at its time, each in a goroutine of its own, and waits for all.
func (p *peer) tick(ctx context.Context, count int, do func(number int)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for number := range count {
		select {
		case <-time.After(time.Until(p.intended(number))):
		case <-ctx.Done():
			return
		}
		wg.Go(func() { do(number) })
	}
}

func (p *peer) intended(number int) time.Time {
	return p.since.Add(time.Duration(float64(number) / p.cfg.Rate * float64(time.Second)))
}

// lastPart is the end of P6 that counts.
const lastPart = time.Minute

// drains is P6: a drain after the other until the time is over; those of the last minute count,
// without the time that fills the queue.
func (p *peer) drains(ctx context.Context) error {
	if err := p.begin(ctx); err != nil {
		return err
	}
	if p.cfg.Snapshot {
		release, err := p.holdSnapshot(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	began := p.since
	var ended []drained
	for time.Since(began) < p.cfg.Duration {
		d, err := p.oneDrain(ctx)
		if err != nil {
			return err
		}
		ended = append(ended, d)
	}
	var count int64
	var took time.Duration
	for _, d := range ended {
		if last := ended[len(ended)-1]; last.at.Sub(d.at) < min(lastPart, p.cfg.Duration/2) {
			count, took = count+d.count, took+d.took
		}
	}
	p.out.Took(count, took)
	return nil
}

// drained is a drain that is over.
type drained struct {
	at    time.Time // monotonic
	took  time.Duration
	count int64
}

func (p *peer) oneDrain(ctx context.Context) (drained, error) {
	var err error
	if p.client, err = p.newClient(); err != nil {
		return drained{}, err
	}
	p.book = newBook(p.cfg.Count)
	if err := p.preload(ctx, p.cfg.Count); err != nil {
		return drained{}, err
	}
	began := time.Now() // monotonic
	if err := p.client.Start(ctx); err != nil {
		return drained{}, fmt.Errorf("start: %w", err)
	}
	if err := p.settled(ctx); err != nil {
		return drained{}, err
	}
	d := drained{at: time.Now(), took: time.Since(began), count: p.book.reached.Load()}
	return d, p.stop()
}

// holdSnapshot opens a transaction whose snapshot keeps every dead row from being removed.
func (p *peer) holdSnapshot(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, p.cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	_, err = conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT count(*) FROM river_job")
	}
	if err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("hold a snapshot: %w", err)
	}
	return func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
}

// produce runs the producers, and waits for all.
func (p *peer) produce(do func(producer int)) {
	var wg sync.WaitGroup
	for i := range p.cfg.Producers {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// starts are the instants at which jobs began first.
type starts struct {
	mu sync.Mutex
	at []time.Time // monotonic
}

func (s *starts) mark(number int) {
	if s == nil {
		return
	}
	now := time.Now() // monotonic
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at[number].IsZero() {
		s.at[number] = now
	}
}

// newHistogram counts microseconds up to a minute.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Microseconds(), 3)
}

// newHistograms are one for each producer, which nobody shares.
func newHistograms(n int) []*hdrhistogram.Histogram {
	h := make([]*hdrhistogram.Histogram, n)
	for i := range h {
		h[i] = newHistogram()
	}
	return h
}

func merged(all []*hdrhistogram.Histogram) *hdrhistogram.Histogram {
	h := newHistogram()
	for _, one := range all {
		h.Merge(one)
	}
	return h
}

// record counts a time; one beyond the histogram's bounds counts as the bound.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 1), time.Minute.Microseconds()))
}
