package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// calm keeps a log bounded while something fails over and over, be it for each call or in each
// loop: of warnings with the same words the first is written, then one after a second, after
// two more, and so on up to one a minute, each with the number of those that were left out
// (alike_before). Once none has come for ten seconds, the next is a first one again. Errors are
// bugs, and all written; so is what is below a warning.
type calm struct {
	slog.Handler
	said *saidBefore // shared by the loggers that come of one
}

// saidBefore is what was said of late. The words are constants of the program, so there are few.
type saidBefore struct {
	mu   sync.Mutex
	when map[string]*repeated
}

// repeated is a warning that comes again and again.
type repeated struct {
	last, next time.Time // when it came last; when it may be written again
	pause      time.Duration
	left       int // out since it was written
}

const (
	firstQuiet = time.Second
	longQuiet  = time.Minute
	rest       = 10 * time.Second
)

func newCalm(h slog.Handler) *calm {
	return &calm{Handler: h, said: &saidBefore{when: map[string]*repeated{}}}
}

// Handle writes a record, or leaves it out.
func (c *calm) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && r.Level < slog.LevelError {
		left, write := c.said.again(r.Message, r.Time)
		if !write {
			return nil
		}
		if left > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("alike_before", left))
		}
	}
	return c.Handler.Handle(ctx, r)
}

// WithAttrs is a handler that adds attributes.
func (c *calm) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &calm{Handler: c.Handler.WithAttrs(attrs), said: c.said}
}

// WithGroup is a handler with a group.
func (c *calm) WithGroup(name string) slog.Handler {
	return &calm{Handler: c.Handler.WithGroup(name), said: c.said}
}

// again tells whether words are to be written now, and how often they were left out before.
func (s *saidBefore) again(words string, now time.Time) (left int, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.when[words]
	if r == nil || now.Sub(r.last) > rest {
		r = &repeated{}
		s.when[words] = r
	}
	r.last = now
	if now.Before(r.next) {
		r.left++
		return 0, false
	}
	left, r.left = r.left, 0
	r.pause = min(max(2*r.pause, firstQuiet), longQuiet)
	r.next = now.Add(r.pause)
	return left, true
}
