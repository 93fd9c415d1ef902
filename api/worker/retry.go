package worker

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffBase = 100 * time.Millisecond
	// backoffCap bounds the waits of polls and registrations, so that a worker is back soon
	// after its servers are.
	backoffCap = 10 * time.Second
	// retryCap bounds the waits of renewals and reports, which race with a lease's end.
	retryCap = 2 * time.Second
)

// retryWait is the wait after the nth failure in a row, n from 0: it doubles up to limit, and
// is spread over its upper half, so that workers which lost their server together do not
// come back together.
func retryWait(n int, limit time.Duration) time.Duration {
	d := limit
	if n < 20 { // beyond, the shift would be over any limit
		d = min(backoffBase<<n, limit)
	}
	return d/2 + rand.N(d/2+1) // only spreads load
}

// sleep waits for d, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
