package scheduler

import "sync"

// background is what a loop leaves running beside it, and waits for at its end. Callers of the
// loop may leave something too, also while it ends.
type background struct {
	mu    sync.Mutex
	ended bool
	wg    sync.WaitGroup
}

// run runs f beside the caller; once the loop has ended, in the caller's own time.
func (b *background) run(f func()) {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		f()
		return
	}
	b.wg.Go(f) // under the lock: end does not begin to wait before it counts
	b.mu.Unlock()
}

// end waits for all that was left.
func (b *background) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.wg.Wait()
}
