package scheduler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
)

// returns notes what is handed back; the rest of the store is not there.
type returns struct {
	dispatchStore
	got chan []Undelivered
}

func (r *returns) Return(_ context.Context, grants []Undelivered) error {
	r.got <- grants
	return nil
}

func newReturnsDispatcher() (*dispatcher, *returns) {
	store := &returns{got: make(chan []Undelivered, 1)}
	d := newDispatcher(store, newPresence(store, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler), 10, defaultMessage)
	d.tell = func(...Hint) {}
	return d, store
}

// A grant whose caller has left is handed back, once and with its own version and delivery.
// Caught: nothing handed back; handed back although it was delivered.
func TestDelivery_HandsBackWhatNobodyHears(t *testing.T) {
	t.Parallel()
	lease := LeaseView{AttemptID: uuid.New(), LeaseVersion: 7, Delivery: firstDelivery}
	want := Undelivered{AttemptID: lease.AttemptID, LeaseVersion: 7, Delivery: firstDelivery}

	d, store := newReturnsDispatcher()
	gone := &parkedPoll{answer: make(chan pollResult, 1)}
	gone.state.Store(pollGone)
	d.hand(gone, []LeaseView{lease}, stopwatch())
	d.beside.end()
	if got := <-store.got; len(got) != 1 || got[0] != want {
		t.Errorf("handed back %+v, want %+v", got, want)
	}

	here := &parkedPoll{answer: make(chan pollResult, 1)}
	d.hand(here, []LeaseView{lease}, stopwatch())
	d.beside.end()
	if len(store.got) != 0 {
		t.Error("a delivered grant was handed back")
	}
	if r := <-here.answer; len(r.Leases) != 1 {
		t.Errorf("answered %+v", r)
	}
}

// A replay is never handed back: the delivery before it may have reached the worker.
func TestDelivery_NeverHandsBackAReplay(t *testing.T) {
	t.Parallel()
	d, store := newReturnsDispatcher()
	gone := &parkedPoll{answer: make(chan pollResult, 1)}
	gone.state.Store(pollGone)
	d.hand(gone, []LeaseView{{AttemptID: uuid.New(), LeaseVersion: 7, Delivery: firstDelivery + 1}}, stopwatch())
	d.beside.end()
	if len(store.got) != 0 {
		t.Error("a replay was handed back")
	}
}

// A poll whose time is over while its grants are on their way gets them; without any it ends at once.
// Caught: they went back.
func TestPoll_AwaitsWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	d, store := newReturnsDispatcher()
	p := &parkedPoll{answer: make(chan pollResult, 1), granted: true}
	handed := make(chan struct{})
	time.AfterFunc(time.Millisecond, func() {
		defer close(handed)
		d.hand(p, []LeaseView{{AttemptID: uuid.New(), LeaseVersion: 9, Delivery: firstDelivery}}, stopwatch())
	})
	r := d.endWait(t.Context(), p)
	<-handed
	d.beside.end()
	if len(r.Leases) != 1 || len(store.got) != 0 {
		t.Errorf("answered %+v, and %d went back", r, len(store.got))
	}
	idle := &parkedPoll{answer: make(chan pollResult, 1)}
	if r := d.endWait(t.Context(), idle); len(r.Leases) != 0 || idle.state.Load() != pollGone {
		t.Errorf("an idle poll is answered %+v", r)
	}
}

// A caller that leaves while the answer is on its way takes it neither away nor with it.
func TestPoll_CallerThatLeavesHandsBackItsAnswer(t *testing.T) {
	t.Parallel()
	d, store := newReturnsDispatcher()
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := d.poll(ctx, Poll{WorkerID: uuid.New(), SessionID: uuid.New(), MaxLeases: 1, Wait: time.Minute})
		done <- err
	}()
	var parked *parkedPoll
	for parked == nil {
		d.polls.each(func(p *parkedPoll) { parked = p })
	}
	parked.state.Store(pollAnswered) // the answer is decided on, and not there yet
	leave()
	parked.answer <- pollResult{PollAnswer: PollAnswer{Leases: []LeaseView{{AttemptID: uuid.New(), LeaseVersion: 9, Delivery: firstDelivery}}}}
	if err := <-done; err == nil {
		t.Error("a caller that left was answered OK")
	}
	d.beside.end()
	if got := <-store.got; len(got) != 1 || got[0].LeaseVersion != 9 {
		t.Errorf("handed back %+v", got)
	}
}
