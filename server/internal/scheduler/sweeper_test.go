package scheduler

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
)

// sweepLog notes what a sweep asked for, and misses one execution until it is waited for.
type sweepLog struct {
	mu      sync.Mutex
	held    uuid.UUID
	batches []SweepBatch
}

func (l *sweepLog) do(_ context.Context, b SweepBatch) (Swept, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, b)
	switch {
	case slices.Contains(b.Wait, l.held):
		l.held = uuid.Nil
		return Swept{Done: 1}, nil
	case l.held == uuid.Nil || slices.Contains(b.Skipped, l.held):
		return Swept{}, nil
	default:
		return Swept{Done: 2, Missed: []uuid.UUID{l.held}, More: true}, nil
	}
}

// What another transaction holds is left for the next sweep, skipped within this one, and
// waited for after three misses.
func TestSweep_WaitsAfterThreeMisses(t *testing.T) {
	t.Parallel()
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	held := uuid.New()
	l := &sweepLog{held: held}
	job := &sweepJob{what: "test", do: l.do}
	for sweep := 1; sweep <= 4; sweep++ {
		before := len(l.batches)
		s.sweepPart(t.Context(), job)
		these := l.batches[before:]
		waits := slices.ContainsFunc(these, func(b SweepBatch) bool { return slices.Contains(b.Wait, held) })
		if waits != (sweep == 4) {
			t.Errorf("sweep %d waits: %v", sweep, waits)
		}
		if sweep < 4 && (len(these) != 2 || !slices.Contains(these[1].Skipped, held)) {
			t.Errorf("sweep %d: %d batches, the missed one must be skipped in the second: %+v", sweep, len(these), these)
		}
	}
	if len(job.misses) != 0 {
		t.Errorf("misses are left: %v", job.misses)
	}
}
