package outbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// A sink that is away for a night, with 500 events that wait: few of them are turned
// over meanwhile, none uses up tries, and when it is back all arrive soon. Broken once: without
// the outage it was more than 70,000 in five minutes.
func TestRelay_SinkAwayForANight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const night, events = 8 * time.Hour, 500
		var away atomic.Bool
		away.Store(true)
		s, log := newSource(events), &logged{}
		stop := relay(t, outbox.Config{Source: s, Logger: log.logger(), MaximumAttempts: 1, Publisher: answers(func(context.Context) error {
			if away.Load() {
				return &outbox.AwayError{Cause: errBroken}
			}
			return nil
		})})
		for passed := 5 * time.Minute; passed <= night; passed += 5 * time.Minute {
			time.Sleep(5 * time.Minute)
			if runs, most := s.claimed(), 64+int(passed/(2*time.Second)); runs > most || runs < int(passed/(10*time.Second)) {
				t.Fatalf("%d runs were claimed in %s, at most %d are wanted, and some", runs, passed, most)
			}
		}
		if n := s.attempts(); n != 0 {
			t.Errorf("%d tries count", n)
		}
		away.Store(false)
		time.Sleep(10 * time.Second)
		if n := s.counts(); n[outbox.Published] != events {
			t.Errorf("10 s after it is back: %v", n)
		}
		if lines := log.lines(); len(lines) != 2 || !strings.Contains(lines[0], "away") || !strings.Contains(lines[1], "back") {
			t.Errorf("logged %q, want two lines", lines)
		}
		stop()
	})
}

// A sink that comes and goes is no reason to fill the log.
func TestRelay_FlutteringSinkIsToldNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		s, log := newSource(2000), &logged{}
		stop := relay(t, outbox.Config{Source: s, Logger: log.logger(), Publisher: answers(func(context.Context) error {
			time.Sleep(time.Millisecond)
			if n.Add(1)%2 == 0 {
				return &outbox.AwayError{Cause: errBroken}
			}
			return nil
		})})
		time.Sleep(5 * time.Minute)
		stop()
		if c := s.counts(); c[outbox.Published] < 1000 {
			t.Errorf("half of the tries get through: %v", c)
		}
		if lines := log.lines(); len(lines) > 60 {
			t.Errorf("%d lines in 300 s, the last %s", len(lines), lines[len(lines)-1])
		}
	})
}

// A database that is away for an hour is told once, and asked about twice a second, whatever
// wakes the relay.
func TestRelay_DatabaseAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, log := newSource(1), &logged{}
		s.broken = errBroken
		r := outbox.NewRelay(outbox.Config{Source: s, Logger: log.logger(), Publisher: answers(func(context.Context) error { return nil })})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = r.Run(ctx) }()
		for range 36_000 {
			r.Wake()
			time.Sleep(100 * time.Millisecond)
		}
		if n := s.asked(); n > 7300 {
			t.Errorf("asked %d times in an hour", n)
		}
		s.mu.Lock()
		s.broken = nil
		s.mu.Unlock()
		time.Sleep(time.Second)
		if n := s.counts(); n[outbox.Published] != 1 {
			t.Errorf("after it is back: %v", n)
		}
		if lines := log.lines(); len(lines) != 2 {
			t.Errorf("logged %q, want two lines", lines)
		}
		stop()
		<-ended
	})
}

// A relay that is full of slow events waits for one to end, and does not ask meanwhile. Broken
// once: the look for what is due next was made every 10 ms.
func TestRelay_FullOneAsksNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSource(100)
		stop := relay(t, outbox.Config{Source: s, InFlight: 10, Publisher: answers(func(context.Context) error {
			time.Sleep(5 * time.Second)
			return nil
		})})
		time.Sleep(time.Minute)
		if n := s.counts(); n[outbox.Published] != 100 {
			t.Errorf("counts %v", n)
		}
		if n := s.asked(); n > 250 { // about two for each event, and one every 5 s
			t.Errorf("asked %d times for 100 events", n)
		}
		stop()
	})
}

// A stop waits for acknowledgements that are on their way, for some time; what has none then
// is given back at once, and its try does not count. Broken once: a try that the stop cut off
// was a failure; a claim that the stop cut off stayed.
func TestRelay_StopConfirmsOrGivesBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes, claim time.Duration
		after        time.Duration // of the start the relay is stopped
		want         outbox.Status
		most         time.Duration
	}{
		"soon acknowledged":       {takes: 2 * time.Second, after: time.Second, want: outbox.Published, most: time.Second},
		"never acknowledged":      {takes: time.Hour, after: time.Second, want: outbox.Pending, most: 4 * time.Second},
		"in the middle of claims": {takes: time.Second, claim: time.Second, after: 500 * time.Millisecond, want: outbox.Pending, most: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSource(20)
				s.slow = c.claim
				stop := relay(t, outbox.Config{Source: s, Publisher: answers(func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(c.takes):
						return nil
					}
				})})
				time.Sleep(c.after)
				if took := stop(); took > c.most {
					t.Errorf("took %s, want at most %s", took, c.most)
				}
				if n := s.counts(); n[c.want] != 20 {
					t.Errorf("counts %v, want all %s", n, c.want)
				}
				if n := s.attempts(); n != 0 {
					t.Errorf("%d tries count", n)
				}
			})
		})
	}
}
