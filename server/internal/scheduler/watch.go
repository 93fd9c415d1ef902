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
	watchTimeout  = 30 * time.Second // of one read
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
	if w.at == 0 {
		if err := w.snapshot(ctx); err != nil || w.ended {
			return err
		}
	}
	t, rewound := w.hub.join(w.id, w.at, w.begun)
	defer w.hub.part(t)
	for !w.ended {
		s, next := w.hub.news(t, w.at)
		var err error
		switch {
		case s.gone:
			err = w.missing()
		case s.rewound != rewound:
			err = w.rewind(ctx, s, rewound)
			rewound = s.rewound
		case next != nil:
			err = w.say(next.changes, next.to)
		case s.at != w.at:
			err = w.catchUp(ctx, s)
		case s.err != nil && !w.begun:
			err = s.err
		case s.ended:
			return nil
		default:
			err = await(ctx, w.hub, s.moved)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rewind tells the execution anew, if what was told of it may not be so any more.
func (w *watch) rewind(ctx context.Context, s standing, seen int) error {
	if w.at <= s.back && s.rewound == seen+1 {
		return nil
	}
	return w.snapshot(ctx)
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
// alone: where it resumes far back or beyond, and what it has missed of the hub's reads. If there
// is nothing, the hub does not know yet how far the execution has come, and is waited for.
func (w *watch) catchUp(ctx context.Context, s standing) error {
	for before := w.at; ; {
		var changes []Changes
		err := w.read(ctx, func(ctx context.Context) (err error) {
			changes, err = w.readAlone(ctx)
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
		switch {
		case w.ended || w.at > before && w.at >= changes[0].Execution.Revision:
			return nil
		case w.at >= changes[0].Execution.Revision:
			return await(ctx, w.hub, s.moved)
		}
	}
}

func (w *watch) readAlone(ctx context.Context) ([]Changes, error) {
	select {
	case w.hub.alone <- struct{}{}:
	case <-ctx.Done():
		return nil, &UnavailableError{Cause: ctx.Err(), RetryAfter: time.Second}
	}
	defer func() { <-w.hub.alone }()
	return w.hub.store.Changes(ctx, []Revision{{ID: w.id, Revision: w.at}}, readEntries)
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
	w.at, w.ended = to, c.endedAt(to)
	return nil
}

// endedAt tells whether the execution has ended, and nothing of it comes after a revision.
func (c *Changes) endedAt(revision int64) bool {
	return revision >= c.Execution.Revision && c.Execution.State.Terminal()
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
