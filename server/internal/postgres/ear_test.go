package postgres_test

import (
	"maps"
	"sync"
	"time"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/task"
)

var _ postgres.Observer = (*ear)(nil)

// ear counts what stores tell of their transactions.
type ear struct {
	mu       sync.Mutex
	tries    map[string]int           // by use case
	lockWait map[string]time.Duration // by use case
	failures map[string]int           // by why
	ended    map[task.AttemptState]int
	again    int // attempts that are followed by another
	closed   map[task.ExecutionState]int
	hints    int
}

// count adds one under a key, in a map that may not be there yet.
func count[K comparable](m *map[K]int, key K) {
	if *m == nil {
		*m = map[K]int{}
	}
	(*m)[key]++
}

func (e *ear) Transaction(useCase string, _, lockWait time.Duration, failed string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	count(&e.tries, useCase)
	if failed != "" {
		count(&e.failures, failed)
	}
	if e.lockWait == nil {
		e.lockWait = map[string]time.Duration{}
	}
	e.lockWait[useCase] += lockWait
}

func (e *ear) AttemptEnded(outcome task.AttemptState, again bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	count(&e.ended, outcome)
	if again {
		e.again++
	}
}

func (e *ear) ExecutionEnded(state task.ExecutionState) {
	e.mu.Lock()
	defer e.mu.Unlock()
	count(&e.closed, state)
}

func (e *ear) HintsHeard() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hints++
}

// failed is how many tries failed for a reason.
func (e *ear) failed(why string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failures[why]
}

// outcomes are how attempts ended, how many of them are followed by another, and how
// executions ended.
func (e *ear) outcomes() (map[task.AttemptState]int, int, map[task.ExecutionState]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.ended), e.again, maps.Clone(e.closed)
}

// told fails unless the stores told of just those attempts and executions that ended, also
// where a commit's answer was lost.
func (s *stand) told(ears ...*ear) {
	s.t.Helper()
	again := 0
	counts := map[string]int{}
	for _, e := range ears {
		attempts, more, executions := e.outcomes()
		again += more
		for state, n := range attempts {
			counts["attempts "+string(state)] += n
		}
		for state, n := range executions {
			counts["executions "+string(state)] += n
		}
	}
	for table, states := range map[string][]string{
		"attempts":   {"SUCCEEDED", "FAILED", "TIMED_OUT", "LOST", "RELEASED", "CANCELED"},
		"executions": {"SUCCEEDED", "FAILED", "CANCELED"},
	} {
		for _, state := range states {
			if n := query[int](s, "SELECT count(*) FROM "+table+" WHERE state = $1", state); n != counts[table+" "+state] {
				s.t.Errorf("%s %s: told of %d, and the tables have %d", table, state, counts[table+" "+state], n)
			}
		}
	}
	if n := query[int](s, "SELECT count(*) FROM attempts WHERE next_due IS NOT NULL"); n != again {
		s.t.Errorf("told of %d retries, and the tables have %d", again, n)
	}
}
