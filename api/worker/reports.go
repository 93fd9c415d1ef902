package worker

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

const (
	// maxReports is how many reports go into one call; the server takes as many.
	maxReports = 500
	// reportCalls is how many calls are under way at most, those that take long aside.
	reportCalls = 2
)

// reports gathers what is to be reported: the first report goes out at once, those that come
// while calls are under way go together in the next. Each has its own answer.
type reports struct {
	servers *servers

	mu    sync.Mutex
	queue []*outgoing
	calls int // under way, but for those that take long
	wg    sync.WaitGroup
}

// outgoing is a report that waits for its answer.
type outgoing struct {
	session *session
	req     *leaseholdv1.ReportAttemptRequest
	most    int // reports that it may share a call with, itself included
	answer  chan reportAnswer
}

// reportAnswer is what came of one try.
type reportAnswer struct {
	resp *leaseholdv1.ReportAttemptResponse
	err  error
	with int // of how many reports a call failed as a whole; 1: the answer is this report's own
}

// send makes one try to report. ctx is the same for all reports.
func (g *reports) send(ctx context.Context, s *session, req *leaseholdv1.ReportAttemptRequest, most int) reportAnswer {
	o := &outgoing{session: s, req: req, most: most, answer: make(chan reportAnswer, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, o)
	g.start(ctx)
	g.mu.Unlock()
	select {
	case a := <-o.answer:
		return a
	case <-ctx.Done():
		return reportAnswer{err: ctx.Err(), with: 1}
	}
}

// start starts as many calls as may be under way. mu is held.
func (g *reports) start(ctx context.Context) {
	for g.calls < reportCalls && len(g.queue) > 0 {
		batch := g.queue[:together(g.queue)]
		g.queue = g.queue[len(batch):]
		g.calls++
		g.wg.Go(func() { g.callOnce(ctx, batch) })
	}
}

// together is how many of the first reports go into one call, one at least.
func together(queue []*outgoing) int {
	most, bytes := maxReports, 0
	for i, o := range queue {
		most = min(most, o.most)
		if bytes += proto.Size(o.req); i > 0 && (i >= most || bytes > o.session.maxBatch) {
			return i
		}
	}
	return len(queue)
}

// callOnce makes one call. If it takes long it does not keep the next from being made.
func (g *reports) callOnce(ctx context.Context, batch []*outgoing) {
	gone := sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls--
		g.start(ctx)
	})
	defer gone()
	var answers []reportAnswer
	err := g.servers.call(ctx, bounds{limit: callTimeout, patience: callPatience, slow: gone}, func(ctx context.Context, c leaseholdv1.WorkerServiceClient) (err error) {
		answers, err = reportTogether(ctx, c, batch)
		return err
	})
	for i, o := range batch {
		if err != nil {
			o.answer <- reportAnswer{err: err, with: len(batch)}
			continue
		}
		o.answer <- answers[i]
	}
}

// reportTogether returns an answer for each report, or why the call failed as a whole.
func reportTogether(ctx context.Context, c leaseholdv1.WorkerServiceClient, batch []*outgoing) ([]reportAnswer, error) {
	opts := batch[0].session.opts
	if len(batch) == 1 {
		resp, err := c.ReportAttempt(ctx, batch[0].req, opts...)
		return []reportAnswer{{resp: resp, with: 1}}, err
	}
	req := &leaseholdv1.BatchReportAttemptsRequest{}
	for _, o := range batch {
		req.Reports = append(req.Reports, o.req)
	}
	resp, err := c.BatchReportAttempts(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	answers := make([]reportAnswer, len(batch))
	for i := range batch {
		answers[i] = reportAnswer{err: errNoResult, with: 1}
		if i >= len(resp.GetResults()) {
			continue
		}
		switch result := resp.GetResults()[i].GetResult().(type) {
		case *leaseholdv1.BatchReportAttemptsResult_Response:
			answers[i] = reportAnswer{resp: result.Response, with: 1}
		case *leaseholdv1.BatchReportAttemptsResult_Error:
			answers[i].err = fromStatus(result.Error)
		}
	}
	return answers, nil
}
