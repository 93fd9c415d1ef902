package bench

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace_AStallShows: a server that answers one call after the other within 1 ms stands still for
// a second. At ten calls a second, the ten calls that were meant to be sent meanwhile all are late.
// Broken once: a pace that counts from when a call begins.
func TestPace_AStallShows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := make(chan struct{}, 1) // a mutex would hold up the bubble's clock
		times := newStopwatch()
		pace(context.Background(), 10, 100, func(i int, intended time.Time) {
			server <- struct{}{}
			defer func() { <-server }()
			if i == 50 {
				time.Sleep(time.Second)
			}
			time.Sleep(time.Millisecond)
			times.record(time.Since(intended))
		})
		got := times.latency()
		if got.P50 != 1 {
			t.Errorf("p50 %v ms, want 1", got.P50)
		}
		if got.Max < 1000 || got.Max > 1002 || got.P99 < 900 || got.P95 < 500 {
			t.Errorf("p95 %v, p99 %v, max %v ms: the stall of a second does not show", got.P95, got.P99, got.Max)
		}
	})
}

// TestPace_KeepsItsRate, and ends with its context.
func TestPace_KeepsItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 990*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		var calls []time.Duration
		pace(ctx, 50, 1000, func(i int, intended time.Time) {
			mu.Lock()
			defer mu.Unlock()
			if late := time.Since(intended); late != 0 || intended.Sub(began) != time.Duration(i)*20*time.Millisecond {
				t.Errorf("call %d is meant for %v, and late by %v", i, intended.Sub(began), late)
			}
			calls = append(calls, time.Since(began))
		})
		if len(calls) != 50 {
			t.Errorf("%d calls in a second, want 50", len(calls))
		}
	})
}

// TestP4_AFrozenServerShows in the percentiles, by real calls: a third of what was to be enqueued
// falls into the time that the server is frozen.
func TestP4_AFrozenServerShows(t *testing.T) {
	t.Parallel()
	const frozen = time.Second
	s := newTestSite(t)
	tr := &trial{stage: s.stage}
	tr.cfg.Rate = 100
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var freezing sync.WaitGroup
	defer freezing.Wait()
	server := s.replicas[0].process
	times, err := tr.arrivals(ctx, s, tr.cfg.crew(false), 300, 0, func(context.Context) error {
		freezing.Go(func() {
			pause(ctx, time.Second)
			if err := server.Signal(syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			pause(ctx, frozen)
			if err := server.Signal(syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got := times.latency()
	if times.times.TotalCount() != 300 {
		t.Errorf("%d arrivals, want 300", times.times.TotalCount())
	}
	// Those of the first half of that second are late by half a second: a sixth of all.
	if late := float64(frozen.Milliseconds()); got.P95 < late/2 || got.P99 < late*0.9 || got.Max < late*0.95 {
		t.Errorf("%+v: the server was frozen for %v", got, frozen)
	}
	if v, err := s.verdict(ctx, true); err != nil || v != (verdict{}) {
		t.Errorf("lost or doubled: %+v, %v", v, err)
	}
}
