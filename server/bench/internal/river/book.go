package river

import (
	"context"
	"sync/atomic"
	"time"
)

// book counts for each job by its number whether it was accepted and how often it was worked.
type book struct {
	accepted []atomic.Bool
	worked   []atomic.Uint32
	inserted atomic.Int64 // jobs that were accepted
	reached  atomic.Int64 // jobs that were worked at least once
}

func newBook(size int) *book {
	return &book{accepted: make([]atomic.Bool, size), worked: make([]atomic.Uint32, size)}
}

func (b *book) accept(number int) {
	b.accepted[number].Store(true)
	b.inserted.Add(1)
}

// work marks a job as worked. The first time counts as progress.
func (b *book) work(number int) {
	if number >= 0 && number < len(b.worked) && b.worked[number].Add(1) == 1 {
		b.reached.Add(1)
	}
}

// lost are the jobs that were accepted and never worked, doubled those that were worked again.
func (b *book) count() (lost, doubled int64) {
	for i := range b.worked {
		switch n := b.worked[i].Load(); {
		case n > 1:
			doubled++
		case n == 0 && b.accepted[i].Load():
			lost++
		}
	}
	return lost, doubled
}

// await waits until every accepted job was worked. It gives up when nothing moves any more: what
// is missing then counts as lost.
func (b *book) await(ctx context.Context) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	last, moved := int64(-1), time.Now() // monotonic
	for b.reached.Load() < b.inserted.Load() {
		if n := b.reached.Load(); n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > patience {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
