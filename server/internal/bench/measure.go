package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// progress counts executions, or steps, whose success was answered OK.
type progress struct {
	mu      sync.Mutex
	done    int64
	last    time.Time // monotonic: when the last one was
	target  int64     // at which reached is closed
	reached chan struct{}
}

func newProgress() *progress { return &progress{target: -1} }

// add counts some more.
func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.last = p.done+n, time.Now()
	p.look()
}

// until returns a channel that is closed when so many are done in all.
func (p *progress) until(target int64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target, p.reached = target, make(chan struct{})
	reached := p.reached
	p.look()
	return reached
}

func (p *progress) look() {
	if p.target >= 0 && p.done >= p.target {
		close(p.reached)
		p.target = -1
	}
}

// now is how many are done, and when the last one was.
func (p *progress) now() (int64, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done, p.last
}

const (
	stallLimit = time.Minute // without any progress; a lease lasts half of it
	tellEvery  = 2 * time.Second
)

var errStalled = errors.New("nothing goes on")

// awaitDone waits until so many are done in all. If nothing goes on it gives up: what is missing
// is then found out by the verdict.
func (s *site) awaitDone(ctx context.Context, target int64) error {
	reached := s.progress.until(target)
	before, _ := s.progress.now()
	for {
		select {
		case <-reached:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(stallLimit):
		}
		if err := s.examine(); err != nil {
			return err
		}
		done, _ := s.progress.now()
		if done == before {
			return fmt.Errorf("%w: %d of %d are done", errStalled, done, target)
		}
		before = done
	}
}

// measurement is of the work from begin to end.
type measurement struct {
	site     *site
	counters counters
	used     processorTime
	began    time.Time // monotonic
	already  int64     // done before
	quiet    func()    // ends the telling
}

// begin starts the servers anew, so that what they did before is not counted, and begins to
// measure. Clients have to connect again.
func (s *site) begin(ctx context.Context, what string) (*measurement, error) {
	m := &measurement{site: s, quiet: func() {}}
	err := s.stop(ctx)
	if err == nil {
		m.counters, err = s.counters(ctx)
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("begin to measure: %w", err)
	}
	m.already, _ = s.progress.now()
	m.quiet = s.tellProgress(ctx, what)
	m.used, m.began = s.processorTime(), time.Now()
	return m, nil
}

// tellProgress tells now and then how much is done, until the function that it returns is called.
func (s *site) tellProgress(ctx context.Context, what string) (quiet func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		before, _ := s.progress.now()
		for pause(ctx, tellEvery) {
			done, _ := s.progress.now()
			s.tell("%s: %s done, %s/s", what, thousands(done), thousands(int64(float64(done-before)/tellEvery.Seconds())))
			before = done
		}
	})
	return func() {
		cancel()
		telling.Wait()
	}
}

// end measures what was done since begin, until the last of it, and ends the servers.
func (m *measurement) end(ctx context.Context) (Point, error) {
	done, last := m.site.progress.now()
	return m.endWith(ctx, done-m.already, last.Sub(m.began))
}

// endWith does so with other work than what progress counts.
func (m *measurement) endWith(ctx context.Context, count int64, took time.Duration) (Point, error) {
	used := m.site.processorTime().since(m.used)
	m.quiet()
	p := Point{Count: count, Seconds: took.Seconds(), Rate: by(float64(count), took.Seconds()), CPU: m.site.cpu(used, count)}
	if err := m.site.examine(); err != nil {
		return p, err
	}
	if err := m.site.stop(ctx); err != nil {
		return p, err
	}
	now, err := m.site.counters(ctx)
	if err != nil {
		return p, err
	}
	m.counters = now.since(m.counters)
	p.Postgres = m.counters.perUnit(count)
	return p, nil
}

// cpu is processor time for 1,000 of count.
func (s *site) cpu(used processorTime, count int64) *CPU {
	share := func(seconds float64) float64 { return by(seconds*1000, float64(count)) }
	c := &CPU{Server: share(used.servers), Load: share(used.load)}
	if s.postmaster != 0 {
		postgres := share(used.postgres)
		c.Postgres = &postgres
	}
	return c
}
