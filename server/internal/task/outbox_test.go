package task

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestEventsChanged_IsToldInEveryState: it takes one number of the timeline and changes nothing
// else, also after the end, and each call leaves an entry of its own.
func TestEventsChanged_IsToldInEveryState(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, state := range []ExecutionState{ExecutionCreated, ExecutionRunning, ExecutionCanceling, ExecutionSucceeded, ExecutionFailed, ExecutionCanceled} {
		before := ExecutionData{ID: uuid.New(), State: state, Round: 2, Revision: 9, Sequence: 4, EndEntry: 7}
		e := RestoreExecution(before)
		calls := []uuid.UUID{uuid.New(), uuid.New()}
		for _, call := range calls {
			e.EventsChanged(now, EventsChange{Done: "skipped", By: "operator", Call: call, Events: 2, First: 3, Last: 4, Reason: "why"})
		}
		c := e.TakeChanges(func(EventType) bool { return true })
		after := e.Data()
		if after.Revision != 11 || !c.Touched || c.Base != 9 || len(c.Entries) != 2 || len(c.Events) != 0 {
			t.Errorf("%s: revision %d, changes %+v", state, after.Revision, c)
		}
		if after.Revision = before.Revision; after != before {
			t.Errorf("%s: %+v became %+v", state, before, after)
		}
		en := c.Entries[0]
		if en.Milestone != "r2/outbox/skipped/"+calls[0].String() || en.Sequence != 10 || en.Stage != StageControl ||
			en.Details[EventsDetail] != "2" || en.Details["reason"] != "why" || en.Details["last_sequence"] != "4" {
			t.Errorf("%s: %+v", state, en)
		}
		if en.Milestone == c.Entries[1].Milestone {
			t.Errorf("%s: two calls, one milestone", state)
		}
	}
}
