package consumer

import (
	"context"
	"fmt"
	"sync"
)

// Guard is the fence of a resource that is not in PostgreSQL: a file, a device, a service that
// knows no tokens. All changes of the resource go through it, one at a time, and it refuses
// those with a smaller token than one that came before.
//
// It is as good as its place. It guards what goes through this Guard, in this process, and
// nothing else: so it belongs where the resource is, in the one process that all workers ask
// to change it, and not into each worker, where it would see that worker's own tokens only.
// Where several processes change the resource, a shared Tokens refuses late comers among all
// of them, but a change that has begun in one process is not waited for in another.
type Guard struct {
	tokens Tokens

	mu    sync.Mutex
	turns map[string]*turn // of resources that somebody changes or waits for
}

// turn is one resource's: who can send to it has it.
type turn struct {
	taken chan struct{} // capacity 1
	users int           // guarded by Guard.mu
}

// Tokens remembers the greatest token of each resource.
type Tokens interface {
	// Raise remembers token unless a greater one is known, and returns the greatest that is
	// known then, in one step that no other call comes between.
	Raise(ctx context.Context, resource string, token int64) (greatest int64, err error)
}

// NewGuard returns a guard that keeps its tokens there.
func NewGuard(tokens Tokens) *Guard {
	return &Guard{tokens: tokens, turns: make(map[string]*turn)}
}

// Do runs change while nobody else changes the resource through this guard, unless a greater
// token than this lease version was seen; then it returns a *StaleTokenError. An equal token
// passes. A token counts as seen even if change fails. Errors: ctx's, if it ends while others
// have their turn; those of Tokens; those of change as they are.
func (g *Guard) Do(ctx context.Context, resource string, token int64, change func(ctx context.Context) error) error {
	leave, err := g.enter(ctx, resource)
	if err != nil {
		return fmt.Errorf("guard %q: %w", resource, err)
	}
	defer leave()
	newest, err := g.tokens.Raise(ctx, resource, token)
	if err != nil {
		return fmt.Errorf("guard %q: remember token %d: %w", resource, token, err)
	}
	if newest > token {
		return &StaleTokenError{Resource: resource, Token: token, Newest: newest}
	}
	return change(ctx)
}

// enter waits for the resource's turn, and returns how to give it back.
func (g *Guard) enter(ctx context.Context, resource string) (leave func(), err error) {
	g.mu.Lock()
	t := g.turns[resource]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		g.turns[resource] = t
	}
	t.users++
	g.mu.Unlock()

	forget := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(g.turns, resource)
		}
	}
	select {
	case t.taken <- struct{}{}:
		return func() { <-t.taken; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, context.Cause(ctx)
	}
}

// MemoryTokens keeps tokens in this process. It forgets them when the process ends, and then
// takes the first token that comes: long enough for a resource that lives and ends with the
// process, too short for any other. The zero value is ready.
type MemoryTokens struct {
	mu     sync.Mutex
	newest map[string]int64
}

var _ Tokens = (*MemoryTokens)(nil)

// Raise is that of Tokens; it never fails.
func (m *MemoryTokens) Raise(_ context.Context, resource string, token int64) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest == nil {
		m.newest = make(map[string]int64)
	}
	m.newest[resource] = max(m.newest[resource], token)
	return m.newest[resource], nil
}

// Forget drops a resource that is gone: when no lease on it can be live any more.
func (m *MemoryTokens) Forget(resource string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.newest, resource)
}
