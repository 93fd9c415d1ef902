package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/api/consumer"
)

// effects is a table in which each run of add leaves a row.
const effects = `CREATE TABLE effects (number bigint GENERATED ALWAYS AS IDENTITY, event_id uuid NOT NULL, execution_id uuid NOT NULL, sequence bigint NOT NULL)`

// add is a consumer's effect.
func add(e *consumer.Event) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO effects (event_id, execution_id, sequence) VALUES ($1, $2, $3)`, e.ID, e.ExecutionID, e.Sequence)
		return err
	}
}

// deliver handles an event in a transaction of its own.
func deliver(ctx context.Context, pool *pgxpool.Pool, inbox consumer.Inbox, e *consumer.Event) (outcome consumer.Outcome, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		outcome, err = inbox.Handle(ctx, tx, e, add(e))
		return err
	})
	return outcome, err
}

// later is what a delivery that goes on beside the test came to.
type later struct {
	outcome consumer.Outcome
	err     error
}

func deliverBeside(ctx context.Context, pool *pgxpool.Pool, inbox consumer.Inbox, e *consumer.Event) <-chan later {
	done := make(chan later, 1)
	go func() {
		outcome, err := deliver(ctx, pool, inbox, e)
		done <- later{outcome, err}
	}()
	return done
}

// Breaks seen to fail: no ON CONFLICT check of the rows affected; the mark on the pool instead
// of the transaction.
func TestHandle_ManyDeliveriesHaveOneEffect(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts"}
	const events, deliveries = 20, 15
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		outcomes = map[consumer.Outcome]int{}
	)
	for range events {
		e := newEvent(uuid.New(), 1)
		for range deliveries {
			wg.Go(func() {
				outcome, err := deliver(t.Context(), pool, inbox, e)
				if err != nil {
					t.Errorf("Handle: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				outcomes[outcome]++
			})
		}
	}
	wg.Wait()
	if outcomes[consumer.Handled] != events || outcomes[consumer.Repeat] != events*(deliveries-1) {
		t.Errorf("outcomes %v, want %d handled and the rest repeats", outcomes, events)
	}
	if n, different := number(t, pool, `SELECT count(*) FROM effects`), number(t, pool, `SELECT count(DISTINCT event_id) FROM effects`); n != events || different != events {
		t.Errorf("%d effects of %d events, want %d of as many", n, different, events)
	}
}

func TestHandle_ASecondDeliveryWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		end     func(*testing.T, pgx.Tx)
		want    consumer.Outcome
		effects int64
	}{
		{"the first commits", commit, consumer.Repeat, 1},
		{"the first rolls back", rollback, consumer.Handled, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newDatabase(t, effects)
			inbox := consumer.Inbox{Consumer: "accounts"}
			e := newEvent(uuid.New(), 1)
			first := begin(t, pool, pgx.ReadCommitted)
			if outcome, err := inbox.Handle(t.Context(), first, e, add(e)); err != nil || outcome != consumer.Handled {
				t.Fatalf("first: %v, %v", outcome, err)
			}
			second := deliverBeside(t.Context(), pool, inbox, e)
			awaitWaiting(t, pool, 1)
			tt.end(t, first)
			if got := <-second; got.err != nil || got.outcome != tt.want {
				t.Errorf("second: %v, %v, want %v", got.outcome, got.err, tt.want)
			}
			if n := number(t, pool, `SELECT count(*) FROM effects`); n != tt.effects {
				t.Errorf("%d effects, want %d", n, tt.effects)
			}
		})
	}
}

// TestHandle_AFailureLeavesNothing: not even to a caller that commits all the same. Break seen
// to fail: fn without the savepoint.
func TestHandle_AFailureLeavesNothing(t *testing.T) {
	t.Parallel()
	wrong := errors.New("no such account")
	for name, fail := range map[string]func(context.Context, pgx.Tx) error{
		"error": func(context.Context, pgx.Tx) error { return wrong },
		"SQL":   func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `SELECT 1/0`); return err },
		"panic": func(context.Context, pgx.Tx) error { panic(wrong) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newDatabase(t, effects)
			inbox := consumer.Inbox{Consumer: "accounts", Order: consumer.Gapless}
			e := newEvent(uuid.New(), 1)
			tx := begin(t, pool, pgx.ReadCommitted)
			func() {
				defer func() { _ = recover() }()
				outcome, err := inbox.Handle(t.Context(), tx, e, func(ctx context.Context, tx pgx.Tx) error {
					if err := add(e)(ctx, tx); err != nil {
						t.Errorf("add: %v", err)
					}
					return fail(ctx, tx)
				})
				if err == nil || outcome != 0 || (name == "error" && !errors.Is(err, wrong)) {
					t.Errorf("Handle: %v, %v; want fn's error", outcome, err)
				}
			}()
			commit(t, tx)
			if n := number(t, pool, `SELECT count(*) FROM effects`); n != 0 {
				t.Errorf("%d effects after a failure", n)
			}
			if outcome, err := deliver(t.Context(), pool, inbox, e); err != nil || outcome != consumer.Handled {
				t.Errorf("next delivery: %v, %v, want it handled", outcome, err)
			}
		})
	}
}

// TestHandle_AContextThatEndsLeavesNothing: fn gives up between two statements, and the caller
// commits with a context that lives.
func TestHandle_AContextThatEndsLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts"}
	e := newEvent(uuid.New(), 1)
	tx := begin(t, pool, pgx.ReadCommitted)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := inbox.Handle(ctx, tx, e, func(ctx context.Context, _ pgx.Tx) error {
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Handle: %v, want context.Canceled", err)
	}
	commit(t, tx)
	if outcome, err := deliver(t.Context(), pool, inbox, e); err != nil || outcome != consumer.Handled {
		t.Errorf("next delivery: %v, %v, want it handled", outcome, err)
	}
}

// TestHandle_MisuseCannotCommit: fn ends the savepoint by itself and fails. Its mark must not
// be committed.
func TestHandle_MisuseCannotCommit(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts"}
	e := newEvent(uuid.New(), 1)
	tx := begin(t, pool, pgx.ReadCommitted)
	_, err := inbox.Handle(t.Context(), tx, e, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(tx.Commit(ctx), errors.New("too late"))
	})
	if err == nil {
		t.Error("Handle: no error")
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the caller could commit")
	}
	if outcome, err := deliver(t.Context(), pool, inbox, e); err != nil || outcome != consumer.Handled {
		t.Errorf("next delivery: %v, %v, want it handled", outcome, err)
	}
}

func TestHandle_SeveralEventsInOneTransaction(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts"}
	good, bad := newEvent(uuid.New(), 1), newEvent(uuid.New(), 1)
	tx := begin(t, pool, pgx.ReadCommitted)
	for _, want := range []consumer.Outcome{consumer.Handled, consumer.Repeat} {
		if outcome, err := inbox.Handle(t.Context(), tx, good, add(good)); err != nil || outcome != want {
			t.Errorf("Handle: %v, %v, want %v", outcome, err, want)
		}
	}
	if _, err := inbox.Handle(t.Context(), tx, bad, func(context.Context, pgx.Tx) error { return errors.New("bad") }); err == nil {
		t.Error("no error of the bad one")
	}
	commit(t, tx)
	if outcome, err := deliver(t.Context(), pool, inbox, good); err != nil || outcome != consumer.Repeat {
		t.Errorf("the good one again: %v, %v, want a repeat", outcome, err)
	}
}

func TestHandle_EachConsumerOnce(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	e := newEvent(uuid.New(), 1)
	for _, name := range []string{"accounts", "mails"} {
		for _, want := range []consumer.Outcome{consumer.Handled, consumer.Repeat} {
			if outcome, err := deliver(t.Context(), pool, consumer.Inbox{Consumer: name, Order: consumer.Gapless}, e); err != nil || outcome != want {
				t.Errorf("%s: %v, %v, want %v", name, outcome, err, want)
			}
		}
	}
	if _, err := deliver(t.Context(), pool, consumer.Inbox{}, e); err == nil {
		t.Error("an inbox without a name takes events")
	}
}

// TestHandle_HigherIsolation: what READ COMMITTED answers after a wait is 40001 there, and the
// next try finds the answer.
func TestHandle_HigherIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, order := range []consumer.Order{consumer.AnyOrder, consumer.Gapless} {
			t.Run(fmt.Sprint(level, order), func(t *testing.T) {
				t.Parallel()
				pool := newDatabase(t, effects)
				inbox := consumer.Inbox{Consumer: "accounts", Order: order}
				execution := uuid.New()
				if outcome, err := deliver(t.Context(), pool, inbox, newEvent(execution, 1)); err != nil || outcome != consumer.Handled {
					t.Fatalf("event 1: %v, %v", outcome, err)
				}
				e := newEvent(execution, 2)
				old := begin(t, pool, level)
				if _, err := old.Exec(t.Context(), `SELECT count(*) FROM effects`); err != nil { // takes the snapshot
					t.Fatal(err)
				}
				if outcome, err := deliver(t.Context(), pool, inbox, e); err != nil || outcome != consumer.Handled {
					t.Fatalf("first: %v, %v", outcome, err)
				}
				_, err := inbox.Handle(t.Context(), old, e, add(e))
				var conflict *pgconn.PgError
				if !errors.As(err, &conflict) || conflict.Code != "40001" {
					t.Fatalf("with an old snapshot: %v, want 40001", err)
				}
				rollback(t, old)
				again := begin(t, pool, level)
				if outcome, err := inbox.Handle(t.Context(), again, e, add(e)); err != nil || outcome != consumer.Repeat {
					t.Errorf("the next try: %v, %v, want a repeat", outcome, err)
				}
			})
		}
	}
}

// delivery is one step of a test of the order.
type delivery struct {
	sequence int64
	again    bool // the last event of this sequence once more
	want     consumer.Outcome
	gap      int64 // the sequence that a GapError wants, or 0
}

func TestHandle_Order(t *testing.T) {
	t.Parallel()
	const handled, repeat, late = consumer.Handled, consumer.Repeat, consumer.Late
	for _, tt := range []struct {
		name  string
		order consumer.Order
		steps []delivery
	}{
		{"any order", consumer.AnyOrder, []delivery{{3, false, handled, 0}, {1, false, handled, 0}, {1, true, repeat, 0}, {2, false, handled, 0}, {3, true, repeat, 0}}},
		{"increasing", consumer.Increasing, []delivery{{2, false, handled, 0}, {5, false, handled, 0}, {2, true, repeat, 0}, {4, false, late, 0}, {4, true, repeat, 0}, {5, false, late, 0}, {6, false, handled, 0}}},
		{"gapless", consumer.Gapless, []delivery{{2, false, 0, 1}, {1, false, handled, 0}, {2, true, handled, 0}, {4, false, 0, 3}, {2, true, repeat, 0}, {3, false, handled, 0}, {4, true, handled, 0}, {1, false, late, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newDatabase(t, effects)
			inbox := consumer.Inbox{Consumer: "accounts", Order: tt.order}
			execution := uuid.New()
			sent := map[int64]*consumer.Event{}
			for _, step := range tt.steps {
				if !step.again {
					sent[step.sequence] = newEvent(execution, step.sequence)
				}
				outcome, err := deliver(t.Context(), pool, inbox, sent[step.sequence])
				var gap *consumer.GapError
				var missing int64
				if errors.As(err, &gap) && errors.Is(err, consumer.ErrGap) && gap.Got == step.sequence {
					missing = gap.Want
				}
				if outcome != step.want || missing != step.gap || (err == nil) != (step.gap == 0) {
					t.Errorf("%+v: %v, %v", step, outcome, err)
				}
			}
		})
	}
}

// TestHandle_OrderWaitsForTheOther: another event of the execution is decided when the one
// before it has ended. Break seen to fail: the position as the statement's snapshot has it.
func TestHandle_OrderWaitsForTheOther(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		order         consumer.Order
		first, second int64
		end           func(*testing.T, pgx.Tx)
		want          consumer.Outcome
		gap           bool
	}{
		{"a newer one was handled", consumer.Increasing, 3, 2, commit, consumer.Late, false},
		{"a newer one was not handled", consumer.Increasing, 3, 2, rollback, consumer.Handled, false},
		{"the one before was handled", consumer.Gapless, 2, 3, commit, consumer.Handled, false},
		{"the one before was not handled", consumer.Gapless, 2, 3, rollback, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newDatabase(t, effects)
			inbox := consumer.Inbox{Consumer: "accounts", Order: tt.order}
			execution := uuid.New()
			if outcome, err := deliver(t.Context(), pool, inbox, newEvent(execution, 1)); err != nil || outcome != consumer.Handled {
				t.Fatalf("event 1: %v, %v", outcome, err)
			}
			e := newEvent(execution, tt.first)
			first := begin(t, pool, pgx.ReadCommitted)
			if outcome, err := inbox.Handle(t.Context(), first, e, add(e)); err != nil || outcome != consumer.Handled {
				t.Fatalf("first: %v, %v", outcome, err)
			}
			second := deliverBeside(t.Context(), pool, inbox, newEvent(execution, tt.second))
			awaitWaiting(t, pool, 1)
			tt.end(t, first)
			if got := <-second; got.outcome != tt.want || errors.Is(got.err, consumer.ErrGap) != tt.gap || (got.err != nil) != tt.gap {
				t.Errorf("second: %v, %v", got.outcome, got.err)
			}
		})
	}
}

// TestHandle_GaplessUnderRace: the events of some executions come in any order, several times
// and at once.
func TestHandle_GaplessUnderRace(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts", Order: consumer.Gapless}
	const executions, length, repeats = 4, 12, 2
	var queue []*consumer.Event
	for range executions {
		execution := uuid.New()
		for sequence := range length {
			e := newEvent(execution, int64(sequence+1))
			queue = append(queue, slices.Repeat([]*consumer.Event{e}, repeats)...)
		}
	}
	rand.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
	deliveries := make(chan *consumer.Event, len(queue))
	for _, e := range queue {
		deliveries <- e
	}
	var open, wg sync.WaitGroup
	open.Add(len(queue))
	for range 8 {
		wg.Go(func() {
			for e := range deliveries {
				switch outcome, err := deliver(t.Context(), pool, inbox, e); {
				case errors.Is(err, consumer.ErrGap):
					deliveries <- e // again later; there is room, since we took it out
				case err != nil || outcome == consumer.Late:
					t.Errorf("sequence %d: %v, %v", e.Sequence, outcome, err)
					open.Done()
				default:
					open.Done()
				}
			}
		})
	}
	open.Wait()
	close(deliveries)
	wg.Wait()
	if n := number(t, pool, `SELECT count(*) FROM effects`); n != executions*length {
		t.Errorf("%d effects, want %d", n, executions*length)
	}
	const disorder = `SELECT count(*) FROM effects e JOIN effects o USING (execution_id) WHERE o.sequence > e.sequence AND o.number < e.number`
	if n := number(t, pool, disorder); n != 0 {
		t.Errorf("%d pairs of effects out of order", n)
	}
}

func TestAdvance_GoesOnBehindAHole(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	inbox := consumer.Inbox{Consumer: "accounts", Order: consumer.Gapless}
	e := newEvent(uuid.New(), 7) // 1 to 6 were published before this consumer was there
	_, err := deliver(t.Context(), pool, inbox, e)
	var gap *consumer.GapError
	if !errors.As(err, &gap) {
		t.Fatalf("Handle: %v, want a gap", err)
	}
	for _, to := range []int64{gap.Got - 1, 3} { // the second changes nothing
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return inbox.Advance(t.Context(), tx, gap.ExecutionID, to)
		}); err != nil {
			t.Fatalf("Advance: %v", err)
		}
	}
	if outcome, err := deliver(t.Context(), pool, inbox, e); err != nil || outcome != consumer.Handled {
		t.Errorf("Handle: %v, %v, want it handled", outcome, err)
	}
	if outcome, err := deliver(t.Context(), pool, inbox, newEvent(e.ExecutionID, 6)); err != nil || outcome != consumer.Late {
		t.Errorf("one that was given up: %v, %v, want late", outcome, err)
	}
}

func TestPurge_OnlyWhatIsOldAndOurs(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t, effects)
	ours, others := consumer.Inbox{Consumer: "accounts", Order: consumer.Increasing}, consumer.Inbox{Consumer: "mails"}
	const old = 2500 // more than two batches
	if _, err := pool.Exec(t.Context(), `INSERT INTO leasehold_inbox SELECT name, gen_random_uuid(), now() - interval '41 days'
		FROM generate_series(1, $1::int), unnest(ARRAY['accounts', 'mails']) AS name`, old); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO leasehold_inbox_positions VALUES ('accounts', gen_random_uuid(), 1, now() - interval '41 days')`); err != nil {
		t.Fatal(err)
	}
	young := newEvent(uuid.New(), 1)
	if _, err := deliver(t.Context(), pool, ours, young); err != nil {
		t.Fatal(err)
	}
	if deleted, err := ours.Purge(t.Context(), pool, 40*24*time.Hour); err != nil || deleted != old+1 {
		t.Errorf("Purge: %d, %v, want %d", deleted, err, old+1)
	}
	if outcome, err := deliver(t.Context(), pool, ours, young); err != nil || outcome != consumer.Repeat {
		t.Errorf("the young one: %v, %v, want a repeat", outcome, err)
	}
	if n := number(t, pool, `SELECT count(*) FROM leasehold_inbox WHERE consumer = $1`, others.Consumer); n != old {
		t.Errorf("%d rows of the other consumer, want %d", n, old)
	}
	if _, err := ours.Purge(t.Context(), pool, 0); err == nil {
		t.Error("Purge takes 0")
	}
}
