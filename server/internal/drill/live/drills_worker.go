package live

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/leasehold/leasehold/server/internal/netfault"
)

func freezeWorker(w *workerProcess) error { return w.Signal(syscall.SIGSTOP) }
func thawWorker(w *workerProcess) error   { return w.Signal(syscall.SIGCONT) }

// workerKilled: three workers die, one after the other, in the middle of their work.
func workerKilled(ctx context.Context, x *exercise) error {
	all := int64(0)
	for _, victim := range x.load.workers[:3] {
		if err := victim.awaitHeld(ctx); err != nil {
			return err
		}
		if err := victim.Kill(); err != nil {
			return err
		}
		x.fault()
		took, taken, err := victim.awaitTaken(ctx)
		if err != nil {
			return err
		}
		if taken > 0 {
			x.recovered(took)
		}
		all += taken
		x.note("%s held %d", victim.name, taken)
		if _, err := x.load.hire(x.addresses(0)); err != nil {
			return err
		}
	}
	if all == 0 {
		return errors.New("the workers that were killed left nothing to others: the fault was none")
	}
	return x.goesOn(ctx, now(), "after workers were killed")
}

// workerFrozen: a worker stands still for longer than its lease, wakes up, and reports.
func workerFrozen(ctx context.Context, x *exercise) error {
	sleeper, err := x.load.hire(x.addresses(0), "--sleepwalk")
	if err != nil {
		return err
	}
	var held string
	select {
	case held = <-sleeper.holding:
	case <-ctx.Done():
		return errors.New("the worker that is to be frozen gets nothing")
	}
	if err := freezeWorker(sleeper); err != nil {
		return err
	}
	x.fault()
	took, _, err := sleeper.awaitTaken(ctx)
	if err != nil {
		return err
	}
	x.recovered(took)
	if err := thawWorker(sleeper); err != nil {
		return err
	}
	var told string
	err = x.await(ctx, goOnLimit, "refused the late success", some,
		`SELECT count(*) FROM timeline t JOIN steps s ON s.execution_id = t.execution_id WHERE s.id = $1::uuid AND t.milestone LIKE 'late/%'`, held)
	if err == nil {
		err = x.db.QueryRow(ctx, `SELECT max(t.title) FROM timeline t JOIN steps s ON s.execution_id = t.execution_id
			WHERE s.id = $1::uuid AND t.milestone LIKE 'late/%'`, held).Scan(&told)
	}
	if err != nil {
		return fmt.Errorf("after the worker woke up: %w", err)
	}
	x.note("%s", told)
	return x.goesOn(ctx, now(), "after a worker was frozen")
}

// workerCut: the networks between one worker and all servers forget its connections. It cannot
// know, others take over, and when the networks are mended it works on.
func workerCut(ctx context.Context, x *exercise) error {
	var networks []*netfault.Proxy
	var addresses []string
	for _, r := range x.replicas {
		p, err := netfault.New(r.addr)
		if err != nil {
			return err
		}
		defer p.Close()
		networks, addresses = append(networks, p), append(addresses, p.Addr())
	}
	victim, err := x.load.hire(addresses)
	if err != nil {
		return err
	}
	all := int64(0)
	for range 2 {
		if err := victim.awaitHeld(ctx); err != nil {
			return err
		}
		for _, p := range networks {
			p.Refuse(true)
			p.Lose()
		}
		x.fault()
		took, taken, err := victim.awaitTaken(ctx)
		if err != nil {
			return err
		}
		if taken > 0 {
			x.recovered(took)
		}
		all += taken
		mended := now()
		for _, p := range networks {
			p.Refuse(false)
		}
		if err := victim.worksAgain(ctx, mended); err != nil {
			return err
		}
		x.note("%s held %d", victim.name, taken)
	}
	if all == 0 {
		return errors.New("the worker that was cut off left nothing to others: the fault was none")
	}
	// It ends in good order only while its networks stand.
	victim.Stop()
	return x.goesOn(ctx, now(), "after a worker was cut off")
}

// worksAgain waits until the worker has a report accepted that it sent after an instant.
func (w *workerProcess) worksAgain(ctx context.Context, instant int64) error {
	ctx, cancel := context.WithTimeout(ctx, goOnLimit)
	defer cancel()
	for {
		if _, ok := w.reportAfter(instant); ok {
			return nil
		}
		if !pause(ctx, lookAgain) {
			return fmt.Errorf("%s does not work again within %s", w.name, goOnLimit)
		}
	}
}
