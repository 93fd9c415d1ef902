package outbox_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

// endless is a store in which there is always more to change; a batch takes its time.
type endless struct {
	took    time.Duration
	batches int
	failing int // the batch that fails; 0: none
	calls   map[uuid.UUID]bool
}

func (e *endless) ListEvents(context.Context, outbox.ListQuery) (outbox.EventPage, error) {
	return outbox.EventPage{}, nil
}

func (e *endless) ChangeEvents(_ context.Context, c outbox.Change) (outbox.Changed, error) {
	time.Sleep(e.took)
	e.batches++
	e.calls[c.Call] = true
	if e.batches == e.failing {
		return outbox.Changed{}, errNot
	}
	return outbox.Changed{Events: 3, Executions: 1, Next: c.Call, More: true}, nil
}

var errNot = errors.New("not this one")

// A call answers before its caller stops waiting, with what it has done. Caught: a call that
// goes on until its deadline, after which nobody hears of what was done.
func TestChange_AnswersInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &endless{took: 300 * time.Millisecond, calls: map[uuid.UUID]bool{}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		total, err := outbox.NewOperator(store, nil).Change(ctx, outbox.Skip, outbox.Selection{}, "")
		if err != nil || !total.More || total.Events != 3*store.batches || store.batches < 25 || ctx.Err() != nil {
			t.Errorf("%+v, %v after %d batches", total, err, store.batches)
		}
		if len(store.calls) != 1 {
			t.Errorf("one call has %d ids", len(store.calls))
		}
		total, err = outbox.NewOperator(store, nil).Change(t.Context(), outbox.Skip, outbox.Selection{}, "") // without a deadline
		if err != nil || !total.More {
			t.Errorf("a call without a deadline: %+v, %v", total, err)
		}
	})
}

// The relay is woken for what became due, and what was done is told beside an error.
func TestChange_WakesAndTells(t *testing.T) {
	t.Parallel()
	store := &endless{failing: 3, calls: map[uuid.UUID]bool{}}
	woken := 0
	total, err := outbox.NewOperator(store, func() { woken++ }).Change(t.Context(), outbox.Redrive, outbox.Selection{}, "")
	if !errors.Is(err, errNot) || total.Events != 6 || woken != 2 {
		t.Errorf("%+v, %v, woken %d times", total, err, woken)
	}
}
