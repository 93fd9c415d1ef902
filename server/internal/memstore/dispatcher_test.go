package memstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold/leasehold/server/internal/memstore"
	"github.com/leasehold/leasehold/server/internal/scheduler"
	"github.com/leasehold/leasehold/server/internal/task"
)

// counting counts what the dispatcher asks of its store.
type counting struct {
	*memstore.Store
	looks, claims atomic.Int64
	looked        atomic.Int64 // looks before the last claim
}

func (c *counting) NextDue(ctx context.Context, groups []scheduler.Group) ([]scheduler.DueGroup, error) {
	c.looks.Add(1)
	return c.Store.NextDue(ctx, groups)
}

func (c *counting) Claim(ctx context.Context, command scheduler.ClaimCommand) (scheduler.Claimed, error) {
	c.claims.Add(1)
	c.looked.Store(c.looks.Load())
	return c.Store.Claim(ctx, command)
}

func plain(capability string, steps int) *task.ExecutionSpec {
	e := &task.ExecutionSpec{Namespace: "default", Name: "plain", CancelGrace: time.Minute}
	for i := range steps {
		e.Steps = append(e.Steps, task.StepSpec{
			Name: string(rune('a' + i)), Capability: capability, Retry: task.DefaultRetryPolicy(), StartToClose: time.Hour,
		})
	}
	return e
}

// drain works steps off, five at a time, until so many are done, and calls after each poll.
func drain(ctx context.Context, t *testing.T, s *scheduler.Scheduler, capability string, steps int, after func(done int)) {
	session, err := s.Register(ctx, scheduler.Registration{Namespace: "default", Name: capability, Capabilities: []string{capability}, Slots: 5})
	if err != nil {
		t.Error(err)
		return
	}
	for done := 0; done < steps; {
		answer, err := s.Poll(ctx, scheduler.Poll{
			WorkerID: session.WorkerID, SessionID: session.SessionID, MaxLeases: 5, Wait: 20 * time.Second, Duration: time.Minute, Received: time.Now(), // monotonic
		})
		if err != nil {
			t.Errorf("poll: %v", err)
			return
		}
		for _, l := range answer.Leases {
			report := scheduler.Report{AttemptID: l.AttemptID, LeaseVersion: l.LeaseVersion, Outcome: task.Outcome{State: task.AttemptSucceeded}}
			if r := s.Report(ctx, []scheduler.Report{report})[0]; r.Err != nil {
				t.Errorf("report: %v", r.Err)
				return
			}
		}
		done += len(answer.Leases)
		after(done)
	}
}

// While claims come back full there is more: the dispatcher does not look before each. What
// others wait for is found for all that, long before that is done; time stands still here while
// there is work. Caught: a look before each claim.
func TestDispatcher_LooksSeldomWhileThereIsMore(t *testing.T) {
	t.Parallel()
	for _, others := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const steps = 1000
			store := &counting{Store: memstore.New(memstore.Config{Now: time.Now})}
			s := scheduler.New(scheduler.Config{Store: store})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			enqueue := func(capability string, n int) {
				if _, err := s.Enqueue(ctx, plain(capability, n)); err != nil {
					t.Error(err)
				}
			}
			var service, workers sync.WaitGroup
			service.Go(func() { _ = s.Run(ctx) })
			for range steps / 20 {
				enqueue("a", 20)
			}
			var done, doneBefore atomic.Int64
			if others {
				workers.Go(func() { drain(ctx, t, s, "b", 1, func(int) { doneBefore.Store(done.Load()) }) })
			}
			time.Sleep(time.Second) // it waits
			workers.Go(func() {
				drain(ctx, t, s, "a", steps, func(n int) {
					done.Store(int64(n))
					if n == steps/2 && others {
						enqueue("b", 1)
					}
				})
			})
			workers.Wait()
			if n := doneBefore.Load(); others && (n < steps/2 || n > steps*9/10) {
				t.Errorf("what another waited for was leased after %d of %d others", n, steps)
			}
			looks, claims := store.looks.Load(), store.claims.Load()
			t.Logf("%d looks for %d claims", looks, claims)
			if !others && (claims < steps/5 || looks > claims/4) {
				t.Errorf("%d looks for %d claims", looks, claims)
			}
			cancel()
			service.Wait()
		})
	}
}

// Work that a replica has committed itself is claimed for its own polls without a look before; only
// after it. Caught: a look before the claim.
func TestDispatcher_ClaimsItsOwnWorkAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &counting{Store: memstore.New(memstore.Config{Now: time.Now})}
		s := scheduler.New(scheduler.Config{Store: store})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var service, workers sync.WaitGroup
		service.Go(func() { _ = s.Run(ctx) })
		workers.Go(func() { drain(ctx, t, s, "a", 1, func(int) {}) })
		time.Sleep(1500 * time.Millisecond) // its poll is parked, and was looked for
		before := store.looks.Load()
		if _, err := s.Enqueue(ctx, plain("a", 1)); err != nil {
			t.Error(err)
		}
		workers.Wait()
		if claims, looked := store.claims.Load(), store.looked.Load(); claims != 1 || looked != before {
			t.Errorf("%d claims, %d looks before it since the enqueue", claims, looked-before)
		}
		cancel()
		service.Wait()
	})
}
