package outbox

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// trouble is something that fails over and over. It is told once when it begins and once when
// it is over, however often it failed in between, and however often it comes and goes: a
// trouble that begins within tellAtMost of another's telling is not told.
type trouble struct {
	log    *slog.Logger
	begins string
	ends   string

	mu       sync.Mutex
	since    time.Time // monotonic; zero: there is none
	failures int
	told     bool
	last     time.Time // when the beginning of one was told
}

const tellAtMost = 10 * time.Second

// failed says that it failed once more.
func (t *trouble) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := stopwatch()
	t.failures++
	if !t.since.IsZero() {
		return
	}
	t.since = now
	if t.told = t.last.IsZero() || now.Sub(t.last) >= tellAtMost; t.told {
		t.last = now
		t.log.Warn(t.begins, "error", err)
	}
}

// over says that it does not fail any more.
func (t *trouble) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.since.IsZero() {
		return
	}
	if t.told {
		t.log.Info(t.ends, "failures", t.failures, "lasted", stopwatch().Sub(t.since).Round(time.Millisecond))
	}
	t.since, t.failures = time.Time{}, 0
}

// outage is what the relay knows of a sink that is away. While it lasts nothing is claimed, but
// now and then one head to try whether the sink is back: else a night without it would turn
// the whole backlog over and over, as fast as the database can.
type outage struct {
	trouble *trouble

	mu    sync.Mutex
	on    bool
	last  time.Time // of a try that found the sink away
	next  time.Time // when one head may try again
	tries int
}

// The pauses between two tries of a sink that is away.
const (
	firstAway = 500 * time.Millisecond
	longAway  = 5 * time.Second
)

// heard takes what came of a try that began then. It tells whether an outage ended by it.
func (o *outage) heard(began time.Time, err error) (ended bool) {
	away := isAway(err)
	if away {
		o.trouble.failed(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := stopwatch()
	switch {
	case away:
		o.last = now
		if !o.on || !now.Before(o.next) {
			o.on = true
			o.putOff(now)
		}
	case o.on && !began.Before(o.last): // an earlier one tells nothing of now
		o.on, o.tries = false, 0
		o.trouble.over()
		return true
	}
	return false
}

// room is how many heads may be claimed where there is room for so many. If none, it is how
// long to wait.
func (o *outage) room(heads int) (n int, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.on {
		return heads, 0
	}
	now := stopwatch()
	if left := o.next.Sub(now); left > 0 {
		return 0, left
	}
	o.putOff(now) // a try that takes long is not doubled
	return 1, 0
}

func (o *outage) putOff(now time.Time) {
	pause := min(firstAway<<min(o.tries, 10), longAway)
	o.tries++
	o.next = now.Add(pause/2 + rand.N(pause/2))
}
