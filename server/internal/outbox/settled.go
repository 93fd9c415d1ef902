package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Settled is what becomes of a claimed event.
type Settled struct {
	ID     uuid.UUID
	Status Status
	Reason string        // why it was not acknowledged
	Tries  int           // that count against the limit
	Pause  time.Duration // until it is due again
}

// Settled tells what becomes of each event of a run: acknowledged, failed, or back untried.
func (r *RunResult) Settled() []Settled {
	list := make([]Settled, len(r.Run.Claimed))
	for i, id := range r.Run.Claimed {
		s := Settled{ID: id, Status: Pending}
		switch {
		case i < r.Published:
			s.Status, s.Tries = Published, 1
		case i == r.Published && r.Failure != nil:
			s.Status, s.Reason, s.Tries, s.Pause = Failed, r.Failure.Reason, 1, r.Failure.Again
			if r.Failure.Free {
				s.Tries = 0
			}
			if r.Failure.Dead {
				s.Status, s.Pause = Dead, 0
			}
		}
		list[i] = s
	}
	return list
}
