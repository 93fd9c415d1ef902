package grpcapi

import (
	"context"

	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

const (
	// pageReserve is kept free in an answer for what stands beside its items.
	pageReserve = 1 << 10
	// itemOverhead is the most that a list's item weighs beyond its own bytes.
	itemOverhead = 6
	// firstPayloadSteps is how many steps are read with their payloads at first. Further
	// reads double it while there is room, so that large payloads are not read in vain.
	firstPayloadSteps = 16
)

// room is what is left of an answer's size.
type room struct {
	left  int
	taken int
}

func newRoom(maxMessage int) *room { return &room{left: maxMessage - pageReserve} }

// take tells whether an item still fits. The first one always does: a page without any
// would come again and again.
func (r *room) take(item proto.Message) bool {
	size := proto.Size(item) + itemOverhead
	if r.taken > 0 && size > r.left {
		return false
	}
	r.left -= size
	r.taken++
	return true
}

// stepPage is an execution with some of its steps; last is the ordinal of the last of them.
type stepPage struct {
	execution *leaseholdv1.Execution
	last      int
	more      bool
}

// readSteps reads as many steps as one answer takes, all as of the same revision.
func (s *executionService) readSteps(ctx context.Context, q scheduler.ExecutionQuery) (*stepPage, error) {
	page := &stepPage{last: q.AfterOrdinal}
	var space *room
	limit := q.StepLimit
	if q.Payloads {
		q.StepLimit = firstPayloadSteps
	}
	for read := 0; ; q.StepLimit = min(2*q.StepLimit, limit-read) {
		view, more, err := s.queries.GetExecution(ctx, q)
		if err != nil || view == nil {
			return page, err
		}
		if page.execution == nil {
			page.execution = encodeExecution(view)
			space = newRoom(s.maxMessage - proto.Size(page.execution))
		}
		page.more = more && len(view.Steps) > 0
		if view.Revision != page.execution.Revision {
			page.more = true
			return page, nil
		}
		if full := page.add(view, space, s.maxMessage); full {
			page.more = true
			return page, nil
		}
		read += len(view.Steps)
		if !page.more || read >= limit {
			return page, nil
		}
		q.AfterOrdinal = page.last
	}
}

// add appends the steps of a read; full tells that not all of them fit.
func (p *stepPage) add(view *scheduler.ExecutionView, space *room, maxMessage int) (full bool) {
	for i := range view.Steps {
		step := encodeStep(&view.Steps[i], view.Now)
		if space.taken == 0 {
			shrink(step, maxMessage-pageReserve-proto.Size(p.execution))
		}
		if !space.take(step) {
			return true
		}
		p.execution.Steps = append(p.execution.Steps, step)
		p.last = view.Steps[i].Ordinal
	}
	return false
}

// shrink makes a step fit that is too large for an answer of its own: it loses the details of
// its attempts' failures, then their messages, then payloads.
func shrink(s *leaseholdv1.Step, limit int) {
	for _, drop := range []func(){
		func() {
			for _, a := range s.GetAttempts() {
				if a.GetFailure() != nil {
					a.Failure.Details = nil
				}
			}
		},
		func() {
			for _, a := range s.GetAttempts() {
				a.Failure = nil
			}
		},
		func() { s.Output, s.Input = nil, nil },
	} {
		if proto.Size(s)+itemOverhead <= limit {
			return
		}
		drop()
	}
}

// encodeBatch leaves labels out should the answer be too large: what was accepted has to be
// answered.
func encodeBatch(answers []*leaseholdv1.EnqueueExecutionResponse, maxMessage int) *leaseholdv1.BatchEnqueueExecutionsResponse {
	batch := &leaseholdv1.BatchEnqueueExecutionsResponse{Results: make([]*leaseholdv1.BatchEnqueueExecutionsResult, len(answers))}
	for i, a := range answers {
		batch.Results[i] = &leaseholdv1.BatchEnqueueExecutionsResult{
			Result: &leaseholdv1.BatchEnqueueExecutionsResult_Response{Response: a},
		}
	}
	if proto.Size(batch) <= maxMessage {
		return batch
	}
	for _, a := range answers {
		if a.GetExecution() != nil {
			a.Execution.Labels = nil
		}
	}
	return batch
}
