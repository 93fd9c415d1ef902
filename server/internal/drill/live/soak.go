package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// soak is a load as large as the machine carries, with faults at random, until so many attempts
// were made.
func soak(attempts int) drill {
	return drill{
		name: "soak", line: fmt.Sprintf("faults at random, until %d attempts were made", attempts), ownPostgres: true,
		load:  loadConfig{workers: 4, slots: 64, pace: time.Millisecond, batch: 50, open: 4000, failing: 0.1},
		limit: 12 * time.Hour, publish: 20 * time.Minute,
		run: func(ctx context.Context, x *exercise) error { return x.soak(ctx, int64(attempts)) },
	}
}

// soak injects one fault after another.
func (x *exercise) soak(ctx context.Context, attempts int64) error {
	faults := []func(context.Context, *exercise) error{
		killServer, killServer, freezeServer, replaceWorker, replaceWorker, freezeAWorker, endSessions, bounceSink, bouncePostgres,
	}
	told := time.Now() // monotonic
	for {
		made, err := x.number(ctx, `SELECT count(*) FROM attempts`)
		if err == nil && made >= attempts {
			return nil
		}
		if time.Since(told) > time.Minute {
			told = time.Now()
			fmt.Fprintf(x.cfg.Err, "soak: %d of %d attempts, %d faults\n", made, attempts, x.faults)
		}
		if !pause(ctx, rand.N(4*time.Second)) {
			return context.Cause(ctx)
		}
		at := now()
		if err := faults[rand.IntN(len(faults))](ctx, x); err != nil {
			return err
		}
		x.fault()
		if err := x.goesOn(ctx, at, "after a fault"); err != nil {
			return err
		}
	}
}

func (x *exercise) anyServer() *replica { return x.replicas[rand.IntN(len(x.replicas))] }

func killServer(ctx context.Context, x *exercise) error {
	victim := x.anyServer()
	if err := victim.kill(); err != nil {
		return err
	}
	pause(ctx, rand.N(time.Second))
	return victim.start(ctx)
}

// freezeServer has a server stand still, wherever it is, for up to twice a lease.
func freezeServer(ctx context.Context, x *exercise) error {
	victim := x.anyServer()
	if err := victim.freeze(); err != nil {
		return err
	}
	pause(ctx, rand.N(2*leaseDuration))
	return victim.thaw()
}

// replaceWorker kills a worker and hires another one.
func replaceWorker(_ context.Context, x *exercise) error {
	i := rand.IntN(len(x.load.workers))
	if err := x.load.workers[i].Kill(); err != nil {
		return err
	}
	hired, err := x.load.hire(x.addresses(i % len(x.replicas)))
	if err != nil {
		return err
	}
	x.load.workers[i].reading.Wait()
	x.load.workers[i] = hired
	x.load.workers = x.load.workers[:len(x.load.workers)-1] // where it was put first
	return nil
}

func freezeAWorker(ctx context.Context, x *exercise) error {
	victim := x.load.workers[rand.IntN(len(x.load.workers))]
	if err := freezeWorker(victim); err != nil {
		return err
	}
	pause(ctx, rand.N(2*leaseDuration))
	return thawWorker(victim)
}

// endSessions ends some of the servers' sessions in PostgreSQL.
func endSessions(ctx context.Context, x *exercise) error {
	_, err := x.db.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'leasehold' AND random() < 0.5`)
	return err
}

// bounceSink ends the servers' connections to the sink, and keeps them from coming back for a while.
func bounceSink(ctx context.Context, x *exercise) error {
	for _, r := range x.replicas {
		r.sink.Refuse(true)
		r.sink.Cut()
	}
	pause(ctx, rand.N(2*time.Second))
	for _, r := range x.replicas {
		r.sink.Refuse(false)
	}
	return nil
}

// bouncePostgres restarts or kills PostgreSQL.
func bouncePostgres(ctx context.Context, x *exercise) error {
	if rand.IntN(2) == 0 {
		x.primary.Down(ctx)
	} else {
		x.primary.Kill()
	}
	err := x.primary.Restart(ctx)
	x.db.Reset() // Its connections are broken.
	if err != nil {
		return errors.Join(errors.New("PostgreSQL does not come back"), err)
	}
	return nil
}
