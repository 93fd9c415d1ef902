package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// slowOnes: the sink acknowledges late and a worker is silent. Meanwhile nothing of PostgreSQL's
// is held for them.
func slowOnes(ctx context.Context, x *exercise) error {
	const late, enough, longest = 4 * time.Second, 5 * time.Second, 2 * time.Second
	silent, err := x.load.hire(x.addresses(0))
	if err != nil {
		return err
	}
	if err := x.await(ctx, goOnLimit, "registered the worker", some, `SELECT count(*) FROM workers WHERE namespace = $1 AND name = $2`, x.namespace, silent.name); err != nil {
		return err
	}
	for _, r := range x.replicas {
		r.sink.AnswerLate(late)
		defer r.sink.AnswerLate(0)
		x.fault()
	}
	if err := freezeWorker(silent); err != nil {
		return err
	}
	x.fault()
	began := now()
	looking, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	looks, oldest, err := x.longestWait(looking)
	if err != nil {
		return err
	}
	waiting, err := x.number(ctx, `SELECT count(*) FROM outbox_events WHERE namespace = $1 AND status = 'PUBLISHING' AND created_at < clock_timestamp() - interval '1 second'`, x.namespace)
	if err != nil {
		return err
	}
	if looks == 0 || waiting == 0 {
		return fmt.Errorf("%d events waited for the sink's word, and it was looked %d times: the fault was none", waiting, looks)
	}
	if err := thawWorker(silent); err != nil {
		return err
	}
	x.note("sink late by %s; no transaction waited for its server for longer than %s, in %d looks", late, oldest.Round(time.Millisecond), looks)
	if oldest > longest {
		return fmt.Errorf("a transaction was open and waited for its server for %s while the sink was slow", oldest)
	}
	return x.goesOn(ctx, began, "with a slow sink")
}

// longestWait looks, until the time is over, for transactions that wait for their server, which
// then does something else: a busy PostgreSQL is no fault.
func (x *exercise) longestWait(ctx context.Context) (looks int, longest time.Duration, err error) {
	for ctx.Err() == nil {
		var open float64
		err := x.db.QueryRow(ctx, `SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float8 FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasehold' AND state LIKE 'idle in transaction%'`).Scan(&open)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return looks, longest, fmt.Errorf("look at transactions: %w", err)
		}
		looks++
		longest = max(longest, time.Duration(open*float64(time.Second)))
		pause(ctx, lookAgain)
	}
	return looks, longest, nil
}

// sinkAway: no server reaches the sink. Work goes on, and the events come when it is back.
func sinkAway(ctx context.Context, x *exercise) error {
	const away = 3 * time.Second
	refuse := func(shut bool) {
		for _, r := range x.replicas {
			r.sink.Refuse(shut)
			if shut {
				r.sink.Cut()
			}
		}
	}
	began := now()
	refuse(true)
	defer refuse(false)
	x.fault()
	if _, err := x.load.goesOn(ctx, began, goOnLimit); err != nil {
		return fmt.Errorf("without a sink: %w", err)
	}
	if !pause(ctx, away) {
		return context.Cause(ctx)
	}
	waiting, err := x.number(ctx, `SELECT count(*) FROM outbox_events WHERE namespace = $1 AND status <> 'PUBLISHED'`, x.namespace)
	if err != nil {
		return err
	}
	marker, err := x.clock(ctx)
	if err != nil {
		return err
	}
	long, err := x.number(ctx, `SELECT count(*) FROM outbox_events WHERE namespace = $1 AND status <> 'PUBLISHED' AND created_at < clock_timestamp() - $2::interval`, x.namespace, away/2)
	if err != nil {
		return err
	}
	if long == 0 {
		return errors.New("no event waited for the sink: it was not away")
	}
	refuse(false)
	back := time.Now() // monotonic
	err = x.await(ctx, publishLimit, "published what had waited for the sink", none,
		`SELECT count(*) FROM outbox_events WHERE namespace = $1 AND created_at <= $2 AND status <> 'PUBLISHED'`, x.namespace, marker)
	x.recovered(time.Since(back))
	x.note("%d events had waited", waiting)
	return err
}

// publishConfirm: the sink has events of a server, which dies before it hears of that. They come
// again when its claim is over.
func publishConfirm(ctx context.Context, x *exercise) error {
	victim := x.replicas[0]
	victim.sink.Hold(true)
	defer victim.sink.Release()
	var claimed []uuid.UUID
	for len(claimed) == 0 {
		ids, err := x.publishing(ctx)
		if err != nil {
			return err
		}
		if claimed = x.alreadyThere(ids); len(claimed) == 0 && !pause(ctx, lookAgain) {
			return errors.New("no event is between publish and confirm")
		}
	}
	killed, err := x.clock(ctx)
	if err != nil {
		return err
	}
	instant := now()
	if err := victim.kill(); err != nil {
		return err
	}
	x.fault()
	victim.sink.Release()
	still, err := x.number(ctx, `SELECT count(*) FROM outbox_events WHERE id = ANY ($1) AND status = 'PUBLISHING'`, claimed)
	if err != nil {
		return err
	}
	if still == 0 {
		return errors.New("the server was not killed between publish and confirm: nothing is PUBLISHING")
	}
	x.note("%d events were published and not confirmed", still)
	if err := victim.start(ctx); err != nil {
		return err
	}
	x.afterwards(func(ctx context.Context) error { return x.awaitConfirmed(ctx, claimed, killed) })
	return x.goesOn(ctx, instant, "after a server was killed")
}

// awaitConfirmed waits until events are confirmed, and notes when that was.
func (x *exercise) awaitConfirmed(ctx context.Context, claimed []uuid.UUID, killed time.Time) error {
	err := x.await(ctx, publishLimit, "published again what was not confirmed", none,
		`SELECT count(*) FROM outbox_events WHERE id = ANY ($1) AND status <> 'PUBLISHED'`, claimed)
	if err != nil {
		return err
	}
	var last time.Time
	if err := x.db.QueryRow(ctx, `SELECT max(published_at) FROM outbox_events WHERE id = ANY ($1)`, claimed).Scan(&last); err != nil {
		return fmt.Errorf("look at events: %w", err)
	}
	x.note("confirmed %s after the kill, by another server", last.Sub(killed).Round(time.Second/10))
	return nil
}

// publishing are the events that some server has claimed.
func (x *exercise) publishing(ctx context.Context) (ids []uuid.UUID, err error) {
	rows, err := x.db.Query(ctx, `SELECT id FROM outbox_events WHERE namespace = $1 AND status = 'PUBLISHING' AND created_at < clock_timestamp() - interval '1 second'`, x.namespace)
	if err != nil {
		return nil, fmt.Errorf("look at events: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("look at events: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// alreadyThere are those of some events that the consumer has.
func (x *exercise) alreadyThere(ids []uuid.UUID) (there []uuid.UUID) {
	arrived := map[uuid.UUID]bool{}
	for _, d := range x.consumerOf(x.namespace).History().Deliveries {
		arrived[d.ID] = true
	}
	for _, id := range ids {
		if arrived[id] {
			there = append(there, id)
		}
	}
	return there
}
