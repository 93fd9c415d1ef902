package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/postgres"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// Rule 1. Caught: tryKeys that ignores which keys it got, or takes none.
func TestOneOwner_HeldAdvisoryKeyIsLeft(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 2))
	w := s.register("w", "a", 5)
	claim, claimed := s.claim(w, 2)
	other := s.hold("SELECT pg_advisory_xact_lock($1)", postgres.DispatchKey(claimed.Requests[0].StepID, 1))
	command := assign(w, claim, claimed.Requests, time.Minute)
	done, err := s.store.Dispatch(t.Context(), command)
	if err != nil || len(done.Granted) != 1 || !done.Granted[command.Items[1].AttemptID] {
		t.Fatalf("with one key held: %v, granted %v", err, done.Granted)
	}
	other.release()
	done, err = s.store.Dispatch(t.Context(), scheduler.DispatchCommand{ClaimID: claim, Items: command.Items[:1]})
	if err != nil || !done.Granted[command.Items[0].AttemptID] {
		t.Fatalf("with the key free: %v, granted %v", err, done.Granted)
	}
	s.sane()
}

// Rule 1. Caught: a schema without the unique constraints behind the advisory lock.
func TestOneOwner_ConstraintsStandBehindTheKey(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	s.leaseOne(s.register("w", "a", 5), time.Minute)
	for table, statement := range map[string]string{
		"attempts": `INSERT INTO attempts SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid()))).* FROM attempts a`,
		"leases":   `INSERT INTO leases SELECT (jsonb_populate_record(l, jsonb_build_object('attempt_id', gen_random_uuid()))).* FROM leases l`,
	} {
		if _, err := s.sql.Exec(t.Context(), statement); err == nil {
			t.Errorf("%s takes a second row for the same try of a step", table)
		}
	}
}

// Rule 1, and the claim as the right to place. Caught: LockClaimedRequests without the
// condition on claim_id, or on the claim's expiry.
func TestOneOwner_OnlyOurOwnLiveClaimDispatches(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	claim, claimed := s.claim(w, 1)
	for what, c := range map[string]uuid.UUID{"another's claim": uuid.New(), "a claim that is over": claim} {
		if c == claim {
			s.exec("UPDATE scheduling_requests SET claim_expires_at = now()")
		}
		done, err := s.store.Dispatch(t.Context(), assign(w, c, claimed.Requests, time.Minute))
		if err != nil || len(done.Granted) != 0 || done.Dropped != 0 {
			t.Fatalf("%s: %v, %+v", what, err, done)
		}
		s.exec("UPDATE scheduling_requests SET claim_expires_at = now() + interval '1 minute'")
	}
}

// Rule 2. Caught: a report that ends the attempt by the attempt's row, or deletes the lease
// without its version.
func TestLeaseRowDecides_Report(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, time.Minute)
	wrong := success(l)
	wrong.LeaseVersion++
	_, err := s.report(wrong)
	s.refusedFor(err, task.ReasonLeaseSuperseded)
	if n := query[int](s, "SELECT count(*) FROM leases"); n != 1 {
		t.Fatalf("a report with another version left %d leases", n)
	}
	// The clock does not decide, the row does: it is over, but nobody has ended it.
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	h := s.hold("DELETE FROM leases")
	if _, err := s.report(success(l)); !errors.Is(err, scheduler.ErrBusy) {
		t.Fatalf("while another transaction ends the lease: %v, want ErrBusy", err)
	}
	h.release()
	_, err = s.report(success(l))
	var refused *scheduler.RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("after the lease is gone: %v, want a refusal", err)
	}
	if state := query[string](s, "SELECT state FROM attempts"); state != "LEASED" {
		t.Fatalf("the refused report wrote: attempt is %s", state)
	}
}

// Rule 2, the other half. Caught: a report refused because expires_at is past.
func TestLeaseRowDecides_NotTheClock(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, time.Minute)
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	if _, err := s.renew(renewal(l, w, time.Minute)); err != nil {
		t.Fatalf("renewal of a lease that nobody has ended: %v", err)
	}
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	if got, err := s.report(success(l)); err != nil || got.ExecutionState != task.ExecutionSucceeded {
		t.Fatalf("report on a lease that nobody has ended: %v, %+v", err, got)
	}
	s.sane()
}

// Rule 2. A lease that is renewed between the sweeper's search and its DELETE stays. Caught:
// DeleteExpiredLeases without `expires_at <= now()`.
func TestLeaseRowDecides_SweepMeetsRenewal(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 1))
	w := s.register("w", "a", 5)
	l := s.leaseOne(w, time.Minute)
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour'")
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", ids.Execution)
	swept := async(func() error { // has its candidates, and waits for the execution
		_, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{Wait: []uuid.UUID{ids.Execution}})
		return err
	})
	s.waiting(1)
	if _, err := s.renew(renewal(l, w, time.Minute)); err != nil {
		t.Fatal(err)
	}
	h.release()
	if err := <-swept; err != nil {
		t.Fatal(err)
	}
	if _, err := s.report(success(l)); err != nil {
		t.Fatalf("the renewed lease was ended: %v", err)
	}
	s.sane()
}

// Rule 2. Caught: a sweep that writes LOST before, or without, deleting the lease: the report
// that was committed between its search and its locks must stand.
func TestLeaseRowDecides_SweepMeetsReport(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 2))
	w := s.register("w", "a", 5)
	l := s.lease(w, 2, time.Minute)[0]
	s.exec("UPDATE leases SET expires_at = now() - interval '1 hour' WHERE attempt_id = $1", l.AttemptID)
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", ids.Execution)
	reported := async(func() error {
		results, err := s.store.Report(t.Context(), []scheduler.Report{success(l)}, true)
		return errors.Join(err, firstErr(results))
	})
	s.waiting(1) // the report is first in the queue
	swept := async(func() error {
		_, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{Wait: []uuid.UUID{ids.Execution}})
		return err
	})
	s.waiting(2)
	h.release()
	if err := errors.Join(<-reported, <-swept); err != nil {
		t.Fatal(err)
	}
	if state := query[string](s, "SELECT state FROM attempts WHERE id = $1", l.AttemptID); state != "SUCCEEDED" {
		t.Fatalf("attempt is %s", state)
	}
	s.sane()
}

func firstErr[T any](results []scheduler.Result[T]) error {
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// Rule 2. Caught: RenewLeases without its look at the worker's current session.
func TestLeaseRowDecides_SupersededSessionDoesNotRenew(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 1))
	old := s.register("w", "a", 5)
	l := s.leaseOne(old, time.Minute)
	before := query[time.Time](s, "SELECT expires_at FROM leases")
	current := s.register("w", "a", 5)
	if current.WorkerID != old.WorkerID {
		t.Fatal("the name did not lead to the same worker")
	}
	for _, w := range []worker{old, current} {
		_, err := s.renew(renewal(l, w, time.Hour))
		s.refusedFor(err, task.ReasonSessionSuperseded)
	}
	if after := query[time.Time](s, "SELECT expires_at FROM leases"); !after.Equal(before) {
		t.Fatalf("a refused renewal moved the lease from %v to %v", before, after)
	}
	if _, err := s.report(success(l)); err != nil {
		t.Fatalf("a superseded session may still report: %v", err)
	}
}

// Rule 3. Caught: LockWorkers and CountLeases in one statement (a snapshot older than the lock),
// counting before the lock, or LockWorkers without its lock.
func TestLockThenLook_OneSlotNeverHoldsTwo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	rounds := rounds(60, 1000)
	w := s.register("w", "a", 1)
	for range rounds {
		for range 6 {
			s.enqueue(spec("a", 1))
		}
		var commands []scheduler.DispatchCommand
		for len(commands) < 6 {
			claim, claimed := s.claim(w, 1)
			if len(claimed.Requests) != 1 {
				t.Fatalf("claimed %d requests, want 1", len(claimed.Requests))
			}
			commands = append(commands, assign(w, claim, claimed.Requests, time.Minute))
		}
		s.dispatchTogether(commands)
		if n := query[int](s, "SELECT count(*) FROM leases"); n > 1 {
			t.Fatalf("a worker with one slot holds %d leases", n)
		}
		s.exec("TRUNCATE leases, attempts, scheduling_requests, steps, executions, outbox_events, outbox_heads")
	}
}

// dispatchTogether runs dispatches at the same moment, until each has been through.
func (s *stand) dispatchTogether(commands []scheduler.DispatchCommand) {
	s.t.Helper()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, c := range commands {
		wg.Go(func() {
			<-start
			if _, err := s.store.Dispatch(context.Background(), c); err != nil {
				s.t.Errorf("dispatch: %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
}

// Rule 3. A change of the execution that is committed while a transaction waits for its row is
// seen by it. Caught: reading the steps before, or in one statement with, the lock.
func TestLockThenLook_SeesWhatWasCommittedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ids := s.enqueue(spec("a", 2))
	w := s.register("w", "a", 5)
	leases := s.lease(w, 2, time.Minute)
	h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", ids.Execution)
	reports := make([]<-chan error, len(leases))
	for i, l := range leases {
		reports[i] = async(func() error {
			results, err := s.store.Report(t.Context(), []scheduler.Report{success(l)}, true)
			return errors.Join(err, firstErr(results))
		})
		s.waiting(i + 1)
	}
	canceled := async(func() error { _, err := cancelOne(s.store, t.Context(), ids.Execution, ""); return err })
	s.waiting(len(leases) + 1)
	h.release()
	for _, r := range reports {
		if err := <-r; err != nil {
			t.Fatal(err)
		}
	}
	// PostgreSQL lets the waiting ones in as it likes: a cancel before the last report stops the
	// execution, one after it finds it closed.
	want := "CANCELED"
	if err := <-canceled; err != nil {
		s.refusedFor(err, task.ReasonExecutionClosed)
		want = "SUCCEEDED"
	}
	if state := query[string](s, "SELECT state FROM executions"); state != want {
		t.Fatalf("execution is %s, want %s: one did not see the others", state, want)
	}
	s.sane()
}

// Rule 3. A worker with one slot, whose row is held while its lease is granted elsewhere: the
// dispatch that comes after counts that lease. Caught: counting before the worker's lock.
func TestLockThenLook_HeldWorkerIsLeft(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.enqueue(spec("a", 2))
	w := s.register("w", "a", 1)
	claim, claimed := s.claim(w, 1)
	h := s.hold("SELECT FROM workers FOR NO KEY UPDATE")
	command := assign(w, claim, claimed.Requests, time.Minute)
	done, err := s.store.Dispatch(t.Context(), command)
	if err != nil || len(done.Granted)+done.Dropped != 0 {
		t.Fatalf("with the worker held: %v, %+v", err, done)
	}
	h.release()
	if done, err = s.store.Dispatch(t.Context(), command); err != nil || len(done.Granted) != 1 {
		t.Fatalf("with the worker free: %v, %+v", err, done)
	}
}
