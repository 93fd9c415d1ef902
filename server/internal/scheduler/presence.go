package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// presence knows in memory which workers gave a sign of life, and writes that in batches:
// being there costs a worker no statement of its own.
type presence struct {
	store    DeliveryStore
	log      *slog.Logger
	observer Observer
	mu       sync.Mutex
	signs    map[uuid.UUID]bool
}

func newPresence(store DeliveryStore, log *slog.Logger) *presence {
	return &presence{store: store, log: log, observer: nobody{}, signs: map[uuid.UUID]bool{}}
}

func (p *presence) seen(worker uuid.UUID) {
	p.mu.Lock()
	p.signs[worker] = true
	p.mu.Unlock()
}

func (p *presence) take() []uuid.UUID {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]uuid.UUID, 0, len(p.signs))
	for id := range p.signs {
		ids = append(ids, id)
	}
	clear(p.signs)
	return ids
}

// run writes the signs of life every few seconds; what that tells of the workers' sessions
// the dispatcher hears.
func (p *presence) run(ctx context.Context, d *dispatcher) {
	for wait(ctx, presenceEvery) {
		for _, id := range d.parkedWorkers() {
			p.seen(id)
		}
		ids := p.take()
		if len(ids) == 0 {
			p.observer.Looped(LoopPresence)
			continue
		}
		limited, cancel := context.WithTimeout(ctx, presenceEvery)
		states, err := p.store.Touch(limited, ids)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				p.log.Warn("signs of life were not written", "workers", len(ids), "error", err)
			}
			continue
		}
		p.observer.Looped(LoopPresence)
		d.learn(states)
	}
}

// stopwatch is the process's own clock, for durations only.
func stopwatch() time.Time { return time.Now() } // monotonic
