package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// Retention says for how long things are kept; 0 keeps them for ever.
type Retention struct {
	Executions time.Duration // after their end, whole, once their events are settled; and workers that were not seen for so long, an hour at least, and are not drained
	Events     time.Duration // after they were published or skipped
	DeadEvents time.Duration // after they died; the later events of their execution then go on
}

// RetentionStore removes what is old.
type RetentionStore interface {
	// HoldPurge takes or keeps the right to purge, which one holder has at a time; one that was
	// silent for so long has lost it.
	HoldPurge(ctx context.Context, holder uuid.UUID, silence time.Duration) (bool, error)
	// EndedGroups lists how executions ended, in which namespaces.
	EndedGroups(ctx context.Context) ([]EndedGroup, error)
	// Purge removes one batch, in one transaction. Next is set also when it failed.
	Purge(ctx context.Context, b PurgeBatch) (Purged, error)
}

// RetentionObserver hears of what was removed. It returns at once.
type RetentionObserver interface {
	// Purged tells how many of a kind were removed.
	Purged(kind PurgeKind, n int)
}

// PurgeKind is a kind of what is removed.
type PurgeKind string

// The kinds.
const (
	PurgeDeadEvents PurgeKind = "dead_events" // dropped, never published
	PurgeEvents     PurgeKind = "events"      // published or skipped; those that go with their execution are not counted
	PurgeExecutions PurgeKind = "executions"
	PurgeWorkers    PurgeKind = "workers" // that were not seen for long
)

// EndedGroup is the executions of a namespace that ended in one way.
type EndedGroup struct {
	Namespace string
	Outcome   string
}

// PurgePosition is how far a walk from the oldest to the youngest has come.
type PurgePosition struct {
	At time.Time
	ID uuid.UUID
}

// PurgeBatch asks for a batch.
type PurgeBatch struct {
	Kind   PurgeKind
	Group  EndedGroup // of executions
	Age    time.Duration
	After  PurgePosition
	Limit  int // executions, at most
	DryRun bool
}

// Purged is what came of a batch.
type Purged struct {
	Looked  int
	Removed int
	Next    PurgePosition // what is before it was looked at
	More    bool
}

// Bounds of retention.
const (
	purgeLimit   = 200 // executions of one transaction
	purgeAtMost  = 5 * time.Minute
	purgeSilence = 15 * time.Second // of a replica that has the right to purge: another may take it
	purgeTurn    = 5 * time.Second  // of one kind, before the others have theirs
	purgeRest    = 2                // times as long as a batch took is the pause after it
	shortestRest = 5 * time.Millisecond
	longestRest  = 5 * time.Second
	lookOften    = 100 * time.Millisecond
	lookSeldom   = time.Minute
	walkSeldom   = time.Hour
	// workersAtLeast is far above the time between two signs of life that are written down.
	workersAtLeast = time.Hour
	stayedMost     = 50_000 // rows that could not go yet and are looked at again by the next look
)

// purger removes what is old, from the oldest on. Where much cannot go yet, it remembers how far
// it came, so that this is not looked at again each time; now and then it begins anew.
type purger struct {
	store    RetentionStore
	keep     Retention
	log      *slog.Logger
	observer RetentionObserver
	changed  func()    // after events became due
	holder   uuid.UUID // zero: the right to purge is not asked for
	rest     int       // pauses, in times of a batch; 0: none
	dryRun   bool
	removed  map[PurgeKind]int

	walks  map[walkKey]*purgeWalk
	begun  time.Time // of the last walk from the beginning, monotonic
	heldAt time.Time // monotonic
}

type walkKey struct {
	kind  PurgeKind
	group EndedGroup
}

// purgeWalk is a walk over one kind of things.
type purgeWalk struct {
	batch  PurgeBatch
	more   bool
	start  PurgePosition // where this look began
	stayed int           // what it has looked at and left
}

// passed books a batch. At the end the next look begins where this one did, unless too much has
// stayed: most of that ended, or was published, a moment after it became old enough to be looked at.
func (w *purgeWalk) passed(p Purged) {
	w.batch.Limit, w.batch.After, w.more = purgeLimit, p.Next, p.More
	if w.stayed += p.Looked - p.Removed; !w.more && w.stayed <= stayedMost {
		w.batch.After = w.start
	}
}

// every is how often there is a look for what became old, and anew how often everything that
// could not go is looked at again.
func (k Retention) every() (look, anew time.Duration) {
	least := time.Duration(0)
	for _, d := range []time.Duration{k.Executions, k.Events, k.DeadEvents} {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	look = min(max(least/10, lookOften), lookSeldom)
	return look, min(max(least/20, look), walkSeldom)
}

// run looks for what is old until the context ends.
func (p *purger) run(ctx context.Context) {
	if p.keep == (Retention{}) {
		return
	}
	look, anew := p.keep.every()
	for wait(ctx, look) {
		if err := p.round(ctx, anew); err != nil && ctx.Err() == nil {
			p.log.Warn("retention did not get on", "error", err)
		}
	}
}

// round works on everything that is old, each kind in turns, until nothing is left for now.
func (p *purger) round(ctx context.Context, anew time.Duration) error {
	if mine, err := p.hold(ctx); err != nil || !mine {
		return err
	}
	if p.begun.IsZero() || stopwatch().Sub(p.begun) >= anew {
		p.walks, p.begun = map[walkKey]*purgeWalk{}, stopwatch()
	}
	list, err := p.due(ctx)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		left := list[:0]
		for _, w := range list {
			mine, err := p.turn(ctx, w)
			if err != nil || !mine {
				return err
			}
			if w.more {
				left = append(left, w)
			}
		}
		list = left
	}
	return nil
}

// due lists what there is to walk over. Workers only when the walks begin anew.
func (p *purger) due(ctx context.Context) ([]*purgeWalk, error) {
	list := []*purgeWalk{p.walk(PurgeDeadEvents, EndedGroup{}, p.keep.DeadEvents), p.walk(PurgeEvents, EndedGroup{}, p.keep.Events)}
	if p.keep.Executions > 0 {
		groups, err := p.store.EndedGroups(ctx)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			list = append(list, p.walk(PurgeExecutions, g, p.keep.Executions))
		}
		if p.walks[walkKey{PurgeWorkers, EndedGroup{}}] == nil {
			list = append(list, p.walk(PurgeWorkers, EndedGroup{}, max(p.keep.Executions, workersAtLeast)))
		}
	}
	due := list[:0]
	for _, w := range list {
		if w.batch.Age > 0 {
			w.start, w.stayed = w.batch.After, 0
			due = append(due, w)
		}
	}
	return due, nil
}

func (p *purger) walk(kind PurgeKind, g EndedGroup, age time.Duration) *purgeWalk {
	key := walkKey{kind, g}
	w := p.walks[key]
	if w == nil {
		w = &purgeWalk{batch: PurgeBatch{Kind: kind, Group: g, Age: age, Limit: purgeLimit, DryRun: p.dryRun}}
		p.walks[key] = w
	}
	return w
}

// turn walks on for a while, batch by batch, each of which commits, with a pause after it in
// proportion: the work itself comes first. It is false when the right to purge is lost.
func (p *purger) turn(ctx context.Context, w *purgeWalk) (mine bool, err error) {
	w.more = true
	for began := stopwatch(); w.more && stopwatch().Sub(began) < purgeTurn; {
		if mine, err = p.hold(ctx); err != nil || !mine {
			return mine, err
		}
		started := stopwatch()
		if err := p.batch(ctx, w); err != nil {
			return false, err
		}
		if took := stopwatch().Sub(started); p.rest > 0 && !wait(ctx, min(max(time.Duration(p.rest)*took, shortestRest), longestRest)) {
			return false, nil
		}
	}
	return true, nil
}

// batch removes one batch. One that fails by itself, or takes far too long, is halved until the
// culprit is alone, which is then left out, with a word in the log.
func (p *purger) batch(ctx context.Context, w *purgeWalk) error {
	limited, cancel := context.WithTimeout(ctx, purgeAtMost)
	defer cancel()
	purged, err := p.store.Purge(limited, w.batch)
	if err != nil {
		var away *UnavailableError
		switch {
		case ctx.Err() != nil || errors.As(err, &away) && !away.Locked && limited.Err() == nil:
			return err
		case w.batch.Limit > 1 && w.batch.Kind == PurgeExecutions:
			w.batch.Limit /= 2
			return nil
		case purged.Next == w.batch.After: // it does not say where it stopped
			w.more = false
			return err
		}
		p.log.Error("retention left something out", "kind", w.batch.Kind, "after", w.batch.After.ID, "up_to", purged.Next.ID, "error", err)
	}
	w.passed(purged)
	if purged.Removed == 0 {
		return nil
	}
	p.removed[w.batch.Kind] += purged.Removed
	if !p.dryRun {
		p.observer.Purged(w.batch.Kind, purged.Removed)
		if w.batch.Kind == PurgeDeadEvents {
			p.changed()
		}
	}
	return nil
}

// hold takes or keeps the right to purge, unless it was kept just now.
func (p *purger) hold(ctx context.Context) (bool, error) {
	if p.holder == uuid.Nil || !p.heldAt.IsZero() && stopwatch().Sub(p.heldAt) < purgeSilence/5 {
		return true, nil
	}
	now := stopwatch()
	mine, err := p.store.HoldPurge(ctx, p.holder, purgeSilence)
	if p.heldAt = now; err != nil || !mine {
		p.heldAt = time.Time{}
	}
	return mine, err
}

// PurgeNow removes everything that is old, without pauses and beside whoever else does, or, in
// a dry run, tells how many of each kind that would be.
func PurgeNow(ctx context.Context, store RetentionStore, keep Retention, dryRun bool, log *slog.Logger) (map[PurgeKind]int, error) {
	p := newPurger(store, keep, log)
	p.holder, p.rest, p.dryRun = uuid.Nil, 0, dryRun
	err := p.round(ctx, 0)
	return p.removed, err
}

func newPurger(store RetentionStore, keep Retention, log *slog.Logger) *purger {
	return &purger{
		store: store, keep: keep, log: log, observer: nobody{}, changed: func() {}, holder: uuid.New(), rest: purgeRest,
		removed: map[PurgeKind]int{},
	}
}
