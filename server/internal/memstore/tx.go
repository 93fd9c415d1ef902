package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
)

var (
	// errStale says that a row was not as the transaction knew it: only a mistake of the
	// program does that.
	errStale = errors.New("a row is not as it was read")
	errFault = errors.New("the commit was made to fail")
)

// txn is a transaction under way, with how to take back what it did.
type txn struct {
	*Store
	at   time.Time
	undo []func()
}

// tx runs a function in a transaction. An error takes back all that it did.
func (s *Store) tx(ctx context.Context, name string, f func(t *txn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t := &txn{Store: s, at: s.now()}
	if err := f(t); err != nil {
		t.rollback()
		return err
	}
	if s.c.Fault == nil {
		return nil
	}
	switch s.c.Fault(name) {
	case Lost:
		t.rollback()
	case Unconfirmed:
	default:
		return nil
	}
	return &scheduler.UnavailableError{Cause: fmt.Errorf("%s: %w", name, errFault)}
}

// read runs a function on what is committed.
func (s *Store) read(f func(t *txn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&txn{Store: s, at: s.now()})
}

func (t *txn) rollback() {
	for _, undo := range slices.Backward(t.undo) {
		undo()
	}
}

// put writes a row.
func put[K comparable, V any](t *txn, rows map[K]V, k K, v V) {
	keep(t, rows, k)
	rows[k] = v
}

// drop deletes a row.
func drop[K comparable, V any](t *txn, rows map[K]V, k K) {
	keep(t, rows, k)
	delete(rows, k)
}

func keep[K comparable, V any](t *txn, rows map[K]V, k K) {
	old, there := rows[k]
	t.undo = append(t.undo, func() {
		if there {
			rows[k] = old
		} else {
			delete(rows, k)
		}
	})
}

// sorted lists the ids that a test lets pass, in order, so that nothing depends on a map's.
func sorted[V any](rows map[uuid.UUID]V, which func(V) bool) []uuid.UUID {
	var ids []uuid.UUID
	for id, row := range rows {
		if which(row) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, byID)
	return ids
}

func byID(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

func notFound(kind scheduler.Kind, id uuid.UUID) error {
	return &scheduler.NotFoundError{Kind: kind, ID: id.String()}
}
