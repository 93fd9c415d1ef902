package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	snapshotSteps = 200              // of one read
	watchPause    = time.Second      // until a store that is away is asked again
	watchTimeout  = 15 * time.Second // of one read
)

// Update is what a watch tells: a part of a snapshot, or changes.
type Update struct {
	Snapshot *ExecutionView // with some of its steps; nil: Changes
	More     bool           // the snapshot goes on
	Changes  Changes
}

// Watch tells of an execution until it has ended and everything was told, which is no error: how
// it stands, unless after is a revision of it, then each change after that, in order, once and
// without a gap. tell may take its time; an error of its ends the watch.
//
// The parts of a snapshot are read one by one, so that later ones may show more than the first.
// Nothing is missed by that: the changes begin after the revision of the first.
func (s *Scheduler) Watch(ctx context.Context, execution uuid.UUID, after int64, tell func(Update) error) error {
	if err := s.watches.admit(); err != nil {
		return err
	}
	defer s.watches.leave()
	w := &watch{hub: s.watches, id: execution, at: after, tell: tell}
	return w.run(ctx)
}

// Watchers is how many watches are open.
func (s *Scheduler) Watchers() int { return s.watches.watchers() }

// watch is one caller's.
type watch struct {
	hub   *hub
	id    uuid.UUID
	at    int64 // everything up to here was told
	ended bool  // and that the execution has ended
	begun bool  // something was told
	tell  func(Update) error
}

func (w *watch) run(ctx context.Context) error {
	if err := w.begin(ctx); err != nil || w.ended {
		return err
	}
	t, rewound := w.hub.join(w.id, w.at)
	defer w.hub.part(t)
	for !w.ended {
		n := w.hub.news(t, w.at)
		var err error
		switch before := w.at; {
		case n.gone:
			err = w.missing()
		case n.rewound != rewound:
			rewound = n.rewound
			err = w.snapshot(ctx)
		case n.batch != nil:
			err = w.say(n.batch.changes, n.batch.to)
		case n.behind:
			if err = w.catchUp(ctx); err == nil && w.at == before { // it was rewound, and the hub does not know yet
				err = await(ctx, w.hub, n.moved)
			}
		default:
			err = await(ctx, w.hub, n.moved)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) begin(ctx context.Context) error {
	if w.at == 0 {
		return w.snapshot(ctx)
	}
	return w.catchUp(ctx)
}

// snapshot tells how the execution stands. Everything up to its revision is told by that.
func (w *watch) snapshot(ctx context.Context) error {
	var head *ExecutionView
	q := ExecutionQuery{ID: w.id, AfterOrdinal: -1, StepLimit: snapshotSteps, LastAttempt: true}
	for more := true; more; {
		var view *ExecutionView
		err := w.read(ctx, func(ctx context.Context) (err error) {
			view, more, err = w.hub.store.GetExecution(ctx, q)
			return err
		})
		if err != nil {
			return err
		}
		if head == nil {
			head = view
		}
		part := *head
		part.Steps, part.Now = view.Steps, view.Now
		if n := len(view.Steps); n > 0 {
			q.AfterOrdinal = view.Steps[n-1].Ordinal
		}
		if err := w.tell(Update{Snapshot: &part, More: more}); err != nil {
			return err
		}
		w.begun = true
	}
	w.at, w.ended = head.Revision, head.State.Terminal()
	return nil
}

// catchUp tells what came after what was told, as far as it goes now. It reads for this watch
// alone: where it resumes, and what it has missed of the hub's reads.
func (w *watch) catchUp(ctx context.Context) error {
	for {
		var changes []Changes
		err := w.read(ctx, func(ctx context.Context) (err error) {
			changes, err = w.hub.store.Changes(ctx, []Revision{{ID: w.id, Revision: w.at}}, readEntries)
			return err
		})
		switch {
		case err != nil:
			return err
		case len(changes) == 0:
			return w.missing()
		case changes[0].Execution.Revision < w.at:
			return w.snapshot(ctx)
		}
		if err := w.say(changes[0], changes[0].upTo(readEntries)); err != nil {
			return err
		}
		if w.at >= changes[0].Execution.Revision {
			return nil
		}
	}
}

// say tells the changes that were not told; they go up to a revision.
func (w *watch) say(c Changes, to int64) error {
	told := slices.IndexFunc(c.Entries, func(e ChangeView) bool { return e.Sequence > w.at })
	if told >= 0 {
		c.Entries = c.Entries[told:]
		if err := w.tell(Update{Changes: c}); err != nil {
			return err
		}
		w.begun = true
	}
	w.at, w.ended = to, to >= c.Execution.Revision && c.Execution.State.Terminal()
	return nil
}

// upTo is the revision up to which the entries go, of a read of at most so many.
func (c *Changes) upTo(limit int) int64 {
	if n := len(c.Entries); n >= limit {
		return c.Entries[n-1].Sequence
	}
	return c.Execution.Revision
}

// read reads. Once something was told a store that is away is waited for: the caller would only
// come again.
func (w *watch) read(ctx context.Context, f func(context.Context) error) error {
	for {
		limited, cancel := context.WithTimeout(ctx, watchTimeout)
		err := f(limited)
		cancel()
		var away *UnavailableError
		if !w.begun || !errors.As(err, &away) {
			return err
		}
		timer := time.NewTimer(watchPause)
		err = await(ctx, w.hub, timer.C)
		timer.Stop()
		if err != nil {
			return err
		}
	}
}

// await waits for a channel. The caller's leaving ends it, and the replica's end.
func await[T any](ctx context.Context, h *hub, c <-chan T) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.done:
		return &UnavailableError{Cause: errStopping, RetryAfter: time.Second}
	case <-c:
		return nil
	}
}

func (w *watch) missing() error { return &NotFoundError{Kind: KindExecution, ID: w.id.String()} }
