package postgres

import (
	"bytes"
	"context"

	"github.com/leasehold/leasehold/server/internal/postgres/internal/dbsqlc"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// wantedCapabilities are those of a batch that need a row. What is going to be refused, because its
// key was used with other content, makes none: a refused call leaves nothing behind. That costs a
// look at the keys, but only where a capability is new here.
func (s *Store) wantedCapabilities(ctx context.Context, batch []scheduler.NewExecution, allOrNothing bool) (map[capabilityKey]bool, error) {
	wanted := map[capabilityKey]bool{}
	for i := range batch {
		addCapabilities(wanted, &batch[i])
	}
	if s.remembers(wanted) {
		return wanted, nil
	}
	var e *enqueue
	err := s.tx(ctx, "look for keys", func(ctx context.Context, t *txn) error {
		e = &enqueue{batch: batch, known: map[capabilityKey]dbsqlc.FindExecutionsByKeyRow{}}
		return t.together(ctx, e.findExisting(ctx)...)
	})
	if err != nil {
		return nil, err
	}
	hashes := make(map[capabilityKey][]byte, len(e.known))
	for key, row := range e.known {
		hashes[key] = row.ContentHash
	}
	clear(wanted)
	for i := range batch {
		key := capabilityKey{batch[i].Spec.Namespace, batch[i].Spec.IdempotencyKey}
		hash, used := hashes[key]
		if key.name == "" || !used {
			hashes[key] = batch[i].Hash
			addCapabilities(wanted, &batch[i])
		} else if allOrNothing && !bytes.Equal(hash, batch[i].Hash) {
			return nil, nil //nolint:nilnil // none
		}
	}
	return wanted, nil
}

func addCapabilities(wanted map[capabilityKey]bool, n *scheduler.NewExecution) {
	for i := range n.Spec.Steps {
		wanted[capabilityKey{n.Spec.Namespace, n.Spec.Steps[i].Capability}] = true
	}
}

// remembers tells whether all of these were seen before.
func (s *Store) remembers(wanted map[capabilityKey]bool) bool {
	for k := range wanted {
		if _, seen := s.capabilities.Load(k); !seen {
			return false
		}
	}
	return true
}
