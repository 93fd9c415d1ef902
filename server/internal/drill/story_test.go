package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	leaseholdv1 "github.com/leasehold/leasehold/api/leasehold/v1"
)

// story is what was told of an execution, over one stream or several that went on from each
// other. It fails the test for what is told twice, left out, or does not fit together.
type story struct {
	w  *world
	id string

	mu        sync.Mutex
	snapshots int
	messages  int // of the snapshots
	steps     map[string]leaseholdv1.StepState
	state     leaseholdv1.ExecutionState
	entries   []*leaseholdv1.TimelineEntry
	at        int64 // the revision of the last message
}

func (w *world) story(id string, after int64) *story {
	return &story{w: w, id: id, at: after, steps: map[string]leaseholdv1.StepState{}}
}

// listen watches through a replica, from where the story is, until the stream ends, which it has
// to do some time.
func (s *story) listen(ctx context.Context, replica int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patient)
	defer cancel()
	stream, err := s.w.Client(replica).Executions.WatchExecution(ctx, &leaseholdv1.WatchExecutionRequest{ExecutionId: s.id, AfterRevision: s.told()})
	for err == nil {
		var m *leaseholdv1.WatchExecutionResponse
		if m, err = stream.Recv(); err == nil {
			s.hear(m)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// begin listens in the background.
func (s *story) begin(ctx context.Context, replica int) <-chan error {
	end := make(chan error, 1)
	go func() { end <- s.listen(ctx, replica) }()
	return end
}

// told is the revision up to which the story goes.
func (s *story) told() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *story) hear(m *leaseholdv1.WatchExecutionResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := m.GetChange(); c != nil {
		s.change(m.GetRevision(), c)
	} else {
		s.snapshot(m.GetRevision(), m.GetSnapshot())
	}
	s.at = m.GetRevision()
}

func (s *story) change(revision int64, c *leaseholdv1.ExecutionChange) {
	t, e := s.w.t, c.GetEntry()
	if e.GetSequence() != s.at+1 || revision != e.GetSequence() {
		t.Errorf("entry %d as revision %d came after %d", e.GetSequence(), revision, s.at)
	}
	if x := c.GetExecution(); x.GetId() != s.id || x.GetRevision() < revision || len(x.GetSteps()) > 0 {
		t.Errorf("entry %d came with execution %s as of %d", revision, x.GetId(), x.GetRevision())
	}
	if c.GetStep().GetName() != e.GetStepName() || len(c.GetStep().GetAttempts()) > 1 {
		t.Errorf("entry %d of step %q came with step %v", revision, e.GetStepName(), c.GetStep())
	}
	if a := e.GetAttemptNumber(); a > c.GetStep().GetAttemptCount() {
		t.Errorf("entry %d of attempt %d came with a step that had %d", revision, a, c.GetStep().GetAttemptCount())
	}
	s.entries = append(s.entries, e)
	s.state = c.GetExecution().GetState()
	if c.GetStep() != nil {
		s.steps[c.GetStep().GetName()] = c.GetStep().GetState()
	}
}

func (s *story) snapshot(revision int64, part *leaseholdv1.ExecutionSnapshot) {
	x := part.GetExecution()
	if x.GetId() != s.id || (revision != 0) == part.GetMore() || revision != 0 && revision != x.GetRevision() {
		s.w.t.Errorf("a part of a snapshot of %s as of %d came as revision %d, more: %v", x.GetId(), x.GetRevision(), revision, part.GetMore())
	}
	s.messages++
	if !part.GetMore() {
		s.snapshots++
	}
	s.state = x.GetState()
	for _, step := range x.GetSteps() {
		if _, twice := s.steps[step.GetName()]; twice && s.snapshots < 2 {
			s.w.t.Errorf("step %s came twice", step.GetName())
		}
		s.steps[step.GetName()] = step.GetState()
	}
}

// finished fails the test unless the stream ended OK, and the story is the timeline from where
// it began.
func (s *story) finished(what string, end error) {
	t := s.w.t
	t.Helper()
	if end != nil {
		t.Errorf("%s: the stream ended with %v", what, end)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.w.timeline(s.id)
	want(t, what+": up to", s.at, int64(len(all)))
	if len(s.entries) > len(all) {
		t.Fatalf("%s: told of %d entries, there are %d", what, len(s.entries), len(all))
	}
	for i, e := range all[len(all)-len(s.entries):] {
		want(t, fmt.Sprint(what, ": entry ", e.GetSequence()), s.entries[i].GetMilestoneKey(), e.GetMilestoneKey())
	}
	if s.snapshots == 0 && len(s.entries) == 0 {
		return
	}
	e := s.w.get(s.id)
	want(t, what+": state", s.state, e.GetState())
	for _, step := range e.GetSteps() {
		if state, told := s.steps[step.GetName()]; told || s.snapshots > 0 {
			want(t, what+": step "+step.GetName(), state, step.GetState())
		}
	}
}

// resumable fails the test unless an error says that the stream was ended, and from where to go
// on: from the last message.
func (s *story) resumable(what string, err error) {
	t := s.w.t
	t.Helper()
	refused(t, err, unavailable, "STREAM_ENDED")
	want(t, what+": revision in the metadata", Info(err).GetMetadata()["revision"], strconv.FormatInt(s.told(), 10))
}

// awaitTold waits until the story goes up to a revision.
func (s *story) awaitTold(revision int64) {
	s.w.t.Helper()
	err := Await(s.w.ctx, patient, fmt.Sprint("revision ", revision), func(context.Context) (bool, error) { return s.told() >= revision, nil })
	if err != nil {
		s.w.t.Fatalf("%v: told up to %d", err, s.told())
	}
}
