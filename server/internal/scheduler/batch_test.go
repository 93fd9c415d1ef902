package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
)

// press is a flush that tests steer: it notes every batch and answers as it is told.
type press struct {
	mu      sync.Mutex
	batches [][]int
	answer  func(batch []int, wait bool) ([]Result[int], error)
	gate    chan struct{} // a flush takes one of it before it answers; nil: at once
	began   chan struct{} // gets one for each flush that begins
}

func newPress() *press { return &press{began: make(chan struct{}, 1000)} }

func (p *press) flush(ctx context.Context, batch []int, wait bool) ([]Result[int], error) {
	p.mu.Lock()
	p.batches = append(p.batches, slices.Clone(batch))
	answer, gate := p.answer, p.gate
	p.mu.Unlock()
	p.began <- struct{}{}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if answer != nil {
		return answer(batch, wait)
	}
	return echo(batch), nil
}

func (p *press) seen() [][]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.batches)
}

func echo(batch []int) []Result[int] {
	results := make([]Result[int], len(batch))
	for i, n := range batch {
		results[i].Value = n * 10
	}
	return results
}

// start runs a batcher; stop ends it and waits for that.
func (p *press) start(t *testing.T, maxItems, maxWeight int) (b *batcher[int, int], stop func()) {
	t.Helper()
	b = newBatcher(maxItems, maxWeight, func(n int) int { return n }, p.flush)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); b.run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return b, stop
}

// call hands one request in and gives its answer over.
func call(ctx context.Context, b *batcher[int, int], n int) <-chan Result[int] {
	done := make(chan Result[int], 1)
	go func() { done <- b.do(ctx, n)[0] }()
	return done
}

// queued waits until n items wait for the next flush.
func queued(t *testing.T, b *batcher[int, int], n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		have := len(b.queue)
		b.mu.Unlock()
		if have == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d items are queued, want %d", have, n)
		}
	}
}

func wantValue(t *testing.T, got Result[int], want int) {
	t.Helper()
	if got.Err != nil || got.Value != want {
		t.Errorf("got %d, %v, want %d", got.Value, got.Err, want)
	}
}

func TestBatcher_FirstCallWaitsForNobodyAndTheRestTravelTogether(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.gate = make(chan struct{})
	b, _ := p.start(t, 100, 1000)
	first := call(t.Context(), b, 1)
	<-p.began // alone, and at once
	var rest []<-chan Result[int]
	for n := 2; n <= 6; n++ {
		rest = append(rest, call(t.Context(), b, n))
	}
	queued(t, b, 5)
	close(p.gate)
	wantValue(t, <-first, 10)
	for i, c := range rest {
		wantValue(t, <-c, (i+2)*10)
	}
	if got := p.seen(); len(got) != 2 || len(got[0]) != 1 || len(got[1]) != 5 {
		t.Errorf("flushed %v, want the first alone and the others together", got)
	}
}

func TestBatcher_BoundsOfAFlush(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.gate = make(chan struct{})
	b, _ := p.start(t, 3, 100)
	first := call(t.Context(), b, 1)
	<-p.began
	results := make(chan []Result[int], 1)
	go func() { results <- b.do(t.Context(), 10, 10, 10, 10, 200, 60, 60) }()
	queued(t, b, 7)
	close(p.gate)
	<-first
	for i, r := range <-results {
		wantValue(t, r, []int{100, 100, 100, 100, 2000, 600, 600}[i])
	}
	for _, batch := range p.seen() {
		weight := 0
		for _, n := range batch {
			weight += n
		}
		if len(batch) > 3 || weight > 100 && len(batch) > 1 {
			t.Errorf("a flush of %v is too large", batch)
		}
	}
}

var errBad = errors.New("bad item")

func TestBatcher_BadItemAloneFails(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.answer = func(batch []int, _ bool) ([]Result[int], error) {
		if slices.Contains(batch, 13) {
			return nil, errBad
		}
		return echo(batch), nil
	}
	b, _ := p.start(t, 100, 1000)
	reqs := []int{1, 2, 3, 4, 5, 13, 7, 8}
	for i, r := range b.do(t.Context(), reqs...) {
		if reqs[i] == 13 {
			if !errors.Is(r.Err, errBad) {
				t.Errorf("the bad item got %d, %v", r.Value, r.Err)
			}
			continue
		}
		wantValue(t, r, reqs[i]*10)
	}
	if n := len(p.seen()); n > 7 { // 8, 4+4, 2+2, 1+1: halved
		t.Errorf("%d flushes for one bad item of eight, want at most 7: %v", n, p.seen())
	}
}

func TestBatcher_AwayStoreIsAwayForAll(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.answer = func([]int, bool) ([]Result[int], error) { return nil, &UnavailableError{Cause: errBad} }
	b, _ := p.start(t, 100, 1000)
	for _, r := range b.do(t.Context(), 1, 2, 3, 4) {
		var away *UnavailableError
		if !errors.As(r.Err, &away) {
			t.Errorf("got %v, want UnavailableError", r.Err)
		}
	}
	if n := len(p.seen()); n != 1 {
		t.Errorf("%d flushes against a store that is away, want 1", n)
	}
}

// An item whose rows are held delays nobody: its neighbours are answered by the same flush. From
// a second on it waits alone, beside the flushes.
func TestBatcher_BusyItemDelaysNoNeighbour(t *testing.T) {
	t.Parallel()
	p := newPress()
	release := make(chan struct{})
	p.answer = func(batch []int, wait bool) ([]Result[int], error) {
		if wait {
			<-release
			return echo(batch), nil
		}
		results := echo(batch)
		for i, n := range batch {
			if n == 13 {
				results[i] = Result[int]{Err: ErrBusy}
			}
		}
		return results, nil
	}
	b, _ := p.start(t, 100, 1000)
	busy := call(t.Context(), b, 13)
	for deadline := time.Now().Add(busyPatience + 500*time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		wantValue(t, <-call(t.Context(), b, 2), 20)
	}
	select {
	case r := <-busy:
		t.Fatalf("the busy item was answered %v while its rows are held", r)
	default:
	}
	wantValue(t, <-call(t.Context(), b, 3), 30) // while the busy one waits alone
	close(release)
	wantValue(t, <-busy, 130)
}

// A lock that does not come in time fails a flush as a whole: the halves find the item, which
// goes on as a busy one.
func TestBatcher_LockThatDoesNotComeMakesOneItemBusy(t *testing.T) {
	t.Parallel()
	p := newPress()
	locked := true
	p.answer = func(batch []int, _ bool) ([]Result[int], error) {
		if slices.Contains(batch, 13) && locked {
			if len(batch) == 1 {
				locked = false // free from now on
			}
			return nil, &UnavailableError{Cause: errBad, Locked: true}
		}
		return echo(batch), nil
	}
	b, _ := p.start(t, 100, 1000)
	reqs := []int{1, 13, 3, 4}
	for i, r := range b.do(t.Context(), reqs...) {
		wantValue(t, r, reqs[i]*10)
	}
}

func TestBatcher_CallerThatLeavesTakesOnlyItsAnswer(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.gate = make(chan struct{})
	b, _ := p.start(t, 100, 1000)
	inFlight, leave := context.WithCancel(t.Context())
	first := call(inFlight, b, 1)
	<-p.began
	gone, leaveToo := context.WithCancel(t.Context())
	never := call(gone, b, 2)
	stays := call(t.Context(), b, 3)
	queued(t, b, 2)
	leave()
	leaveToo()
	for _, c := range []<-chan Result[int]{first, never} {
		if r := <-c; !errors.Is(r.Err, context.Canceled) {
			t.Errorf("a caller that left got %v", r.Err)
		}
	}
	close(p.gate)
	wantValue(t, <-stays, 30)
	if got := p.seen(); len(got) != 2 || !slices.Equal(got[1], []int{3}) {
		t.Errorf("flushed %v: what nobody waits for any more is not begun, what is in flight goes on", got)
	}
}

func TestBatcher_StopFlushesTheQueue(t *testing.T) {
	t.Parallel()
	p := newPress()
	p.gate = make(chan struct{})
	b, stop := p.start(t, 2, 1000)
	first := call(t.Context(), b, 1)
	<-p.began
	var rest []<-chan Result[int]
	for n := 2; n <= 6; n++ {
		rest = append(rest, call(t.Context(), b, n))
	}
	queued(t, b, 5)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	close(p.gate)
	wantValue(t, <-first, 10)
	for i, c := range rest {
		wantValue(t, <-c, (i+2)*10)
	}
	<-stopped
	var away *UnavailableError
	if r := <-call(t.Context(), b, 7); !errors.As(r.Err, &away) {
		t.Errorf("after the stop: %v, want UnavailableError", r.Err)
	}
}

// TestBatcher_GathersThoseWhoWereAnswered: after a flush of several calls as many are waited for, for a
// while; after one of a single call nobody is. Caught: no wait, and one that does not end.
func TestBatcher_GathersThoseWhoWereAnswered(t *testing.T) {
	t.Parallel()
	b := newBatcher(10, 10, func(int) int { return 1 }, func(context.Context, []int, bool) ([]Result[int], error) { return nil, nil })
	come := func() {
		b.mu.Lock()
		b.queue = append(b.queue, &item[int, int]{ctx: t.Context()})
		b.mu.Unlock()
		b.ring()
	}
	b.gather(t.Context(), 1, time.Hour)
	b.gather(t.Context(), 3, time.Millisecond)
	gathered := make(chan struct{})
	go func() {
		defer close(gathered)
		b.gather(t.Context(), 3, time.Hour)
	}()
	for range 2 {
		come()
		select {
		case <-gathered:
			t.Error("it did not wait for all")
		case <-time.After(10 * time.Millisecond):
		}
	}
	come()
	<-gathered
	ctx, leave := context.WithCancel(t.Context())
	leave()
	b.gather(ctx, 10, time.Hour)
}
