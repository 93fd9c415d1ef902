package postgres

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
)

const fullTimers = 5 * time.Second // and busyFullShare times what the last full look took

// timerFrontier remembers from when on timers are left, as frontiers do for requests: to the
// oldest one that is left, never past the horizon. A new timer fires at the now() of its transaction
// or later; but for one that ends all attempts of a step, and was set anew when that time was over:
// it is found by the next full look, five seconds later unless that takes longer than 100 ms.
type timerFrontier struct {
	mu      sync.Mutex
	since   time.Time // zero: from the beginning
	horizon time.Time
	started time.Time
	full    time.Time // when all were last looked at; monotonic
	taking  time.Duration
}

// begin is from when on to look, given the horizon from just before; zero is from the beginning.
func (f *timerFrontier) begin(h dbsqlc.Horizon) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.Horizon.Time.Before(f.horizon) || !h.ServerStarted.Time.Equal(f.started) || time.Since(f.full) >= max(fullTimers, busyFullShare*f.taking) { // monotonic
		f.since = time.Time{}
	}
	f.horizon, f.started = h.Horizon.Time, h.ServerStarted.Time
	return f.since
}

// learn takes in the first timer that was found.
func (f *timerFrontier) learn(since time.Time, h dbsqlc.Horizon, first pgtype.Timestamptz, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if since.IsZero() {
		f.full, f.taking = time.Now(), time.Since(began) // monotonic
	}
	if !f.since.Equal(since) || !f.horizon.Equal(h.Horizon.Time) {
		return // another look was faster
	}
	f.since = h.Horizon.Time
	if first.Valid && first.Time.Before(f.since) {
		f.since = first.Time
	}
}

// from is from when on timers are left.
func (f *timerFrontier) from() pgtype.Timestamptz {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fromBeginning(f.since)
}
