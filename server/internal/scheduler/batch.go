package scheduler

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	flushTimeout = 15 * time.Second      // of one flush, whoever still waits for it
	busyPatience = time.Second           // an item whose rows are held goes from flush to flush so long
	busyPause    = 10 * time.Millisecond // before a flush of nothing but such items
	lonely       = 2                     // items that wait for their locks alone, at most at once
	idleBeat     = 5 * time.Second       // an idle one shows that it lives so often
	gatherTime   = 10 * time.Millisecond // at most, for those who were in a flush and may come again
)

// batcher is a group commit: calls of one kind are gathered while the flush before them is in
// flight, and written in one transaction. The first call of an idle server waits for nobody.
// Every call gets its own answer, after the commit; one bad or slow item neither fails nor
// delays its neighbours.
type batcher[Req, Res any] struct {
	flush     func(ctx context.Context, batch []Req, wait bool) ([]Result[Res], error)
	weigh     func(Req) int
	maxItems  int
	maxWeight int
	loop      Loop
	observer  Observer
	tracer    Tracer

	mu     sync.Mutex
	queue  []*item[Req, Res]
	closed bool
	wake   chan struct{}
	alone  chan struct{} // places for items that wait for their locks
	wg     sync.WaitGroup
}

type item[Req, Res any] struct {
	ctx  context.Context // the caller's: one that has left before the flush is not written
	req  Req
	busy time.Time // since when its rows are held by others; a stopwatch, monotonic
	done chan Result[Res]
}

func newBatcher[Req, Res any](maxItems, maxWeight int, weigh func(Req) int, flush func(context.Context, []Req, bool) ([]Result[Res], error)) *batcher[Req, Res] {
	return &batcher[Req, Res]{
		flush: flush, weigh: weigh, maxItems: maxItems, maxWeight: maxWeight, observer: nobody{}, tracer: untraced{},
		wake: make(chan struct{}, 1), alone: make(chan struct{}, lonely),
	}
}

// observed names the loop, for an observer and a tracer.
func (b *batcher[Req, Res]) observed(loop Loop, o Observer, t Tracer) *batcher[Req, Res] {
	b.loop, b.observer, b.tracer = loop, o, t
	return b
}

var errStopping = errors.New("the server is stopping")

// do hands in requests and waits for their answers. A caller that leaves takes only its
// answers away: what is in flight goes on.
func (b *batcher[Req, Res]) do(ctx context.Context, reqs ...Req) []Result[Res] {
	items := make([]*item[Req, Res], len(reqs))
	results := make([]Result[Res], len(reqs))
	for i, r := range reqs {
		items[i] = &item[Req, Res]{ctx: ctx, req: r, done: make(chan Result[Res], 1)}
	}
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.queue = append(b.queue, items...)
	}
	b.mu.Unlock()
	if closed {
		for i := range results {
			results[i].Err = &UnavailableError{Cause: errStopping, RetryAfter: time.Second}
		}
		return results
	}
	b.ring()
	for i, it := range items {
		select {
		case results[i] = <-it.done:
		case <-ctx.Done():
			results[i].Err = ctx.Err()
		}
	}
	return results
}

func (b *batcher[Req, Res]) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run flushes until the context ends, then what is still queued.
func (b *batcher[Req, Res]) run(ctx context.Context) {
	idle := time.NewTicker(idleBeat)
	defer idle.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-b.wake:
		case <-idle.C:
			b.observer.Looped(b.loop)
		}
		b.drain(ctx)
	}
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.drain(ctx)
	b.wg.Wait()
}

// drain flushes until the queue is empty.
func (b *batcher[Req, Res]) drain(ctx context.Context) {
	for {
		batch, onlyBusy := b.take()
		if len(batch) == 0 {
			return
		}
		if onlyBusy {
			wait(context.WithoutCancel(ctx), busyPause)
		}
		began := stopwatch()
		b.write(ctx, batch)
		b.gather(ctx, len(batch), min(stopwatch().Sub(began), gatherTime))
	}
}

// gather waits after a flush of several calls until as many have come again, no longer than the flush
// took: its callers were just answered, and a flush of the few that came meanwhile would keep them
// out. Without it callers fall into halves that take turns, and each statement is paid for twice.
func (b *batcher[Req, Res]) gather(ctx context.Context, answered int, patience time.Duration) {
	if answered < 2 {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for b.queued() < answered {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-b.wake:
		}
	}
}

func (b *batcher[Req, Res]) queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// take takes the oldest items that fit into one flush; callers that left are left out.
func (b *batcher[Req, Res]) take() (batch []*item[Req, Res], onlyBusy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	weight, n := 0, 0
	onlyBusy = true
	for _, it := range b.queue {
		w := b.weigh(it.req)
		if len(batch) == b.maxItems || len(batch) > 0 && weight+w > b.maxWeight {
			break
		}
		n++
		if it.ctx.Err() != nil {
			it.done <- Result[Res]{Err: it.ctx.Err()}
			continue
		}
		weight += w
		onlyBusy = onlyBusy && !it.busy.IsZero()
		batch = append(batch, it)
	}
	b.queue = slices.Delete(b.queue, 0, n)
	return batch, onlyBusy
}

// write flushes a batch. One that fails is halved until the bad item is alone, unless the
// store is away: then it is away for all.
func (b *batcher[Req, Res]) write(ctx context.Context, batch []*item[Req, Res]) {
	results, err := b.flushOnce(ctx, batch, false)
	var away *UnavailableError
	gone := errors.As(err, &away) && !away.Locked
	switch {
	case err == nil:
		b.answer(ctx, batch, results)
	case len(batch) > 1 && !gone:
		b.write(ctx, batch[:len(batch)/2])
		b.write(ctx, batch[len(batch)/2:])
	case away != nil && away.Locked:
		b.answer(ctx, batch, []Result[Res]{{Err: ErrBusy}})
	default:
		for _, it := range batch {
			it.done <- Result[Res]{Err: err}
		}
	}
}

// flushOnce has a time of its own, so that no caller's hurry cuts another's commit.
func (b *batcher[Req, Res]) flushOnce(ctx context.Context, batch []*item[Req, Res], wait bool) ([]Result[Res], error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	ctx, end := b.tracer.Gather(ctx, "group commit", callersOf(batch))
	reqs := make([]Req, len(batch))
	for i, it := range batch {
		reqs[i] = it.req
	}
	results, err := b.flush(ctx, reqs, wait)
	end(err, slog.String("kind", string(b.loop)), slog.Int("calls", len(reqs)))
	if err == nil {
		b.observer.Flushed(b.loop, len(reqs))
		b.observer.Looped(b.loop)
	}
	return results, err
}

// callersOf are the contexts of a batch's callers.
func callersOf[Req, Res any](batch []*item[Req, Res]) iter.Seq[context.Context] {
	return func(yield func(context.Context) bool) {
		for _, it := range batch {
			if !yield(it.ctx) {
				return
			}
		}
	}
}

// answer gives the answers out. Items whose rows are held go into the next flush; from a
// second on, alone, waiting for their locks.
func (b *batcher[Req, Res]) answer(ctx context.Context, batch []*item[Req, Res], results []Result[Res]) {
	var again []*item[Req, Res]
	for i, it := range batch {
		if !errors.Is(results[i].Err, ErrBusy) {
			it.done <- results[i]
			continue
		}
		if it.busy.IsZero() {
			it.busy = time.Now() // monotonic
		}
		if time.Since(it.busy) > busyPatience && b.goAlone(ctx, it) {
			continue
		}
		again = append(again, it)
	}
	if len(again) == 0 {
		return
	}
	b.mu.Lock()
	b.queue = append(b.queue, again...)
	b.mu.Unlock()
}

// goAlone lets an item wait for its locks in a transaction of its own, if there is a place.
func (b *batcher[Req, Res]) goAlone(ctx context.Context, it *item[Req, Res]) bool {
	select {
	case b.alone <- struct{}{}:
	default:
		return false
	}
	b.wg.Go(func() {
		defer func() { <-b.alone }()
		results, err := b.flushOnce(ctx, []*item[Req, Res]{it}, true)
		switch {
		case err != nil:
			it.done <- Result[Res]{Err: err}
		case errors.Is(results[0].Err, ErrBusy):
			it.done <- Result[Res]{Err: &UnavailableError{Cause: ErrBusy, RetryAfter: time.Second, Locked: true}}
		default:
			it.done <- results[0]
		}
	})
	return true
}

// wait waits, and false if the context ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
