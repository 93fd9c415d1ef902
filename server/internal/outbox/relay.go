package outbox

import (
	"context"
	"errors"
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
	StopTimeout     time.Duration // of what is in flight when the relay stops; default 4 s
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
	awayPause     = 2 * time.Second // about, until an event that found the sink away is due again
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
	away    outage
	store   trouble // with claiming
}

// errStopping cuts off a try that the relay's stop does not wait for any longer.
var errStopping = errors.New("the relay stops")

// NewRelay makes a relay; nothing runs until Run.
func NewRelay(c Config) *Relay {
	c.InFlight = orDefault(c.InFlight, 64)
	c.ClaimExpires = orDefault(c.ClaimExpires, 30*time.Second)
	c.PublishTimeout = orDefault(c.PublishTimeout, 10*time.Second)
	c.StopTimeout = orDefault(c.StopTimeout, 4*time.Second)
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
		away: outage{trouble: &trouble{log: c.Logger, begins: "outbox: the sink is away; events wait until it is back",
			ends: "outbox: the sink is back"}},
		store: trouble{log: c.Logger, begins: "outbox: events cannot be claimed, trying again",
			ends: "outbox: events are claimed again"},
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
		wait, err := r.round(ctx)
		if err == nil {
			r.c.Observer.Looped()
		}
		if wait > 0 {
			r.pause(ctx, wait)
		}
	}
	r.wg.Wait()
	close(r.results)
	<-settled
	return nil
}

// round claims as much as there is room for. It returns how long there is nothing to do unless
// it is woken; the error is the store's, and logged.
func (r *Relay) round(ctx context.Context) (time.Duration, error) {
	room := min(cap(r.places)-len(r.places), claimHeads)
	if room == 0 {
		return lookAtLeast, nil // a run that ends wakes us
	}
	heads, wait := r.away.room(room)
	if heads == 0 {
		return wait, nil
	}
	runs, err := r.claim(ctx, heads)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		r.store.failed(err)
		sleep(ctx, errorPause) // whatever wakes us meanwhile
		return 0, err
	}
	r.store.over()
	if runs == 0 {
		return r.nextLook(ctx), nil
	}
	return 0, nil
}

// claim claims heads and starts publishing what they lead. A stop does not cut it off: a claim
// that was committed without our knowing would hold its events until it is over.
func (r *Relay) claim(ctx context.Context, heads int) (runs int, err error) {
	claiming, cancel := r.outlasting(ctx)
	defer cancel()
	began := stopwatch()
	claimed, err := r.c.Source.Claim(claiming, Claim{ID: uuid.New(), Heads: heads, Events: claimEvents, Expires: r.c.ClaimExpires})
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
		cut, err := r.try(ctx, &run.Events[i])
		if err != nil && cut {
			return result // nobody knows what came of it: given back as if untried
		}
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
func (r *Relay) try(ctx context.Context, e *Event) (cut bool, err error) {
	stoppable, stop := r.outlasting(ctx)
	defer stop()
	trying, cancel := context.WithTimeout(stoppable, r.c.PublishTimeout)
	defer cancel()
	trying, end := r.c.Tracer.Continue(trying, e.TraceContext, "publish")
	began := stopwatch()
	err = r.c.Publisher.Publish(trying, e)
	end(err, slog.String("event_id", e.ID.String()), slog.String("event_type", e.Type),
		slog.String("execution_id", e.AggregateID.String()), slog.Int64("sequence", e.Sequence))
	if cut = errors.Is(context.Cause(trying), errStopping); err != nil && cut {
		return true, err
	}
	r.c.Observer.Tried(stopwatch().Sub(began), err)
	if r.away.heard(began, err) {
		r.Wake()
	}
	return false, err
}

// outlasting is a context that ends some time after ctx.
func (r *Relay) outlasting(ctx context.Context) (context.Context, context.CancelFunc) {
	lasting, end := context.WithCancelCause(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(r.c.StopTimeout, func() { end(errStopping) }) })
	return lasting, func() { forget(); end(nil) }
}

func (r *Relay) failure(e *Event, err error) *Failure {
	f := &Failure{Reason: clean(err.Error()), Free: isAway(err), Again: again(e.Attempts+1, err, rand.Float64())}
	if f.Free {
		f.Again = awayPause/2 + rand.N(awayPause)
		return f
	}
	about := []any{"event_id", e.ID, "type", e.Type, "aggregate_id", e.AggregateID, "attempts", e.Attempts + 1, "error", err}
	if f.Dead = isRefused(err) || e.Attempts+1 >= r.c.MaximumAttempts; f.Dead {
		r.c.Logger.Warn("outbox: event is dead until it is redriven or skipped", about...)
	} else {
		r.c.Logger.Warn("outbox: the sink did not take an event, which is tried again", about...)
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
