package scheduler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Store is everything that the application needs of its store.
type Store interface {
	EnqueueStore
	LeaseStore
	DispatchStore
	DeliveryStore
	SessionStore
	ControlStore
	SteeringStore
	InterventionStore
	SweepStore
	WatchStore
	RetentionStore
}

// Config says how a replica works. Zero values are usable.
type Config struct {
	Store           Store
	Hints           Hints         // none: this is the only replica, or others find out by looking
	SweepInterval   time.Duration // default 1 s
	MaxParkedPolls  int           // default 20,000
	MaxStreams      int           // watches that are open at once; default 2,000
	MaxMessageBytes int           // of an answer with leases; default 4 MiB
	Logger          *slog.Logger
	Observer        Observer          // none: nobody hears
	Dispatches      DispatchObserver  // none: nobody hears
	Retention       Retention         // zero: everything is kept
	Purges          RetentionObserver // none: nobody hears
	Tracer          Tracer            // none: no spans
	// Changed is called after commits that may have written events: a hint for the relay. It
	// returns at once.
	Changed func()
}

// Scheduler is the application of one replica. Its methods are the use cases; Run keeps its
// loops going.
type Scheduler struct {
	store      Store
	hints      Hints
	log        *slog.Logger
	enqueues   *batcher[NewExecution, Enqueued]
	renewals   *batcher[Renewal, Renewed]
	reports    *batcher[Report, Reported]
	cancels    *batcher[Cancellation, *ExecutionView]
	dispatcher *dispatcher
	presence   *presence
	watches    *hub
	purger     *purger
	sweepEvery time.Duration
	observer   Observer
	changed    func()
}

// Bounds of one flush of a group commit.
const (
	flushItems      = 500
	flushSteps      = 10_000
	cancelItems     = 50 // of up to 10,000 steps each
	flushBytes      = 8 << 20
	bytesPerStep    = flushBytes / flushSteps
	defaultParked   = 20_000
	defaultStreams  = 2_000
	defaultMessage  = 4 << 20
	defaultSweep    = time.Second
	presenceEvery   = 5 * time.Second
	tidyEvery       = time.Minute
	bytesPerRenewal = 256
)

// New makes a scheduler; nothing runs until Run.
func New(c Config) *Scheduler {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Hints == nil {
		c.Hints = noHints{}
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Dispatches == nil {
		c.Dispatches = nobody{}
	}
	if c.Tracer == nil {
		c.Tracer = untraced{}
	}
	c.SweepInterval = orDefault(c.SweepInterval, defaultSweep)
	c.MaxParkedPolls = orDefault(c.MaxParkedPolls, defaultParked)
	c.MaxStreams = orDefault(c.MaxStreams, defaultStreams)
	c.MaxMessageBytes = orDefault(c.MaxMessageBytes, defaultMessage)
	s := &Scheduler{store: c.Store, hints: c.Hints, log: c.Logger, sweepEvery: c.SweepInterval, observer: c.Observer, changed: c.Changed}
	s.presence = newPresence(c.Store, c.Logger)
	s.presence.observer = c.Observer
	s.dispatcher = newDispatcher(c.Store, s.presence, c.Logger, c.MaxParkedPolls, c.MaxMessageBytes)
	s.dispatcher.tell, s.dispatcher.observer, s.dispatcher.rounds, s.dispatcher.tracer = s.hint, c.Observer, c.Dispatches, c.Tracer
	s.watches = newHub(c.Store, c.Logger, c.MaxStreams)
	s.purger = newPurger(c.Store, c.Retention, c.Logger)
	if c.Purges != nil {
		s.purger.observer = c.Purges
	}
	if c.Changed != nil {
		s.purger.changed = c.Changed
	}
	s.watches.observer = c.Observer
	s.enqueues = newBatcher(flushItems, flushBytes, weighExecution, s.flushEnqueues).observed(LoopEnqueues, c.Observer, c.Tracer)
	s.renewals = newBatcher(flushItems*2, flushBytes, weighRenewal, s.flushRenewals).observed(LoopRenewals, c.Observer, c.Tracer)
	s.cancels = newBatcher(cancelItems, cancelItems, func(Cancellation) int { return 1 }, s.flushCancels).observed(LoopCancels, c.Observer, c.Tracer)
	s.reports = newBatcher(flushItems, flushBytes, weighReport, s.flushReports).observed(LoopReports, c.Observer, c.Tracer)
	return s
}

func orDefault[T int | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Run keeps the loops going until the context ends, then finishes what is in flight.
func (s *Scheduler) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.enqueues.run(ctx) })
	wg.Go(func() { s.renewals.run(ctx) })
	wg.Go(func() { s.reports.run(ctx) })
	wg.Go(func() { s.cancels.run(ctx) })
	wg.Go(func() { s.dispatcher.run(ctx) })
	wg.Go(func() { s.presence.run(ctx, s.dispatcher) })
	wg.Go(func() { s.sweep(ctx) })
	wg.Go(func() { s.watches.run(ctx) })
	wg.Go(func() { s.purger.run(ctx) })
	wg.Go(func() {
		if err := s.hints.Run(ctx, s.hear); err != nil {
			s.log.Error("hints ended", "error", err)
		}
	})
	wg.Wait()
	return nil
}

// StopPolls answers the parked polls empty, and further ones at once: the server is stopping.
func (s *Scheduler) StopPolls() { s.dispatcher.stop() }

// hint tells this replica's loops at once, and the others soon.
func (s *Scheduler) hint(hints ...Hint) {
	for _, h := range hints {
		if h == HintChange {
			s.watches.ring()
		} else {
			s.dispatcher.hearOwn(h)
		}
	}
	if s.changed != nil {
		s.changed()
	}
	s.hints.Send(hints...)
}

// hear passes a hint on to whom it is for.
func (s *Scheduler) hear(h Hint) {
	if h == HintChange {
		s.watches.ring()
		return
	}
	s.dispatcher.hear(h)
}

// noHints is for a replica that is alone.
type noHints struct{}

// Send tells nobody: there is nobody else.
func (noHints) Send(...Hint) {}

// Run hears nothing.
func (noHints) Run(ctx context.Context, _ func(Hint)) error {
	<-ctx.Done()
	return nil
}

// newID makes an id. Its order means nothing.
func newID() uuid.UUID {
	id, err := uuid.NewV7()
	if err != nil {
		return uuid.New()
	}
	return id
}
