package task

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// EventsChange tells what was done with events of an execution that waited to be published.
type EventsChange struct {
	Done   string    // in a word: redriven, skipped, ...
	By     string    // the part of the service that did it
	Call   uuid.UUID // that asked for it: one entry each
	Events int
	First  int64 // the lowest and the highest sequence among them
	Last   int64
	Reason string
}

// EventsChangedMilestone is the key of the entry that a call leaves.
func (e *Execution) EventsChangedMilestone(done string, call uuid.UUID) string {
	return fmt.Sprintf("r%d/outbox/%s/%s", e.d.Round, done, call)
}

// EventsChanged tells it in the timeline. It is possible in every state, and changes none.
func (e *Execution) EventsChanged(now time.Time, c EventsChange) {
	details := map[string]string{
		EventsDetail: strconv.Itoa(c.Events), "first_sequence": strconv.FormatInt(c.First, 10), "last_sequence": strconv.FormatInt(c.Last, 10),
	}
	if c.Reason != "" {
		details["reason"] = c.Reason
	}
	e.entry(Entry{
		Milestone: e.EventsChangedMilestone(c.Done, c.Call), Stage: StageControl, Component: c.By,
		Title: "Outbox events " + c.Done, At: now, Details: details,
	})
}

// EventsDetail is the name under which such an entry keeps the number of events.
const EventsDetail = "events"
