package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/leasehold/leasehold/server/internal/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// head is one event of an aggregate of its own, in a source in memory.
type head struct {
	event  outbox.Event
	status outbox.Status
	due    time.Time
	claim  uuid.UUID
	until  time.Time
}

// source keeps events in memory, one to an aggregate, and counts what it is asked.
type source struct {
	mu     sync.Mutex
	heads  map[uuid.UUID]*head
	queue  []*head // those that may be due
	claims int
	looks  int
	runs   int
	broken error         // of every claim
	slow   time.Duration // of a claim, which is committed at its end
}

func newSource(events int) *source {
	s := &source{heads: map[uuid.UUID]*head{}}
	for range events {
		h := &head{event: outbox.Event{ID: uuid.New(), AggregateID: uuid.New(), Sequence: 1}, status: outbox.Pending, due: time.Now()}
		s.heads[h.event.AggregateID] = h
		s.queue = append(s.queue, h)
	}
	return s
}

func (s *source) Claim(ctx context.Context, c outbox.Claim) ([]outbox.Run, error) {
	if s.slow > 0 {
		select {
		case <-time.After(s.slow):
		case <-ctx.Done(): // the caller does not hear of it
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims++
	if s.broken != nil {
		return nil, s.broken
	}
	var runs []outbox.Run
	left := s.queue[:0]
	for _, h := range s.queue {
		if len(runs) == c.Heads || time.Now().Before(h.due) || h.claim != uuid.Nil && time.Now().Before(h.until) {
			left = append(left, h)
			continue
		}
		h.status, h.claim, h.until = outbox.Publishing, c.ID, time.Now().Add(c.Expires)
		runs = append(runs, outbox.Run{
			Claim: c.ID, AggregateID: h.event.AggregateID, From: 1, Events: []outbox.Event{h.event}, Claimed: []uuid.UUID{h.event.ID},
		})
	}
	s.queue = left
	s.runs += len(runs)
	return runs, ctx.Err()
}

func (s *source) Settle(_ context.Context, results []outbox.RunResult) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range results {
		h := s.heads[r.Run.AggregateID]
		h.claim, h.due = uuid.Nil, time.Now()
		switch {
		case r.Published == 1:
			h.status = outbox.Published
			continue
		case r.Failure == nil:
			h.status = outbox.Pending
		case r.Failure.Dead:
			h.status = outbox.Dead
			h.event.Attempts++
			continue
		default:
			h.status, h.due = outbox.Failed, time.Now().Add(r.Failure.Again)
			if !r.Failure.Free {
				h.event.Attempts++
			}
		}
		s.queue = append(s.queue, h)
	}
	return 0, nil
}

func (s *source) NextDue(context.Context) (time.Duration, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	if len(s.queue) == 0 {
		return 0, false, nil
	}
	next := slices.MinFunc(s.queue, func(a, b *head) int { return a.due.Compare(b.due) })
	return time.Until(next.due), true, nil
}

// counts tells how many events have each status.
func (s *source) counts() map[outbox.Status]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[outbox.Status]int{}
	for _, h := range s.heads {
		n[h.status]++
	}
	return n
}

// attempts are those of all events that count.
func (s *source) attempts() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.heads {
		n += h.event.Attempts
	}
	return n
}

// claimed are the runs so far.
func (s *source) claimed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// asked are the questions so far.
func (s *source) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims + s.looks
}

// answers is a sink that is a function.
type answers func(ctx context.Context) error

func (a answers) Publish(ctx context.Context, _ *outbox.Event) error { return a(ctx) }

func (a answers) Close() error { return nil }

// logged takes what a relay logs.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(strings.Lines(l.text.String()))
}

// relay runs one; stop ends it and tells how long that took.
func relay(t *testing.T, c outbox.Config) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = outbox.NewRelay(c).Run(ctx) }()
	stop = func() time.Duration {
		began := time.Now()
		cancel()
		<-done
		return time.Since(began)
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

var errBroken = errors.New("broken")
