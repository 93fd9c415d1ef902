package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// pollSlack is how much longer than its wait a poll may take before it counts as failed.
	// The server answers about a second before a call's deadline, so this also keeps it from
	// cutting the wait short.
	pollSlack = 5 * time.Second
	// drainedPoll is how often a drained worker asks whether it still is.
	drainedPoll = 4 * time.Second
	// pollPatience of that is when its server counts as failing.
	pollPatience = 3 * time.Second
	// emptySoon is when an empty answer came too soon to be the end of a wait: the server is
	// stopping or has no room for the poll, and asking again at once would be a loop.
	emptySoon = 500 * time.Millisecond
	// maxLeases is the most that one poll may ask for.
	maxLeases = 1000
)

// poller asks for work, one poll at a time and never for more than there are free slots, and
// keeps the session.
type poller struct {
	*run
	session *session
	launch  func(*lease)

	lost  int // sessions in a row that were not known when they polled
	hasty int // empty answers in a row that came too soon
}

// loop polls until ctx ends, and returns nil then, or ErrSuperseded. polling is for the calls, and
// outlasts ctx.
func (p *poller) loop(ctx, polling context.Context) error {
	for {
		free := p.leases.waitFree(ctx)
		if ctx.Err() != nil {
			return nil
		}
		g, err := p.poll(ctx, polling, free)
		switch {
		case errors.Is(err, ErrSuperseded):
			return fmt.Errorf("worker %q: %w", p.session.name, err)
		case errors.Is(err, errSessionNotFound):
			err = p.reregister(ctx)
		case err == nil:
			p.accept(ctx, g, free)
			err = p.rest(ctx, g)
		}
		if err != nil { // only ctx is left
			return nil
		}
	}
}

// grant is an answered poll.
type grant struct {
	resp *leaseholdv1.LeaseAttemptResponse
	from time.Time // when, at the earliest, its leases began to count
	took time.Duration
}

// poll asks until it has an answer. Each try bears the same request_id, so that leases whose
// answer was lost come with the next.
func (p *poller) poll(ctx, polling context.Context, free int) (grant, error) {
	req := &leaseholdv1.LeaseAttemptRequest{
		WorkerId:      p.session.workerID,
		SessionId:     p.session.id,
		RequestId:     uuid.NewString(),
		MaxLeases:     int32(min(free, maxLeases)), // bounded
		WaitTimeout:   durationpb.New(p.session.wait),
		LeaseDuration: durationpb.New(p.session.lease),
	}
	for try := 0; ; try++ {
		g, err := p.tryPoll(polling, req)
		if err == nil {
			p.outage.over(p.log)
			p.lost = 0
			return g, nil
		}
		if ctx.Err() != nil {
			return grant{}, ctx.Err()
		}
		if errors.Is(err, ErrSuperseded) || errors.Is(err, errSessionNotFound) {
			return grant{}, err
		}
		if !isAway(err) || !p.servers.spare() {
			p.outage.failed(p.log, "poll", err)
		}
		if !p.servers.pause(ctx, retryWait(try, backoffCap), err) {
			return grant{}, ctx.Err()
		}
	}
}

func (p *poller) tryPoll(ctx context.Context, req *leaseholdv1.LeaseAttemptRequest) (grant, error) {
	var resp *leaseholdv1.LeaseAttemptResponse
	sent := time.Now()
	wait := p.session.wait
	err := p.servers.call(ctx, bounds{limit: wait + pollSlack, patience: wait + pollPatience}, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) (err error) {
		resp, err = c.LeaseAttempt(ctx, req, p.session.opts...)
		return err
	})
	if err != nil {
		return grant{}, err
	}
	return grant{resp: resp, from: sent.Add(resp.GetHeldDuration().AsDuration()), took: time.Since(sent)}, nil
}

// accept starts what was granted. What came too late, is over already or was never asked for
// is handed back.
func (p *poller) accept(ctx context.Context, g grant, free int) {
	for i, granted := range g.resp.GetLeases() {
		l := newLease(granted, p.session, g.from)
		switch {
		case ctx.Err() != nil:
			l.handBack = release("the worker is stopping", 0)
		case !time.Now().Before(l.cutoff):
			l.handBack = release("the lease was over before it arrived", 0)
		case i >= free:
			l.handBack = release("the worker has no free slot", 0)
		}
		p.launch(l)
	}
}

// rest waits where asking again at once would be useless.
func (p *poller) rest(ctx context.Context, g grant) error {
	drained := g.resp.GetDirective() == leaseholdv1.Directive_DIRECTIVE_DRAIN
	p.drained.Store(drained)
	if drained {
		p.log.Debug("worker is drained")
		sleep(ctx, drainedPoll+rand.N(drainedPoll/4)) // only spreads load
		return ctx.Err()
	}
	if len(g.resp.GetLeases()) > 0 || g.took >= emptySoon {
		p.hasty = 0
		return ctx.Err()
	}
	sleep(ctx, retryWait(p.hasty, retryCap))
	p.hasty++
	return ctx.Err()
}

// reregister opens a new session under the same name. Leases of the old one cannot be renewed
// any more; their handlers go on until they run out.
func (p *poller) reregister(ctx context.Context) error {
	p.log.Warn("session is not known any more, registering again", "session_id", p.session.id)
	if p.lost > 0 && !sleep(ctx, retryWait(p.lost, backoffCap)) { // a server that forgets at once must not be hammered
		return ctx.Err()
	}
	p.lost++
	s, err := p.register(ctx, p.session.name, false)
	if err != nil {
		return err
	}
	p.session = s
	return nil
}
