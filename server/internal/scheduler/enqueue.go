package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold/leasehold/server/internal/task"
)

// Enqueue accepts a checked specification. After its answer the execution is never lost. The
// same key with the same content is answered with the existing execution; with other content
// by *KeyReusedError.
func (s *Scheduler) Enqueue(ctx context.Context, spec *task.ExecutionSpec) (Enqueued, error) {
	r := s.enqueues.do(ctx, newExecution(spec))[0]
	return r.Value, r.Err
}

// EnqueueAll accepts all specifications, or with an error none.
func (s *Scheduler) EnqueueAll(ctx context.Context, specs []*task.ExecutionSpec) ([]Enqueued, error) {
	batch := make([]NewExecution, len(specs))
	for i, spec := range specs {
		batch[i] = newExecution(spec)
	}
	results, err := s.store.Enqueue(ctx, batch, true, true)
	if errors.Is(err, ErrBusy) { // an execution under one of the keys went away just now
		return nil, &UnavailableError{Cause: err, RetryAfter: time.Second, Locked: true}
	}
	if err != nil {
		s.noteEnqueued(Result[Enqueued]{Err: err})
		return nil, err
	}
	enqueued := make([]Enqueued, len(results))
	for i, r := range results {
		s.noteEnqueued(Result[Enqueued]{Value: r.Value})
		enqueued[i] = r.Value // all are accepted; one that existed may have its id only
	}
	s.hint(HintWork)
	return enqueued, nil
}

// newExecution makes the ids before the first try, so that a commit whose answer is lost can
// be found.
func newExecution(spec *task.ExecutionSpec) NewExecution {
	n := NewExecution{Spec: spec, Hash: spec.Fingerprint()}
	n.IDs.Execution = newID()
	n.IDs.Steps = make([]uuid.UUID, len(spec.Steps))
	for i := range n.IDs.Steps {
		n.IDs.Steps[i] = newID()
	}
	return n
}

func weighExecution(n NewExecution) int {
	bytes := len(n.Spec.Steps) * bytesPerStep
	for i := range n.Spec.Steps {
		bytes += n.Spec.Steps[i].Input.Size()
	}
	return bytes
}

func (s *Scheduler) flushEnqueues(ctx context.Context, batch []NewExecution, wait bool) ([]Result[Enqueued], error) {
	results, err := s.store.Enqueue(ctx, batch, false, wait)
	for _, r := range results {
		s.noteEnqueued(r)
	}
	if err == nil {
		s.hint(HintWork)
	}
	return results, err
}

func (s *Scheduler) noteEnqueued(r Result[Enqueued]) {
	var reused *KeyReusedError
	switch {
	case errors.As(r.Err, &reused):
		s.observer.Enqueued(EnqueueConflict)
	case r.Err != nil: // not answered yet, or not at all
	case r.Value.Created:
		s.observer.Enqueued(EnqueueCreated)
	default:
		s.observer.Enqueued(EnqueueExisting)
	}
}
