package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// follower watches one execution over whatever happens to the replicas, from where it was.
type follower struct {
	t    *testing.T
	id   string
	at   int64
	told []string // milestones, of changes
	ends *sync.Map
}

// follow goes on at another replica whenever a stream ends, until the execution has ended.
func (f *follower) follow(ctx context.Context, peers []*peer, first int) {
	for i := first; ctx.Err() == nil; i++ {
		err := f.once(ctx, peers[i%len(peers)])
		if err == nil {
			return
		}
		if code := status.Code(err); code != codes.Unavailable {
			f.t.Errorf("a watch ended with %v", err)
			return
		}
		n, _ := f.ends.LoadOrStore(reasonOf(err), &atomic.Int64{})
		n.(*atomic.Int64).Add(1) //nolint:forcetypeassert // stored above
		pause(ctx, 50*time.Millisecond)
	}
	f.t.Errorf("execution %s: told up to %d only", f.id, f.at)
}

// once is one stream, to its end.
func (f *follower) once(ctx context.Context, p *peer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.executions.WatchExecution(ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: f.id, AfterRevision: f.at})
	for err == nil {
		var m *leaseholdv1.WatchExecutionResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if e := m.GetChange().GetEntry(); e != nil {
			if e.GetSequence() != f.at+1 {
				f.t.Errorf("execution %s: told of %d after %d", f.id, e.GetSequence(), f.at)
			}
			f.told = append(f.told, e.GetMilestoneKey())
		} else if f.at != 0 {
			f.t.Errorf("execution %s: a snapshot after %d", f.id, f.at)
		}
		f.at = m.GetRevision()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// TestWatches_GoOnOverEverything: those that watch are told every change once and in order, while
// their replicas are replaced and killed, and PostgreSQL is restarted and killed.
func TestWatches_GoOnOverEverything(t *testing.T) {
	alongside(t)
	c := newCluster(t, clusterConfig{ownDatabase: true})
	var peers []*peer
	for _, r := range c.replicas {
		peers = append(peers, dial(t, r.addr))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var followers []*follower
	ends := &sync.Map{}
	for range sized(10, 100) {
		f := &follower{t: t, id: enqueueChain(t, peers[0], sized(60, 200)), ends: ends}
		followers = append(followers, f, &follower{t: t, id: f.id, at: 1, ends: ends})
	}
	watching := &sync.WaitGroup{}
	left := atomic.Int64{}
	left.Store(int64(len(followers)))
	for i, f := range followers {
		watching.Go(func() { f.follow(ctx, peers, i); left.Add(-1) })
	}
	h := newHand(t, peers[2], 1000, "watched")
	working, endWork := context.WithCancel(ctx)
	worked := make(chan struct{})
	go func() { defer close(worked); workUntil(working, h, peers) }()
	ended := func(reason string) int64 {
		if n, any := ends.Load(reason); any {
			return n.(*atomic.Int64).Load() //nolint:forcetypeassert // stored by followers
		}
		return 0
	}

	pause(ctx, time.Second)
	if took, status := c.replicas[0].terminate(10 * time.Second); status != 0 {
		t.Errorf("status %d after %s", status, took)
	}
	eventually(t, goOnLimit, "ended resumably", func() bool { return ended("STREAM_ENDED") >= int64(len(followers)/3) })
	c.replicas[0].start()
	c.replicas[1].kill()
	eventually(t, goOnLimit, "cut off", func() bool { return ended("") > 0 })
	c.replicas[1].start()
	servesAgain(t, c.replicas[1])
	pause(ctx, time.Second)
	before := ended("") + ended("STREAM_ENDED")
	for _, away := range []func(){func() { c.pg.Down(ctx) }, c.pg.Kill} {
		away()
		again(t, c)
		pause(ctx, 2*time.Second)
	}
	if n := ended("") + ended("STREAM_ENDED") - before; n != 0 {
		t.Errorf("%d streams ended while the database was away", n)
	}
	if left.Load() == 0 {
		t.Error("everything had ended before the last fault: let the work take longer")
	}

	watching.Wait()
	endWork()
	<-worked
	t.Logf("streams ended: %d resumably, %d without a word, %d for want of the database", ended("STREAM_ENDED"), ended(""), ended("STORAGE_UNAVAILABLE"))
	for _, f := range followers {
		var story []string
		for _, e := range timelineOf(t, peers[0], f.id) {
			story = append(story, e.GetMilestoneKey())
		}
		if want := fmt.Sprint(story[len(story)-len(f.told):]); fmt.Sprint(f.told) != want || f.at != int64(len(story)) {
			t.Errorf("execution %s: told of %d entries up to %d, of %d; they differ", f.id, len(f.told), f.at, len(story))
		}
	}
}

// enqueueChain enqueues steps that follow each other.
func enqueueChain(t *testing.T, p *peer, n int) string {
	t.Helper()
	r := &leaseholdv1.EnqueueExecutionRequest{Name: "watched", IdempotencyKey: uuid.NewString()}
	for i := range n {
		step := &leaseholdv1.StepSpec{Name: fmt.Sprint("s", i), Capability: "watched"}
		if i > 0 {
			step.DependsOn = []string{fmt.Sprint("s", i-1)}
		}
		r.Steps = append(r.Steps, step)
	}
	answer, err := p.executions.EnqueueExecution(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetExecution().GetId()
}

// workUntil does what there is to do, at whichever replica answers.
func workUntil(ctx context.Context, h *hand, peers []*peer) {
	for i := 0; ctx.Err() == nil; i++ {
		p := peers[i%len(peers)]
		polled, cancel := context.WithTimeout(ctx, 5*time.Second)
		got := h.poll(polled, p, 1000, time.Second, 20*time.Second)
		cancel()
		for _, l := range got.leases {
			for try := 0; ctx.Err() == nil && try < 50; try++ {
				limited, cancel := context.WithTimeout(ctx, 5*time.Second)
				err := h.succeed(limited, peers[(i+try)%len(peers)], l)
				cancel()
				if err == nil || !unknown(status.Code(err)) {
					break
				}
				pause(ctx, 50*time.Millisecond)
			}
		}
		pause(ctx, 400*time.Millisecond)
	}
}

func timelineOf(t *testing.T, p *peer, id string) []*leaseholdv1.TimelineEntry {
	t.Helper()
	answer, err := p.executions.ListTimeline(t.Context(), &leaseholdv1.ListTimelineRequest{ExecutionId: id, PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetEntries()
}
