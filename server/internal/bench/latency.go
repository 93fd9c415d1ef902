package bench

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// stopwatch collects how long calls took. It is safe for concurrent use.
type stopwatch struct {
	mu    sync.Mutex
	times *hdrhistogram.Histogram // in microseconds
}

const (
	longestTime = 10 * time.Minute // what takes longer counts as that
	digits      = 3                // that are exact
)

func newStopwatch() *stopwatch {
	return &stopwatch{times: hdrhistogram.New(1, longestTime.Microseconds(), digits)}
}

// record adds a time.
func (s *stopwatch) record(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.times.RecordValue(max(min(d, longestTime).Microseconds(), 1)) // It is within the bounds.
}

// latency is what was collected; nil if nothing was.
func (s *stopwatch) latency() *Latency {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.times.TotalCount() == 0 {
		return nil
	}
	at := func(percentile float64) float64 { return milliseconds(s.times.ValueAtPercentile(percentile)) }
	return &Latency{P50: at(50), P95: at(95), P99: at(99), Max: milliseconds(s.times.Max())}
}

func milliseconds(micro int64) float64 { return float64(micro) / 1000 }

// pace calls f n times at a fixed rate, and waits for all calls. Each has a goroutine of its own:
// a server that stalls delays what is answered, and not what is asked. f counts from the instant
// at which its call was meant to begin, so that all that should have been asked meanwhile shows the
// stall, not just the one call that was under way.
func pace(ctx context.Context, rate float64, n int, f func(i int, intended time.Time)) {
	var calls sync.WaitGroup
	defer calls.Wait()
	began := time.Now() // monotonic
	for i := range n {
		intended := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if !pause(ctx, time.Until(intended)) {
			return
		}
		calls.Go(func() { f(i, intended) })
	}
}

// pause lets time pass, and tells whether there is more of it.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
