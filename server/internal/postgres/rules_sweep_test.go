package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// sweptAgo sets when the last sweep was.
func (s *stand) sweptAgo(d time.Duration) {
	s.t.Helper()
	s.exec("UPDATE sweeps SET swept_at = now() - $1::interval", d)
}

func (s *stand) beginSweep(every time.Duration) scheduler.SweepStart {
	s.t.Helper()
	start, err := s.store.BeginSweep(s.t.Context(), every)
	if err != nil {
		s.t.Fatal(err)
	}
	return start
}

// until is how long a lease still lasts, in seconds.
func (s *stand) until(l scheduler.LeaseView) float64 {
	s.t.Helper()
	return query[float64](s, "SELECT extract(epoch FROM expires_at - now())::float8 FROM leases WHERE attempt_id = $1", l.AttemptID)
}

// Caught: a credit for any gap, or one that does not know the sweep's interval.
func TestSweep_WhatCountsAsAnOutage(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, c := range []struct {
		every, gap     time.Duration
		mine, credited bool
	}{
		{10 * time.Second, time.Second, false, false}, // younger than half an interval
		{time.Minute, 20 * time.Second, false, false},
		{time.Second, 2 * time.Second, true, false},
		{100 * time.Millisecond, 2 * time.Second, true, false}, // never below 5 s
		{100 * time.Millisecond, 7 * time.Second, true, true},
		{time.Minute, 4 * time.Minute, true, false},
		{time.Minute, 6 * time.Minute, true, true},
		{time.Second, -time.Hour, true, false}, // the clock went back
	} {
		s.sweptAgo(c.gap)
		got := s.beginSweep(c.every)
		if got.Mine != c.mine || got.Credited != c.credited {
			t.Errorf("every %v, last %v ago: %+v, want mine %v, credited %v", c.every, c.gap, got, c.mine, c.credited)
		}
		age := query[float64](s, "SELECT extract(epoch FROM now() - swept_at)::float8 FROM sweeps")
		if c.mine && (age < 0 || age > 10) {
			t.Errorf("every %v, last %v ago: the stamp is %v s old", c.every, c.gap, age)
		}
	}
	h := s.hold("SELECT FROM sweeps FOR UPDATE")
	s.eventually("an answer", func() bool { return !s.beginSweep(time.Nanosecond).Mine })
	h.release()
}

// After an outage of the service what was live at the last sweep lasts anew, once. Caught: no
// credit; a credit for what was over before; one that passes the caps, moves start_to_close,
// leaves the cancel's grace where it was, or is given twice.
func TestSweep_CreditAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	w := s.register("w", "a", 10)
	stopped := s.enqueue(spec("a", 1)) // its grace is a minute
	grace := s.leaseOne(w, 10*time.Minute)
	if _, err := cancelOne(s.store, t.Context(), stopped.Execution, ""); err != nil {
		t.Fatal(err)
	}
	s.enqueue(spec("a", 3))
	leases := s.lease(w, 3, 10*time.Minute)
	live, over, capped := leases[0], leases[1], leases[2]
	s.sweptAgo(time.Hour)
	set := func(l scheduler.LeaseView, column, value string) {
		s.exec("UPDATE leases SET "+column+" = now() + $2::interval WHERE attempt_id = $1", l.AttemptID, value)
	}
	set(live, "expires_at", "-30 minutes")
	set(over, "expires_at", "-61 minutes") // at the last sweep already
	set(capped, "expires_at", "-30 minutes")
	set(capped, "cap_at", "2 minutes")
	set(grace, "expires_at", "-59 minutes")
	set(grace, "cancel_at", "-59 minutes")
	s.exec("UPDATE executions SET cancel_deadline = now() - interval '59 minutes' WHERE id = $1", stopped.Execution)
	s.exec("UPDATE workers SET last_seen_at = now() - interval '1 hour'")
	closeAt := query[string](s, "SELECT string_agg(start_to_close_at::text, ' ' ORDER BY id) FROM attempts")

	start := s.beginSweep(time.Second)
	if !start.Credited || start.Gap < 50*time.Minute || !start.LeasesOver {
		t.Fatalf("sweep: %+v", start)
	}
	for _, c := range []struct {
		what   string
		l      scheduler.LeaseView
		lo, hi float64
	}{
		{"live", live, 500, 600}, {"over before", over, -3700, -3600}, {"capped", capped, 60, 120}, {"grace", grace, 20, 120},
	} {
		if got := s.until(c.l); got < c.lo || got > c.hi {
			t.Errorf("%s: lasts another %v s, want %v to %v", c.what, got, c.lo, c.hi)
		}
	}
	if got := query[float64](s, "SELECT extract(epoch FROM cancel_deadline - now())::float8 FROM executions WHERE id = $1", stopped.Execution); got < 20 || got > 120 {
		t.Errorf("the execution's grace ends in %v s, want its minute moved by the gap", got)
	}
	if got := query[string](s, "SELECT string_agg(start_to_close_at::text, ' ' ORDER BY id) FROM attempts"); got != closeAt {
		t.Errorf("start_to_close moved from %s to %s", closeAt, got)
	}
	if age := query[float64](s, "SELECT extract(epoch FROM now() - last_seen_at)::float8 FROM workers"); age > 30 {
		t.Errorf("the session was seen %v s ago, want now", age)
	}
	before := s.until(live)
	if again := s.beginSweep(time.Nanosecond); !again.Mine || again.Credited || s.until(live) > before {
		t.Errorf("a second sweep: %+v, the lease lasts another %v s after %v", again, s.until(live), before)
	}
	swept, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{})
	if err != nil || swept.Done != 1 {
		t.Errorf("swept %+v (%v), want the one that was over before", swept, err)
	}
	s.sane()
}

// Caught: batches without a bound, or a sweep that stops after the first.
func TestSweep_ManyLeasesInBatches(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, executions := range map[string]int{"of many executions": 450, "of one execution": 1} {
		w := s.register(name, "a", 1000)
		total := 500
		for range executions {
			s.enqueue(spec("a", total/executions))
		}
		if executions > 1 {
			total = executions
		}
		for leased := 0; leased < total; {
			leased += len(s.lease(w, 200, time.Minute))
		}
		s.exec("UPDATE leases SET expires_at = now() - interval '1 second'")
		done, batches := 0, 0
		for more := true; more; batches++ {
			swept, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{})
			if err != nil || swept.Done > 200 || len(swept.Missed) > 0 {
				t.Fatalf("%s: %v, %+v", name, err, swept)
			}
			done, more = done+swept.Done, swept.More
		}
		if done != total || batches < 3 {
			t.Errorf("%s: %d leases ended in %d batches, want %d", name, done, batches, total)
		}
		s.sane()
		if n := query[int](s, "SELECT count(*) FROM outbox_events WHERE event_type LIKE '%attempt.v1.lost'"); n != total {
			t.Errorf("%s: %d events of lost attempts, want %d", name, n, total)
		}
		s.exec("TRUNCATE leases, attempts, scheduling_requests, steps, executions, outbox_events, outbox_heads, timeline_entries")
	}
}

// Caught: a sweep that leaves out for ever what another transaction holds: what it was told to
// wait for it waits for, and what it was told to skip it skips.
func TestSweep_WaitsAndSkips(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	held := s.enqueue(spec("a", 1, func(e *task.ExecutionSpec) { e.Timeout = time.Hour }))
	w := s.register("w", "a", 5)
	s.leaseOne(w, time.Minute)
	s.exec("UPDATE leases SET expires_at = now() - interval '1 second'")
	skipped, err := s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{Skipped: []uuid.UUID{held.Execution}})
	if err != nil || skipped.Done != 0 || skipped.More {
		t.Fatalf("with the execution skipped: %v, %+v", err, skipped)
	}
	for _, kind := range []func() (scheduler.Swept, error){
		func() (scheduler.Swept, error) {
			return s.store.ExpireLeases(t.Context(), scheduler.SweepBatch{Wait: []uuid.UUID{held.Execution}})
		},
		func() (scheduler.Swept, error) {
			return s.store.FireTimers(t.Context(), scheduler.SweepBatch{Wait: []uuid.UUID{held.Execution}})
		},
	} {
		h := s.hold("SELECT FROM executions WHERE id = $1 FOR NO KEY UPDATE", held.Execution)
		s.exec("UPDATE timers SET fires_at = now() - interval '1 second'")
		h.exec("UPDATE executions SET deadline = now() - interval '1 second'")
		var swept scheduler.Swept
		done := async(func() error { var err error; swept, err = kind(); return err })
		s.waiting(1)
		h.release()
		if err := <-done; err != nil || swept.Done != 1 {
			t.Fatalf("after the wait: %v, %+v", err, swept)
		}
	}
	if state := query[string](s, "SELECT state FROM executions"); state != "FAILED" {
		t.Errorf("execution is %s after its deadline", state)
	}
	s.sane()
}
