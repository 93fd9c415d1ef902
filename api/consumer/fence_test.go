package consumer_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/api/consumer"
)

// writes is a guarded table: who wrote, in the order of writing.
const writes = `CREATE TABLE writes (number bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL)`

// write writes to the resource "printer" as the owner of a token.
func write(ctx context.Context, pool *pgxpool.Pool, token int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := consumer.Fence(ctx, tx, "printer", token); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO writes (token) VALUES ($1)`, token)
		return err
	})
}

// refusedBy returns which newer token an error names, or 0.
func refusedBy(err error) int64 {
	var stale *consumer.StaleTokenError
	if errors.As(err, &stale) && errors.Is(err, consumer.ErrStaleToken) {
		return stale.Newest
	}
	return 0
}

// Break seen to fail: the function without its WHERE.
func TestFence_RefusesSmallerTokens(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, writes)
	for _, step := range []struct{ token, refusedBy int64 }{{5, 0}, {5, 0}, {4, 5}, {9, 0}, {5, 9}, {9, 0}, {1 << 50, 0}, {9, 1 << 50}} {
		if err := write(t.Context(), pool, step.token); refusedBy(err) != step.refusedBy || (err == nil) != (step.refusedBy == 0) {
			t.Errorf("token %d: %v, want it refused by %d", step.token, err, step.refusedBy)
		}
	}
	if n := number(t, pool, `SELECT count(*) FROM writes`); n != 5 {
		t.Errorf("%d writes, want 5", n)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return consumer.Fence(t.Context(), tx, "door", 1) })
	if err != nil {
		t.Errorf("another resource: %v", err)
	}
	if err := write(t.Context(), pool, 0); err == nil || refusedBy(err) != 0 {
		t.Errorf("token 0: %v, want an error that is no refusal", err)
	}
}

func TestFence_HoldsUntilTheTransactionEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		end       func(*testing.T, pgx.Tx)
		refusedBy int64
	}{
		{"committed: it was seen", commit, 8},
		{"rolled back: it was not", rollback, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newDatabase(t, writes)
			if err := write(t.Context(), pool, 1); err != nil {
				t.Fatal(err)
			}
			owner := begin(t, pool, pgx.ReadCommitted)
			if err := consumer.Fence(t.Context(), owner, "printer", 8); err != nil {
				t.Fatal(err)
			}
			late := make(chan error, 1)
			go func() { late <- write(t.Context(), pool, 7) }()
			awaitWaiting(t, pool, 1)
			tt.end(t, owner)
			if err := <-late; refusedBy(err) != tt.refusedBy || (err == nil) != (tt.refusedBy == 0) {
				t.Errorf("token 7: %v, want it refused by %d", err, tt.refusedBy)
			}
		})
	}
}

// growing fails the test if a smaller token was written after a greater one.
func growing(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	const falls = `SELECT count(*) FROM (SELECT token < lag(token) OVER (ORDER BY number) AS falls FROM writes) w WHERE falls`
	if n := number(t, pool, falls); n != 0 {
		t.Errorf("%d writes with a smaller token than the one before", n)
	}
	if n := number(t, pool, `SELECT count(*) FROM writes`); n == 0 {
		t.Error("nothing was written")
	}
}

// TestFence_UnderRace: owners follow each other closely, and some dawdle between fence and
// write. Break seen to fail: Fence in a transaction of its own, so that its lock ends early.
func TestFence_UnderRace(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, writes)
	const last = 300
	tokens := make(chan int64, last)
	for token := range int64(last) {
		tokens <- token + 1
	}
	close(tokens)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for token := range tokens {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					if err := consumer.Fence(t.Context(), tx, "printer", token); err != nil {
						return err
					}
					if _, err := tx.Exec(t.Context(), `SELECT pg_sleep($1)`, rand.Float64()/500); err != nil {
						return err
					}
					_, err := tx.Exec(t.Context(), `INSERT INTO writes (token) VALUES ($1)`, token)
					return err
				})
				if err != nil && refusedBy(err) <= token {
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	wg.Wait()
	growing(t, pool)
	if newest := number(t, pool, `SELECT token FROM leasehold_fences`); newest != last {
		t.Errorf("the fence has seen %d, want %d", newest, last)
	}
}

func TestFence_HigherIsolation(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, writes)
	if err := write(t.Context(), pool, 1); err != nil {
		t.Fatal(err)
	}
	old := begin(t, pool, pgx.Serializable)
	if _, err := old.Exec(t.Context(), `SELECT count(*) FROM writes`); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	if err := write(t.Context(), pool, 3); err != nil {
		t.Fatal(err)
	}
	var conflict *pgconn.PgError
	if err := consumer.Fence(t.Context(), old, "printer", 2); !errors.As(err, &conflict) || conflict.Code != "40001" {
		t.Fatalf("with an old snapshot: %v, want 40001", err)
	}
	rollback(t, old)
	if err := consumer.Fence(t.Context(), begin(t, pool, pgx.Serializable), "printer", 2); refusedBy(err) != 3 {
		t.Errorf("the next try: %v, want it refused by 3", err)
	}
}

// TestFence_MigrationsMayRunAgain: what was seen stays.
func TestFence_MigrationsMayRunAgain(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, writes)
	if err := write(t.Context(), pool, 6); err != nil {
		t.Fatal(err)
	}
	for _, migration := range []string{consumer.FenceMigration, consumer.InboxMigration} {
		if _, err := pool.Exec(t.Context(), migration); err != nil {
			t.Errorf("run again: %v", err)
		}
	}
	if err := write(t.Context(), pool, 5); refusedBy(err) != 6 {
		t.Errorf("token 5: %v, want it refused by 6", err)
	}
}

// TestFencedUpdate_UnderRace is the pattern of the package's documentation. Break seen to
// fail: without the comparison.
func TestFencedUpdate_UnderRace(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, writes,
		`CREATE TABLE documents (id int PRIMARY KEY, lease_version bigint NOT NULL DEFAULT 0)`,
		`INSERT INTO documents (id) VALUES (1)`)
	var wg sync.WaitGroup
	for _, token := range rand.Perm(200) {
		wg.Go(func() {
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				tag, err := tx.Exec(t.Context(), `UPDATE documents SET lease_version = $1 WHERE id = 1 AND lease_version <= $1`, token)
				if err != nil || tag.RowsAffected() == 0 {
					return err
				}
				_, err = tx.Exec(t.Context(), `INSERT INTO writes (token) VALUES ($1)`, token)
				return err
			})
			if err != nil {
				t.Errorf("token %d: %v", token, err)
			}
		})
	}
	wg.Wait()
	growing(t, pool)
}
