package postgres_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// eventsMatch checks that the outbox tells exactly what the tables do, all types selected.
func (s *stand) eventsMatch() {
	s.t.Helper()
	const prefix = `'leasehold.`
	checks := map[string]string{
		"attempts leased": `SELECT (SELECT count(*) FROM attempts) - (SELECT count(*) FROM outbox_events WHERE event_type = ` + prefix + `attempt.v1.leased')`,
		"enqueued":        `SELECT (SELECT count(*) FROM executions) - (SELECT count(*) FROM outbox_events WHERE event_type = ` + prefix + `execution.v1.enqueued')`,
		"started": `SELECT (SELECT count(*) FROM executions WHERE started_at IS NOT NULL) -
			(SELECT count(*) FROM outbox_events WHERE event_type = ` + prefix + `execution.v1.started')`,
		"heads": `SELECT count(DISTINCT aggregate_id) - (SELECT count(*) FROM outbox_heads) FROM outbox_events`,
	}
	for table, states := range map[string][]string{
		"attempt":   {"SUCCEEDED", "FAILED", "TIMED_OUT", "LOST", "RELEASED", "CANCELED"},
		"step":      {"SUCCEEDED", "FAILED", "SKIPPED", "CANCELED"},
		"execution": {"SUCCEEDED", "FAILED", "CANCELED"},
	} {
		for _, state := range states {
			checks[table+" "+state] = `SELECT (SELECT count(*) FROM ` + table + `s WHERE state = '` + state + `') -
				(SELECT count(*) FROM outbox_events WHERE event_type = ` + prefix + table + `.v1.` + strings.ToLower(state) + `')`
		}
	}
	for what, statement := range checks {
		if n := query[int](s, statement); n != 0 {
			s.t.Errorf("%s: the tables have %d more than the outbox", what, n)
		}
	}
}

// eventsOf lists the types of an execution's events in order, without what they share.
func (s *stand) eventsOf() []string {
	s.t.Helper()
	types := query[[]string](s, "SELECT array_agg(event_type ORDER BY sequence) FROM outbox_events")
	for i := range types {
		types[i] = strings.TrimPrefix(strings.ReplaceAll(types[i], ".v1.", "."), "leasehold.")
	}
	return types
}

// twoSteps runs a after which comes b; a fails once, b for good.
func (s *stand) twoSteps() {
	s.t.Helper()
	s.enqueue(spec("a", 2, func(e *task.ExecutionSpec) {
		e.Steps[1].DependsOn = []string{e.Steps[0].Name}
		e.Steps[1].Retry.MaximumAttempts = 1
	}))
	w := s.register("w", "a", 5)
	for _, outcome := range []func(scheduler.LeaseView) scheduler.Report{failure, success, failure} {
		s.eventually("the next attempt", func() bool {
			leases := s.lease(w, 1, time.Minute)
			for _, l := range leases {
				if _, err := s.report(outcome(l)); err != nil {
					s.t.Fatal(err)
				}
			}
			return len(leases) == 1
		})
	}
}

// Caught: a transition without its event, an event without its transition, or in another order
// than it happened; a sequence with gaps (sane).
func TestOutbox_TellsEveryTransitionInOrder(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.twoSteps()
	want := []string{
		"execution.enqueued", "execution.started", "attempt.leased", "attempt.failed", "step.retry_scheduled",
		"attempt.leased", "attempt.succeeded", "step.succeeded", "attempt.leased", "attempt.failed", "step.failed", "execution.failed",
	}
	got := s.eventsOf()
	if started := slices.Index(got, "execution.started"); started == 2 { // with the first lease: either may come first
		got[1], got[2] = got[2], got[1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	s.eventsMatch()
	s.sane()
}

// Caught: rows of types that were not selected, a sequence that counts them, rows where no
// sink is.
func TestOutbox_Selection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []task.EventType
		want   []string
	}{
		"default": {task.DefaultEventTypes(), []string{"step.succeeded", "step.failed", "execution.failed"}},
		"one":     {[]task.EventType{task.EventAttemptFailed}, []string{"attempt.failed", "attempt.failed"}},
		"none":    {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := standOn(t, databases.New(t), postgres.Config{Events: c.events})
			s.twoSteps()
			if got := s.eventsOf(); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if n := query[int](s, "SELECT sequence FROM executions"); n != len(c.want) {
				t.Errorf("the sequence stands at %d after %d events", n, len(c.want))
			}
			if n := query[int](s, "SELECT count(*) FROM outbox_heads"); n != min(len(c.want), 1) {
				t.Errorf("%d heads", n)
			}
			s.sane()
		})
	}
}
