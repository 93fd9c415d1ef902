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
