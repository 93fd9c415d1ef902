package consumer_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/api/consumer"
)

// postgresTokens shares tokens between processes, in the table of Fence.
type postgresTokens struct{ pool *pgxpool.Pool }

func (s postgresTokens) Raise(ctx context.Context, resource string, token int64) (greatest int64, err error) {
	err = s.pool.QueryRow(ctx, `
		INSERT INTO leasehold_fences AS f (resource, token) VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET token = greatest(f.token, EXCLUDED.token)
		RETURNING f.token`, resource, token).Scan(&greatest)
	return greatest, err
}

// TestGuard runs the same on both stores. Breaks seen to fail: no comparison in Do; no turns.
func TestGuard(t *testing.T) {
	t.Parallel()
	for name, tokens := range map[string]func(*testing.T) consumer.Tokens{
		"memory":     func(*testing.T) consumer.Tokens { return &consumer.MemoryTokens{} },
		"PostgreSQL": func(t *testing.T) consumer.Tokens { return postgresTokens{newDatabase(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			guardRefusesSmaller(t, consumer.NewGuard(tokens(t)))
			guardUnderRace(t, consumer.NewGuard(tokens(t)))
		})
	}
}

func guardRefusesSmaller(t *testing.T, guard *consumer.Guard) {
	t.Helper()
	wrong := errors.New("paper jam")
	for _, step := range []struct {
		token, refusedBy int64
		fails            error
	}{{5, 0, nil}, {5, 0, nil}, {4, 5, nil}, {9, 0, wrong}, {5, 9, nil}, {9, 0, nil}} {
		ran := false
		err := guard.Do(t.Context(), "printer", step.token, func(context.Context) error {
			ran = true
			return step.fails
		})
		if refusedBy(err) != step.refusedBy || ran != (step.refusedBy == 0) || (step.refusedBy == 0 && !errors.Is(err, step.fails)) {
			t.Errorf("%+v: ran %v, %v", step, ran, err)
		}
	}
	if err := guard.Do(t.Context(), "door", 1, func(context.Context) error { return nil }); err != nil {
		t.Errorf("another resource: %v", err)
	}
}

func guardUnderRace(t *testing.T, guard *consumer.Guard) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		paper []int64 // what the guard lets one at a time write to
	)
	for _, token := range rand.Perm(300) {
		wg.Go(func() {
			err := guard.Do(t.Context(), "copier", int64(token+1), func(context.Context) error {
				paper = append(paper, int64(token+1))
				return nil
			})
			if err != nil && refusedBy(err) <= int64(token+1) {
				t.Errorf("token %d: %v", token+1, err)
			}
		})
	}
	wg.Wait()
	if len(paper) == 0 || !slices.IsSorted(paper) || paper[len(paper)-1] != 300 {
		t.Errorf("written in this order: %v", paper)
	}
}

func TestGuard_WaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	guard := consumer.NewGuard(&consumer.MemoryTokens{})
	given := errors.New("given up")
	err := guard.Do(t.Context(), "printer", 1, func(ctx context.Context) error {
		waiting, giveUp := context.WithCancelCause(ctx)
		giveUp(given)
		for range 50 { // a guard without turns would let about half of them in
			err := guard.Do(waiting, "printer", 2, func(context.Context) error {
				t.Error("two at once")
				return nil
			})
			if !errors.Is(err, given) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("Do: %v, want the cause each time", err)
	}
	if err := guard.Do(t.Context(), "printer", 1, func(context.Context) error { return nil }); err != nil {
		t.Errorf("after it: %v: who gave up was not seen", err)
	}
}

// forgetful is a store that fails.
type forgetful struct{ err error }

func (f forgetful) Raise(context.Context, string, int64) (int64, error) { return 0, f.err }

func TestGuard_NothingWithoutItsTokens(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	guard := consumer.NewGuard(forgetful{away})
	err := guard.Do(t.Context(), "printer", 1, func(context.Context) error {
		t.Error("changed without a token")
		return nil
	})
	if !errors.Is(err, away) {
		t.Errorf("Do: %v, want the store's error", err)
	}
}

func TestMemoryTokens_Forget(t *testing.T) {
	t.Parallel()
	tokens := &consumer.MemoryTokens{}
	for _, token := range []int64{9, 3} {
		if newest, err := tokens.Raise(t.Context(), "printer", token); err != nil || newest != 9 {
			t.Errorf("Raise %d: %d, %v, want 9", token, newest, err)
		}
	}
	tokens.Forget("printer")
	if newest, err := tokens.Raise(t.Context(), "printer", 3); err != nil || newest != 3 {
		t.Errorf("Raise after Forget: %d, %v, want 3", newest, err)
	}
}
