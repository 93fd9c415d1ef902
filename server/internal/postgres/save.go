package postgres

import (
	"context"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/task"
)

// writes gathers what a transaction has to write, in the form of array statements.
type writes struct {
	executions dbsqlc.UpdateExecutionsParams
	steps      dbsqlc.UpdateStepsParams
	ended      dbsqlc.EndAttemptsParams
	tallies    map[endKey]int32
	requests   dbsqlc.InsertRequestsParams
	timers     dbsqlc.PutTimersParams
	entries    dbsqlc.InsertEntriesParams
	events     dbsqlc.InsertEventsParams
	dropped    []uuid.UUID
	expected   int // rows of a table, more or less
	stopped    dbsqlc.StopLeasesParams
	untimed    []uuid.UUID // closed executions that may have timers
}

// save writes what the domain decided of every locked execution.
func (g *gate) save(ctx context.Context) error {
	return g.t.together(ctx, g.writes().calls(ctx)...)
}

// writes are what the domain decided of every locked execution.
func (g *gate) writes() *writes {
	w := &writes{tallies: map[endKey]int32{}, expected: len(g.stepOf)}
	reserve(&w.executions, len(g.execs))
	for id, e := range g.execs {
		c := e.TakeChanges(g.t.s.selects)
		if !c.Touched {
			continue
		}
		d := e.Data()
		w.execution(&d, c.Base)
		w.changes(&d, &c)
		g.count(w.tallies, c.Ended)
		g.t.tally.add(&d, &c)
		if c.Closed && g.timed[id] {
			w.untimed = append(w.untimed, id)
		}
		if c.Stopped && d.CancelDeadline != nil {
			w.stop(e, &d)
		}
	}
	return w
}

func (s *Store) selects(t task.EventType) bool { return s.selected[t] }

func (w *writes) changes(d *task.ExecutionData, c *task.Changes) {
	for _, s := range c.Steps {
		w.step(s.Data())
	}
	for _, a := range c.Ended {
		w.end(a.Data())
	}
	for _, r := range c.Requests {
		w.request(r)
	}
	for _, t := range c.Timers {
		w.timer(d.ID, t)
	}
	for i := range c.Entries {
		w.entry(d.ID, &c.Entries[i])
	}
	for i := range c.Events {
		w.event(d, &c.Events[i])
	}
	w.dropped = append(w.dropped, c.Dropped...)
}

// calls write everything, the scheduling requests first and the outbox last. Whoever makes them
// holds the executions, so that requests are only taken where nobody else has them. Statements that
// must change every row of theirs see to that themselves, so that a COMMIT may be sent with them.
func (w *writes) calls(ctx context.Context) []call {
	var list []call
	add := func(what string, n int, do func(q *dbsqlc.Queries) error) {
		if n > 0 {
			list = append(list, func(q *dbsqlc.Queries) error { return wrap(what, stale(do(q))) })
		}
	}
	add("drop requests", len(w.dropped), func(q *dbsqlc.Queries) error { _, err := q.DropRequests(ctx, w.dropped); return err })
	add("update executions", len(w.executions.Ids), func(q *dbsqlc.Queries) error { return q.UpdateExecutions(ctx, w.executions) })
	add("update steps", len(w.steps.Ids), func(q *dbsqlc.Queries) error { return q.UpdateSteps(ctx, w.steps) })
	add("lock leases to stop", len(w.stopped.AttemptIds), func(q *dbsqlc.Queries) error { _, err := q.LockLeasesWaiting(ctx, w.stopped.AttemptIds); return err })
	add("stop leases", len(w.stopped.AttemptIds), func(q *dbsqlc.Queries) error { return q.StopLeases(ctx, w.stopped) })
	add("end attempts", len(w.ended.Ids), func(q *dbsqlc.Queries) error { return q.EndAttempts(ctx, w.ended) })
	add("tally attempts", len(w.tallies), func(q *dbsqlc.Queries) error { return q.InsertTallies(ctx, talliesOf(w.tallies)) })
	add("insert requests", len(w.requests.StepIds), func(q *dbsqlc.Queries) error { return q.InsertRequests(ctx, w.requests) })
	add("put timers", len(w.timers.ExecutionIds), func(q *dbsqlc.Queries) error { return q.PutTimers(ctx, w.timers) })
	add("drop timers", len(w.untimed), func(q *dbsqlc.Queries) error { return q.DropTimers(ctx, w.untimed) })
	add("insert entries", len(w.entries.ExecutionIds), func(q *dbsqlc.Queries) error { return q.InsertEntries(ctx, w.entries) })
	add("insert events", len(w.events.Ids), func(q *dbsqlc.Queries) error { return q.InsertEvents(ctx, w.events) })
	add("put heads", len(w.events.Ids), func(q *dbsqlc.Queries) error {
		return q.PutHeads(ctx, dbsqlc.PutHeadsParams{AggregateIds: w.events.AggregateIds, Sequences: w.events.Sequences})
	})
	return list
}

// endKey is what ended attempts are counted by.
type endKey struct {
	capability int32
	state      task.AttemptState
}

// count counts attempts that ended, for the statistics of their capabilities.
func (g *gate) count(tallies map[endKey]int32, ended []*task.Attempt) {
	for _, a := range ended {
		d := a.Data()
		tallies[endKey{g.capabilities[d.StepID], d.State}]++
	}
}

func talliesOf(tallies map[endKey]int32) (p dbsqlc.InsertTalliesParams) {
	for k, n := range tallies {
		p.CapabilityIds = append(p.CapabilityIds, k.capability)
		p.States = append(p.States, string(k.state))
		p.Counts = append(p.Counts, n)
	}
	return p
}

func (w *writes) execution(d *task.ExecutionData, base int64) {
	p := &w.executions
	p.Ids = append(p.Ids, d.ID)
	p.States = append(p.States, string(d.State))
	p.Rounds = append(p.Rounds, int32(d.Round))
	p.Stoppings = append(p.Stoppings, d.Stopping)
	p.DueAts = append(p.DueAts, instant(d.DueAt))
	p.StartedAts = append(p.StartedAts, maybeInstant(d.StartedAt))
	p.EndedAts = append(p.EndedAts, maybeInstant(d.EndedAt))
	p.Deadlines = append(p.Deadlines, maybeInstant(d.Deadline))
	p.CancelDeadlines = append(p.CancelDeadlines, maybeInstant(d.CancelDeadline))
	p.CancelReasons = append(p.CancelReasons, d.CancelReason)
	p.Failures = append(p.Failures, jsonOf(d.Failure))
	p.Bases = append(p.Bases, base)
	p.Revisions = append(p.Revisions, d.Revision)
	p.Sequences = append(p.Sequences, d.Sequence)
	p.EndEntries = append(p.EndEntries, d.EndEntry)
	p.OpenSteps = append(p.OpenSteps, int32(d.OpenSteps))
	p.UnsuccessfulSteps = append(p.UnsuccessfulSteps, int32(d.UnsuccessfulSteps))
	p.LiveAttempts = append(p.LiveAttempts, int32(d.LiveAttempts))
}

func (w *writes) step(d task.StepData) {
	p := &w.steps
	if p.Ids == nil {
		reserve(p, w.expected)
	}
	p.Ids = append(p.Ids, d.ID)
	p.States = append(p.States, storedState(d.State))
	p.WaitingParents = append(p.WaitingParents, int32(d.WaitingParents))
	p.OpenedAts = append(p.OpenedAts, maybeInstant(d.OpenedAt))
	p.AttemptsEnded = append(p.AttemptsEnded, int32(d.AttemptsEnded))
	p.Counted = append(p.Counted, int32(d.Counted))
	p.Failures = append(p.Failures, int32(d.Failures))
	p.LostInRow = append(p.LostInRow, int32(d.LostInRow))
	p.ReleasedInRow = append(p.ReleasedInRow, int32(d.ReleasedInRow))
	p.LastFailures = append(p.LastFailures, jsonOf(d.Failure))
	p.StoppedBecause = append(p.StoppedBecause, d.StoppedBecause)
	p.ParentBytes = append(p.ParentBytes, int32(d.ParentBytes))
	p.OutputBytes = append(p.OutputBytes, int32(d.OutputBytes))
	p.CheckpointBytes = append(p.CheckpointBytes, int32(d.CheckpointBytes))
}

func (w *writes) end(d task.AttemptData) {
	p := &w.ended
	if p.Ids == nil {
		reserve(p, w.expected)
	}
	p.Ids = append(p.Ids, d.ID)
	p.States = append(p.States, string(d.State))
	p.Reasons = append(p.Reasons, d.Reason)
	p.EndedAts = append(p.EndedAts, maybeInstant(d.EndedAt))
	p.NextDues = append(p.NextDues, maybeInstant(d.NextDue))
	p.Failures = append(p.Failures, jsonOf(d.Failure))
	p.Outcomes = append(p.Outcomes, d.Outcome)
	p.EndEntries = append(p.EndEntries, d.EndEntry)
}

func (w *writes) request(r task.Request) {
	p := &w.requests
	if p.StepIds == nil {
		reserve(p, w.expected)
	}
	p.StepIds = append(p.StepIds, r.StepID)
	p.AttemptNumbers = append(p.AttemptNumbers, int32(r.Number))
	p.AvailableAts = append(p.AvailableAts, instant(r.Due))
	p.AnswerBytes = append(p.AnswerBytes, int32(r.AnswerBytes))
}

func (w *writes) timer(execution uuid.UUID, t task.Timer) {
	p := &w.timers
	p.ExecutionIds = append(p.ExecutionIds, execution)
	p.Kinds = append(p.Kinds, string(t.Kind))
	step := uuid.Nil
	if t.StepID != nil {
		step = *t.StepID
	}
	p.StepIds = append(p.StepIds, step)
	p.FiresAts = append(p.FiresAts, instant(t.At))
}

func (w *writes) entry(execution uuid.UUID, e *task.Entry) {
	p := &w.entries
	p.ExecutionIds = append(p.ExecutionIds, execution)
	p.Sequences = append(p.Sequences, e.Sequence)
	p.Milestones = append(p.Milestones, e.Milestone)
	p.Stages = append(p.Stages, string(e.Stage))
	p.Components = append(p.Components, e.Component)
	p.Titles = append(p.Titles, e.Title)
	p.StepNames = append(p.StepNames, e.StepName)
	p.AttemptNumbers = append(p.AttemptNumbers, int32(e.AttemptNumber))
	p.LeaseVersions = append(p.LeaseVersions, e.LeaseVersion)
	worker := uuid.Nil
	if e.WorkerID != nil {
		worker = *e.WorkerID
	}
	p.WorkerIds = append(p.WorkerIds, worker)
	p.Ats = append(p.Ats, instant(e.At))
	p.Details = append(p.Details, jsonMap(e.Details))
}

func (w *writes) event(d *task.ExecutionData, e *task.Event) {
	p := &w.events
	p.Ids = append(p.Ids, newID())
	p.Namespaces = append(p.Namespaces, d.Namespace)
	p.AggregateIds = append(p.AggregateIds, d.ID)
	p.EventTypes = append(p.EventTypes, string(e.Type))
	p.Sequences = append(p.Sequences, e.Sequence)
	p.Payloads = append(p.Payloads, jsonOf(e))
	p.CreatedAts = append(p.CreatedAts, instant(e.At))
}

// stop gives the live leases of an execution the end of its grace.
func (w *writes) stop(e *task.Execution, d *task.ExecutionData) {
	for _, s := range e.Steps() {
		if a := s.Live(); a != nil {
			w.stopped.AttemptIds = append(w.stopped.AttemptIds, a.Data().ID)
			w.stopped.CancelAts = append(w.stopped.CancelAts, instant(*d.CancelDeadline))
		}
	}
}
