package memstore

import (
	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// EventsAfter are the committed events of an execution after a sequence, in order.
func (s *Store) EventsAfter(aggregate uuid.UUID, after int64) (list []outbox.Event) {
	s.read(func(t *txn) {
		for {
			e, there := t.events[eventKey{aggregate, after + int64(len(list)) + 1}]
			if !there {
				return
			}
			list = append(list, e.Event)
		}
	})
	return list
}
