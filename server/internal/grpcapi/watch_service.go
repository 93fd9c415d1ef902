package grpcapi

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
	"github.com/leasehold/leasehold/server/internal/scheduler"
)

// Watches tells of executions while they change.
type Watches interface {
	// Watch tells how an execution stands, or what came after a revision, and then every change
	// until it has ended.
	Watch(ctx context.Context, execution uuid.UUID, after int64, tell func(scheduler.Update) error) error
}

// WatchExecution tells of an execution until it has ended. It ends earlier, in a way that can be
// gone on from, when the server stops and before the connection becomes too old.
func (s *executionService) WatchExecution(r *leaseholdv1.WatchExecutionRequest, stream grpc.ServerStreamingServer[leaseholdv1.WatchExecutionResponse]) error {
	ctx, cancel := untilOld(stream.Context(), s.maxAge)
	defer cancel()
	w := &watchStream{stream: stream, maxMessage: s.maxMessage, revision: r.GetAfterRevision()}
	err := s.watches.Watch(ctx, id(r.GetExecutionId()), r.GetAfterRevision(), func(u scheduler.Update) error {
		if u.Snapshot != nil {
			return w.snapshot(u.Snapshot, u.More)
		}
		return w.changes(ctx, &u.Changes)
	})
	return endedEarly(ctx, err, w.revision)
}

// watchStream is what one watch sends.
type watchStream struct {
	stream     grpc.ServerStreamingServer[leaseholdv1.WatchExecutionResponse]
	maxMessage int
	revision   int64 // everything up to here was sent
}

// snapshot sends a part of a snapshot, in as many messages as its steps need.
func (w *watchStream) snapshot(v *scheduler.ExecutionView, more bool) error {
	part := encodeExecution(v)
	head := proto.Size(part)
	space := newRoom(w.maxMessage - head)
	for i := range v.Steps {
		step := encodeStep(&v.Steps[i], v.Now)
		if !space.take(step) {
			if err := w.part(part, true); err != nil {
				return err
			}
			part, space = encodeExecution(v), newRoom(w.maxMessage-head)
			space.take(step)
		}
		part.Steps = append(part.Steps, step)
	}
	return w.part(part, more)
}

func (w *watchStream) part(e *leaseholdv1.Execution, more bool) error {
	answer := &leaseholdv1.WatchExecutionResponse{Update: &leaseholdv1.WatchExecutionResponse_Snapshot{
		Snapshot: &leaseholdv1.ExecutionSnapshot{Execution: e, More: more},
	}}
	if !more {
		answer.Revision = e.GetRevision()
	}
	return w.send(answer)
}

// changes sends each entry, with what was read beside it.
func (w *watchStream) changes(ctx context.Context, c *scheduler.Changes) error {
	execution := encodeExecution(c.Execution)
	execution.Labels = nil
	for i := range c.Entries {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e := &c.Entries[i]
		change := &leaseholdv1.ExecutionChange{Entry: encodeEntry(&e.EntryView), Execution: execution}
		if e.Step != nil {
			change.Step = encodeStep(e.Step, c.Execution.Now)
		}
		err := w.send(&leaseholdv1.WatchExecutionResponse{
			Revision: e.Sequence, Update: &leaseholdv1.WatchExecutionResponse_Change{Change: change},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *watchStream) send(answer *leaseholdv1.WatchExecutionResponse) error {
	if err := w.stream.Send(answer); err != nil {
		return err
	}
	w.revision = answer.GetRevision()
	return nil
}
