package outbox

import (
	"context"
	"time"
)

// Backlog is what waits to be published, or was given up, as committed. Each is counted up to
// a limit of the store's.
type Backlog struct {
	Events map[Status]int // of the states that are not settled
	// OldestUnsent is the age of the oldest event that is on its way: neither DEAD nor behind
	// a DEAD one; 0: none.
	OldestUnsent time.Duration
}

// BacklogSource tells the backlog.
type BacklogSource interface {
	Backlog(ctx context.Context) (Backlog, error)
}

// Unsettled are the states in which an event waits, or was given up.
func Unsettled() []Status { return []Status{Pending, Publishing, Failed, Dead} }
