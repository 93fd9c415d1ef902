package outbox

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Source is where events wait.
type Source interface {
	// Claim claims heads that are due, and with each the run of its events that may be
	// published now, in order.
	Claim(ctx context.Context, c Claim) ([]Run, error)
	// Settle writes what came of claimed runs. A run whose claim is not ours any more changes
	// nothing and counts as lost.
	Settle(ctx context.Context, results []RunResult) (lost int, err error)
	// NextDue is how long until a head is due; ok is false when there is none.
	NextDue(ctx context.Context) (wait time.Duration, ok bool, err error)
}

// Claim asks for work.
type Claim struct {
	ID      uuid.UUID
	Heads   int // at most
	Events  int // of each head, at most
	Expires time.Duration
}

// Run is the events of one aggregate that were claimed together, in order and without a hole.
type Run struct {
	Claim       uuid.UUID
	AggregateID uuid.UUID
	From        int64       // sequence of the first unsettled event
	Events      []Event     // those that may be published now
	Claimed     []uuid.UUID // all that were claimed, in order; Events come first
}

// RunResult is what came of a run: its first Published events were acknowledged; the one after
// them may have failed; the rest was not tried.
type RunResult struct {
	Run       Run
	Published int
	Failure   *Failure
}

// Failure is what came of the event that was not acknowledged.
type Failure struct {
	Dead   bool          // not tried again until an operator says so
	Free   bool          // the try does not count: the sink was away
	Reason string        // at most 2 KiB
	Again  time.Duration // unless Dead
}

// Config says how a relay works. Zero values are usable, but for Source and Publisher.
type Config struct {
	Source          Source
	Publisher       Publisher
	InFlight        int           // aggregates at once; default 64
	ClaimExpires    time.Duration // default 30 s
	PublishTimeout  time.Duration // of one try; default 10 s
	MaximumAttempts int           // then an event is DEAD; default 50
	Logger          *slog.Logger
	Observer        Observer // none: nobody hears
	Tracer          Tracer   // none: no spans
}

// Observer hears what the relay does, for metrics. Its methods return at once, and are called
// from several goroutines.
type Observer interface {
	// Tried tells of a try to publish an event, and what came of it.
	Tried(took time.Duration, err error)
	// LostClaims tells of claims that were another's before their results were written.
	LostClaims(n int)
	// Looped tells that the relay got through a round without an error of the store.
	Looped()
}

// LoopsWithin is how often a relay gets through a round at least, whatever there is to do and
// however its sink does, while the store answers.
const LoopsWithin = 30 * time.Second

// Bounds of the relay's own waiting and trying.
const (
	claimHeads    = 100
	claimEvents   = 50
	lookAtLeast   = 5 * time.Second // a hint may be lost
	errorPause    = 500 * time.Millisecond
	settleTimeout = 15 * time.Second
	awayPause     = 2 * time.Second // about, until a sink that is away is tried again
	stopGrace     = 4 * time.Second // for what is in flight when the relay stops
	firstBackoff  = time.Second
	longBackoff   = 5 * time.Minute
	maxReason     = 2 << 10
)

// Relay publishes what is due, several aggregates at once, each in order. A nil one, that of a
// server without a sink, does nothing.
type Relay struct {
	c       Config
	wake    chan struct{}
	places  chan struct{}
	results chan RunResult
	wg      sync.WaitGroup
}

// NewRelay makes a relay; nothing runs until Run.
func NewRelay(c Config) *Relay {
	c.InFlight = orDefault(c.InFlight, 64)
	c.ClaimExpires = orDefault(c.ClaimExpires, 30*time.Second)
	c.PublishTimeout = orDefault(c.PublishTimeout, 10*time.Second)
	c.MaximumAttempts = orDefault(c.MaximumAttempts, 50)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Tracer == nil {
		c.Tracer = untraced{}
	}
	return &Relay{
		c: c, wake: make(chan struct{}, 1), places: make(chan struct{}, c.InFlight),
		results: make(chan RunResult, c.InFlight),
	}
}

func orDefault[T int | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Wake says that something may be due. It never waits, and is only a hint.
func (r *Relay) Wake() {
	if r == nil {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run publishes until the context ends. Then what is in flight is brought to its end, settled,
// or given back.
func (r *Relay) Run(ctx context.Context) error {
	if r == nil {
		return nil
	}
	settled := make(chan struct{})
	go func() { defer close(settled); r.settle(ctx) }()
	for ctx.Err() == nil {
		n, err := r.claim(ctx)
		if err != nil && ctx.Err() == nil {
			r.c.Logger.Warn("outbox: claim failed", "error", err)
			r.pause(ctx, errorPause)
			continue
		}
		r.c.Observer.Looped()
		if n == 0 {
			r.pause(ctx, r.nextLook(ctx))
		}
	}
	r.wg.Wait()
	close(r.results)
	<-settled
	return nil
}

// claim claims as much as there are places, and starts publishing it.
func (r *Relay) claim(ctx context.Context) (runs int, err error) {
	free := cap(r.places) - len(r.places)
	if free == 0 {
		return 0, nil // a run that ends wakes us
	}
	began := stopwatch()
	claimed, err := r.c.Source.Claim(ctx, Claim{ID: uuid.New(), Heads: min(free, claimHeads), Events: claimEvents, Expires: r.c.ClaimExpires})
	if err != nil {
		return 0, err
	}
	for _, run := range claimed {
		r.places <- struct{}{}
		r.wg.Go(func() {
			result := r.publish(ctx, run, began)
			r.results <- result
			<-r.places
			r.Wake()
		})
	}
	return len(claimed), nil
}

// publish brings the events of a run to the sink one after the other, up to the first that is
// not acknowledged. A try starts only while enough of the claim is left for it, counted by the
// monotonic clock from before the claim: then no other relay can have the run.
func (r *Relay) publish(ctx context.Context, run Run, began time.Time) RunResult {
	result := RunResult{Run: run}
	for i := range run.Events {
		left := r.c.ClaimExpires - stopwatch().Sub(began)
		if ctx.Err() != nil || left < r.c.PublishTimeout {
			return result
		}
		tried := stopwatch()
		err := r.try(ctx, &run.Events[i])
		r.c.Observer.Tried(stopwatch().Sub(tried), err)
		if err != nil {
			result.Failure = r.failure(&run.Events[i], err)
			return result
		}
		result.Published++
	}
	return result
}

// try publishes an event, within the time of one try. A stop of the relay does not cut it off
// at once: an acknowledgement that is on its way is worth waiting for.
func (r *Relay) try(ctx context.Context, e *Event) error {
	trying, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.PublishTimeout)
	defer cancel()
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(stopGrace, cancel) })
	defer forget()
	trying, end := r.c.Tracer.Continue(trying, e.TraceContext, "publish")
	err := r.c.Publisher.Publish(trying, e)
	end(err, slog.String("event_id", e.ID.String()), slog.String("event_type", e.Type),
		slog.String("execution_id", e.AggregateID.String()), slog.Int64("sequence", e.Sequence))
	return err
}

func (r *Relay) failure(e *Event, err error) *Failure {
	f := &Failure{Reason: clean(err.Error()), Free: isAway(err), Again: again(e.Attempts+1, err, rand.Float64())}
	if f.Free {
		f.Again = awayPause/2 + rand.N(awayPause)
		return f
	}
	if isRefused(err) || e.Attempts+1 >= r.c.MaximumAttempts {
		f.Dead = true
		r.c.Logger.Warn("outbox: event is dead until it is redriven or skipped", "event_id", e.ID, "type", e.Type,
			"aggregate_id", e.AggregateID, "attempts", e.Attempts+1, "error", err)
	}
	return f
}

// again is how long an event waits after its nth try: doubling, with jitter, or as the sink asked.
func again(n int, err error, chance float64) time.Duration {
	wait := min(float64(firstBackoff)*math.Pow(2, float64(min(n, 30)-1)), float64(longBackoff))
	d := time.Duration(wait * (0.8 + 0.4*chance))
	return max(d, askedFor(err))
}

// settle writes results as they come, those that have gathered together.
func (r *Relay) settle(ctx context.Context) {
	for first := range r.results {
		batch := []RunResult{first}
		for more := true; more && len(batch) < claimHeads; {
			select {
			case result, open := <-r.results:
				more = open
				if open {
					batch = append(batch, result)
				}
			default:
				more = false
			}
		}
		r.settleBatch(ctx, batch)
	}
}

// settleBatch writes results, again while the store is away and their claims last. What cannot
// be written is published once more by whoever claims it next: at least once.
func (r *Relay) settleBatch(ctx context.Context, batch []RunResult) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	for {
		lost, err := r.c.Source.Settle(limited, batch)
		if err == nil {
			if lost > 0 {
				r.c.Observer.LostClaims(lost)
				r.c.Logger.Warn("outbox: claims were lost before they were settled", "claims", lost)
			}
			r.Wake()
			return
		}
		if !sleep(limited, errorPause) {
			r.c.Logger.Warn("outbox: results were not written; their events come again", "runs", len(batch), "error", err)
			return
		}
	}
}

// nextLook is when something is due, by the store.
func (r *Relay) nextLook(ctx context.Context) time.Duration {
	wait, ok, err := r.c.Source.NextDue(ctx)
	switch {
	case err != nil:
		return errorPause
	case !ok:
		return lookAtLeast
	default:
		return min(max(wait, 10*time.Millisecond), lookAtLeast)
	}
}

func (r *Relay) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-r.wake:
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// stopwatch is the process's own clock, for durations only.
func stopwatch() time.Time { return time.Now() } // monotonic

type nobody struct{}

// Tried is not heard.
func (nobody) Tried(time.Duration, error) {}

// LostClaims is not heard.
func (nobody) LostClaims(int) {}

// Looped is not heard.
func (nobody) Looped() {}
