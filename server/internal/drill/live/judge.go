package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	core "github.com/leasehold/leasehold/server/internal/drill"
	"github.com/leasehold/leasehold/server/internal/history"
)

// publishLimit is within which every event is published once work has ended: what a killed
// server had claimed is free again after 30 s.
const publishLimit = time.Minute

// compareLimit is for the comparison, which takes a second or two on a machine that is not busy.
const compareLimit = 2 * time.Minute

// judge says what became of a drill. It comes when the stage's drills are over, so that they do
// not have to wait one by one for events that a killed server had claimed.
func (x *exercise) judge(ctx context.Context) Result {
	r := Result{
		Name: x.drill.name, Line: x.drill.line, Outcome: Passed, Faults: x.faults, Recovery: seconds(x.slowest), Seconds: seconds(x.took),
		Notes: x.notes,
	}
	if x.err != nil {
		r.fail(x.err.Error())
		return r
	}
	for _, look := range append(x.later, x.allPublished) {
		if err := look(ctx); err != nil {
			r.fail(err.Error())
		}
	}
	r.Recovery, r.Notes = seconds(x.slowest), x.notes
	if err := x.compare(ctx, &r); err != nil {
		r.fail(err.Error())
	}
	return r
}

// allPublished waits until no event is on its way.
func (x *exercise) allPublished(ctx context.Context) error {
	return x.await(ctx, max(publishLimit, x.drill.publish), "published every event", none,
		`SELECT count(*) FROM outbox_events WHERE namespace = $1 AND status <> 'PUBLISHED'`, x.namespace)
}

// compare holds what every client was told against the tables.
func (x *exercise) compare(ctx context.Context, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, max(compareLimit, x.drill.publish))
	defer cancel()
	h, err := x.history()
	if err != nil {
		return err
	}
	if err := worthComparing(&h); err != nil {
		r.fail(err.Error())
	}
	conn, err := pgx.Connect(ctx, x.url)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	committed, err := history.Load(ctx, conn, x.namespace)
	if err != nil {
		return err
	}
	if x.gone != nil {
		var n int
		twice := x.gone.twice(h, &committed)
		h, n = x.gone.forget(h, &committed)
		r.note("%d accepted in the last moments are gone", n)
		for _, v := range twice {
			r.broke(v)
		}
	}
	if x.clockMoved {
		forgetTimes(&committed)
	}
	r.Attempts = len(committed.Attempts)
	for _, v := range history.CheckFinished(h, committed) {
		if !x.clockMoved || v.Rule != "kept" { // By a clock that is moved no lease lasts as long as was told.
			r.broke(v)
		}
	}
	broken, err := core.CheckPart(ctx, x.url, core.Part{Namespace: x.namespace, ClockMoved: x.clockMoved})
	for _, text := range broken {
		r.fail(text)
	}
	return err
}

// worthComparing: of a history in which a kind of call is missing nothing can be said.
func worthComparing(h *history.History) error {
	var enqueues, grants, reports int
	for i := range h.Ops {
		switch o := &h.Ops[i]; {
		case o.Outcome != history.OK:
		case o.Kind == history.Enqueue:
			enqueues++
		case o.Kind == history.Grant:
			grants++
		case o.Kind == history.Report:
			reports++
		}
	}
	if enqueues == 0 || grants == 0 || reports == 0 || len(h.Deliveries) == 0 {
		return fmt.Errorf("nothing to compare: %d enqueues, %d grants, %d reports and %d events were recorded", enqueues, grants, reports, len(h.Deliveries))
	}
	return nil
}

// forgetTimes makes all instants of PostgreSQL's clock the same, where that was set meanwhile. The
// order of what happened is that of the timeline.
func forgetTimes(c *history.Committed) {
	for i := range c.Attempts {
		a := &c.Attempts[i]
		a.LeasedAt, a.EndedAt, a.NextDue = min(a.LeasedAt, 1), min(a.EndedAt, 1), min(a.NextDue, 1)
	}
}

// history is that of all clients: in this process, in the workers', and the consumer of events.
func (x *exercise) history() (history.History, error) {
	parts := []history.History{x.recorder.History(), x.consumerOf(x.namespace).History()}
	for _, name := range x.load.histories {
		part, err := readHistory(name)
		if err != nil {
			return history.History{}, err
		}
		parts = append(parts, part)
	}
	return history.Merge(parts...)
}

// readHistory reads what a worker wrote; one that was killed at once has written nothing.
func readHistory(name string) (history.History, error) {
	file, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return (&history.Recorder{}).History(), nil
	}
	if err != nil {
		return history.History{}, fmt.Errorf("read what a worker did: %w", err)
	}
	defer file.Close()
	return history.Read(file)
}

// lostMoments are those of an asynchronous failover: what was committed between the end of the
// replication, which was at some instant between cut and cutOff, and the promotion is gone.
type lostMoments struct{ cut, cutOff, promoted int64 }

// forget leaves out of a history what was answered in the lost moments, and counts the
// executions that were accepted then and are not there.
func (l *lostMoments) forget(h history.History, c *history.Committed) (history.History, int) {
	executions, lost := map[uuid.UUID]bool{}, l.attempts(h, c)
	for i := range c.Executions {
		executions[c.Executions[i].ID] = true
	}
	kept, uncertain := history.History{Clock: h.Clock}, history.History{}
	granted := map[uuid.UUID]bool{}
	for _, o := range h.Ops {
		switch {
		case lost[o.Attempt]:
		case o.End == 0 || o.End <= l.cut || o.End > l.promoted:
			kept.Ops = append(kept.Ops, o)
			granted[o.Attempt] = granted[o.Attempt] || o.Kind == history.Grant
		case o.Begin <= l.cutOff:
			uncertain.Ops = append(uncertain.Ops, o)
		}
	}
	kept.Ops = slices.DeleteFunc(kept.Ops, func(o history.Op) bool { return o.Kind == history.Work && !granted[o.Attempt] })
	kept.Ops = append(kept.Ops, uncertain.Until(l.cut).Ops...)
	gone := 0
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Kind == history.Enqueue && o.Outcome == history.OK && o.End > l.cut && o.End <= l.promoted && !executions[o.Execution] {
			gone++
		}
	}
	return kept, gone
}

// attempts are those that are gone and may be: they were granted in the lost moments.
func (l *lostMoments) attempts(h history.History, c *history.Committed) map[uuid.UUID]bool {
	gone := map[uuid.UUID]bool{}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Kind == history.Grant && o.End > l.cut && o.Begin <= l.promoted {
			gone[o.Attempt] = true
		}
	}
	for i := range c.Attempts {
		delete(gone, c.Attempts[i].ID)
	}
	return gone
}

// twice finds lease versions that were given in the lost moments, and again later.
func (l *lostMoments) twice(h history.History, c *history.Committed) (broken []history.Violation) {
	lost := l.attempts(h, c)
	versions := map[int64]uuid.UUID{}
	for i := range h.Ops {
		if o := &h.Ops[i]; o.Kind == history.Grant && lost[o.Attempt] {
			versions[o.Version] = o.Attempt
		}
	}
	for i := range c.Attempts {
		a := &c.Attempts[i]
		if before, again := versions[a.Version]; again {
			broken = append(broken, history.Violation{
				Rule: "versions", Text: fmt.Sprintf("version %d was of attempt %s, which is gone, and is of attempt %s", a.Version, before, a.ID),
			})
		}
	}
	return broken
}
