package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	core "github.com/leasehold/leasehold/server/internal/drill"
)

// serverKills: servers die at random, and start again a moment later.
func serverKills(ctx context.Context, x *exercise) error {
	const times = 8
	for range times {
		victim := x.replicas[rand.IntN(len(x.replicas))]
		if !pause(ctx, rand.N(300*time.Millisecond)) {
			return context.Cause(ctx)
		}
		killed := now()
		if err := victim.kill(); err != nil {
			return err
		}
		x.fault()
		if err := x.goesOn(ctx, killed, "after a server was killed"); err != nil {
			return err
		}
		if err := victim.start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// outage: no server is there for much longer than leases last.
func outage(ctx context.Context, x *exercise) error {
	const away = 3 * leaseDuration
	for _, r := range x.replicas {
		if err := r.kill(); err != nil {
			return err
		}
		x.fault()
	}
	if !pause(ctx, away) {
		return context.Cause(ctx)
	}
	back := now()
	if err := x.startAll(ctx); err != nil {
		return err
	}
	x.note("all servers away for %s, leases last %s", away, leaseDuration)
	return x.goesOn(ctx, back, "after an outage of all servers")
}

// poolExhausted: each server has two connections, and somebody locks a table under them.
func poolExhausted(ctx context.Context, x *exercise) error {
	const fewest, locked = 2, 1500 * time.Millisecond
	x.stopAll()
	if err := x.startAll(ctx, fmt.Sprintf("--database-max-conns=%d", fewest)); err != nil {
		return err
	}
	if err := x.goesOn(ctx, now(), "with two connections"); err != nil {
		return err
	}
	waited := int64(0)
	for range 3 {
		n, err := x.lockTable(ctx, locked)
		if err != nil {
			return err
		}
		x.fault()
		waited = max(waited, n)
		if err := x.goesOn(ctx, now(), "after the connections were free again"); err != nil {
			return err
		}
	}
	x.note("%d of %d connections waited at once", waited, fewest*replicaCount)
	if waited < fewest*replicaCount {
		return fmt.Errorf("only %d of %d connections waited for a lock: no pool was exhausted", waited, fewest*replicaCount)
	}
	x.stopAll()
	if err := x.startAll(ctx); err != nil {
		return err
	}
	return x.goesOn(ctx, now(), "with all connections again")
}

// lockTable locks the table that all work needs for a while, and says how many connections of servers
// waited for it at most.
func (x *exercise) lockTable(ctx context.Context, d time.Duration) (waited int64, err error) {
	tx, err := x.db.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("lock a table: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `LOCK TABLE executions IN ACCESS EXCLUSIVE MODE`); err != nil {
		return 0, fmt.Errorf("lock a table: %w", err)
	}
	for began := time.Now(); time.Since(began) < d; pause(ctx, lookAgain) { // monotonic
		n, err := x.number(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'leasehold' AND wait_event_type = 'Lock'`)
		if err != nil {
			return waited, err
		}
		waited = max(waited, n)
	}
	return waited, nil
}

// frozenTransaction: a server stands still in the middle of a transaction that holds locks.
// PostgreSQL ends that after 5 s; nobody waits for it longer.
func frozenTransaction(ctx context.Context, x *exercise) error {
	const frozen = 7 * time.Second
	victim, caught, canceled, err := x.freezeInTransaction(ctx)
	if err != nil {
		return err
	}
	x.fault()
	if err := x.goesOn(ctx, caught, "with a server frozen inside a transaction"); err != nil {
		return errors.Join(err, victim.thaw())
	}
	if err := x.await(ctx, goOnLimit, "ended the transaction of the frozen server", none,
		`SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND state = 'idle in transaction'`, victim.role); err != nil {
		return errors.Join(err, victim.thaw())
	}
	x.note("PostgreSQL ended the frozen transaction after %s", time.Duration(now()-caught).Round(time.Second/10))
	pause(ctx, frozen-time.Duration(now()-caught))
	woken := now()
	if err := victim.thaw(); err != nil {
		return err
	}
	if err := x.goesOn(ctx, woken, "after the server woke up"); err != nil {
		return err
	}
	return <-canceled
}

// freezeInTransaction locks the row of an execution, freezes the server that waits for it in order to
// cancel, and lets the row go: the frozen one has it now. What comes of the cancel is told when the
// server has woken up.
func (x *exercise) freezeInTransaction(ctx context.Context) (victim *replica, caught int64, canceled <-chan error, err error) {
	victim = x.replicas[0]
	c, err := x.client(0, "who-cancels")
	if err != nil {
		return nil, 0, nil, err
	}
	req := x.load.request()
	for _, s := range req.Steps {
		s.StartDelay = durationpb.New(time.Hour)
	}
	answer, err := c.Executions.EnqueueExecution(ctx, req)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("enqueue what is to be canceled: %w", err)
	}
	tx, err := x.db.Begin(ctx)
	if err != nil {
		return nil, 0, nil, fmt.Errorf("lock an execution: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, `SELECT FROM executions WHERE id = $1 FOR UPDATE`, answer.Execution.Id); err != nil {
		return nil, 0, nil, fmt.Errorf("lock an execution: %w", err)
	}
	canceled = x.cancel(ctx, c, answer.Execution.Id)
	err = x.await(ctx, goOnLimit, "waits for the execution", some,
		`SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND wait_event_type = 'Lock'`, victim.role)
	if err != nil {
		return nil, 0, nil, err
	}
	caught = now()
	if err := victim.freeze(); err != nil {
		return nil, 0, nil, err
	}
	if err := tx.Rollback(ctx); err != nil {
		return nil, 0, nil, errors.Join(fmt.Errorf("let the execution go: %w", err), victim.thaw())
	}
	err = x.await(ctx, time.Second, victim.name+" is frozen inside a transaction", some,
		`SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND state = 'idle in transaction' AND backend_xid IS NOT NULL`, victim.role)
	if err != nil {
		err = errors.Join(err, victim.thaw())
	}
	return victim, caught, canceled, err
}

// cancel cancels an execution, again while the server cannot be asked.
func (x *exercise) cancel(ctx context.Context, c *core.Client, id string) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			_, err := c.Executions.CancelExecution(ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id})
			if code := status.Code(err); code != codes.Unavailable || !pause(ctx, lookAgain) {
				done <- err
				return
			}
		}
	}()
	return done
}
