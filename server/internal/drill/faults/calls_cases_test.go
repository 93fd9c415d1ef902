package faults

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// TestB57_TimeoutThenRetryWithTheKey: answers are slower than the client's patience; its
// repeats with the same key make one execution.
func TestB57_TimeoutThenRetryWithTheKey(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{replicas: 1})
	between := newProxy(t, c.replicas[0].addr)
	p := dial(t, between.Addr())
	ask := func(key string, limit time.Duration) (*leaseholdv1.EnqueueExecutionResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return p.executions.EnqueueExecution(ctx, &leaseholdv1.EnqueueExecutionRequest{
			Name: "b57", IdempotencyKey: key, Steps: []*leaseholdv1.StepSpec{{Name: "only", Capability: "b57"}},
		})
	}
	if _, err := ask("warm", 10*time.Second); err != nil { // the connection is there
		t.Fatal(err)
	}
	between.AnswerLate(200 * time.Millisecond)
	unheard := 0
	keys := sized(10, 100)
	for range keys {
		key := uuid.NewString()
		heard := false
		for range 4 {
			// Where processors are scarce, a client may notice the answer before its time-out.
			_, err := ask(key, 50*time.Millisecond)
			if err != nil && status.Code(err) != codes.DeadlineExceeded {
				t.Fatalf("enqueue: %v", err)
			}
			heard = heard || err == nil
		}
		answer, err := ask(key, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if !answer.GetCreated() && !heard {
			unheard++
		}
		if n := c.number(`SELECT count(*) FROM executions WHERE idempotency_key = $1`, key); n != 1 {
			t.Errorf("%d executions with one key", n)
		}
		if n := c.number(`SELECT count(*) FROM executions WHERE id = $1`, answer.GetExecution().GetId()); n != 1 {
			t.Errorf("the execution that was answered is not there")
		}
	}
	t.Logf("of %d keys %d were made by a call whose answer was not heard", keys, unheard)
	if unheard == 0 {
		t.Error("no call was written whose answer came too late: this proves nothing")
	}
}

// TestB92_NoDeadlockIsSeen: cancels in random order, reports, lapsing leases and the sweep go
// for the same executions, through three replicas.
func TestB92_NoDeadlockIsSeen(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{})
	l := startLoad(t, c, loadConfig{
		workers: sized(20, 40), executions: sized(40, 200), steps: 20, lease: time.Second, pause: 20 * time.Millisecond,
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var cancels sync.WaitGroup
	for range 4 {
		one := newClient(t, l.rec, c.addresses())
		cancels.Go(func() { cancelByChance(ctx, l, one) })
	}
	eventually(t, 2*time.Minute, "enough executions", func() bool {
		return l.rec.enqueues.Load() >= int64(l.cfg.executions)
	})
	time.Sleep(sized(time.Second, time.Minute)) // the case goes on for a while
	stop()
	cancels.Wait()
	l.finish()
	t.Logf("deadlocks that PostgreSQL found: %d", c.number(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`))
}

// cancelByChance cancels executions in random order, some of them more than once.
func cancelByChance(ctx context.Context, l *load, c *client) {
	for ctx.Err() == nil {
		var ids []string
		l.ids.Range(func(_, id any) bool {
			ids = append(ids, id.(string))
			return true
		})
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		for _, id := range ids[:min(len(ids), 3)] {
			insist(ctx, c, callLimit, call{kind: kindCancel, execution: id}, func(ctx context.Context, p *peer, _ *call) error {
				_, err := p.executions.CancelExecution(ctx, &leaseholdv1.CancelExecutionRequest{ExecutionId: id, Reason: "drill"})
				return err
			})
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// TestB108_TermWithOpenPolls: a replica that is asked to end says so at once, answers its
// parked polls, ends in bounded time with status 0, and leaves the leases as they are.
func TestB108_TermWithOpenPolls(t *testing.T) {
	c := newCluster(t, clusterConfig{replicas: 2})
	leaving, staying := dial(t, c.replicas[0].addr), dial(t, c.replicas[1].addr)
	enqueue(t, leaving, 5, "b108")
	running := newHand(t, leaving, 5, "b108")
	leases := running.take(leaving, 5, time.Minute)
	const rows = `SELECT coalesce(string_agg(l::text, ';' ORDER BY attempt_id), '') FROM leases l`
	var before, after string
	if err := c.db.QueryRow(t.Context(), rows).Scan(&before); err != nil {
		t.Fatal(err)
	}
	idle := newHand(t, leaving, 20, "nothing-of-this")
	var polls []<-chan polled
	for range 20 {
		polls = append(polls, idle.park(leaving, 30*time.Second, time.Minute))
	}
	watch, err := healthpb.NewHealthClient(leaving.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if state, err := watch.Recv(); err != nil || state.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health is %v, %v before the end", state.GetStatus(), err)
	}
	time.Sleep(time.Second) // the polls are parked: they are looked up twice a second
	asked := time.Now()
	took := make(chan time.Duration, 1)
	go func() {
		d, status := c.replicas[0].terminate(15 * time.Second)
		if status != 0 {
			t.Errorf("exit status %d, want 0", status)
		}
		took <- d
	}()
	if state, err := watch.Recv(); err != nil || state.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %v, %v while it ends", state.GetStatus(), err)
	}
	checkAnswered(t, polls, asked)
	d := <-took
	t.Logf("ended %s after SIGTERM", d)
	if d > 10*time.Second {
		t.Errorf("ended %s after SIGTERM, want within 10 s", d)
	}
	if err := c.db.QueryRow(t.Context(), rows).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("the leases were touched:\n%s\n%s", before, after)
	}
	for _, lease := range leases {
		if err := running.succeed(t.Context(), staying, lease); err != nil {
			t.Errorf("report through the other replica: %v", err)
		}
	}
}

// checkAnswered: each parked poll was answered soon after a moment, and not before, and got
// nothing.
func checkAnswered(t *testing.T, polls []<-chan polled, asked time.Time) {
	t.Helper()
	for _, poll := range polls {
		got := <-poll
		if waited := got.at.Sub(asked); waited > time.Second+slack()/2 || got.at.Before(asked) {
			t.Errorf("a parked poll was answered %s after SIGTERM", waited)
		}
		if len(got.leases) != 0 || got.err != nil && status.Code(got.err) != codes.Unavailable {
			t.Errorf("a parked poll got %v, %v", got.leases, got.err)
		}
	}
}
