package task

import (
	"time"

	"github.com/google/uuid"
)

// ExecutionState is where an execution stands.
type ExecutionState string

// The states of an execution.
const (
	ExecutionCreated   ExecutionState = "CREATED"
	ExecutionQueued    ExecutionState = "QUEUED"
	ExecutionRunning   ExecutionState = "RUNNING"
	ExecutionCanceling ExecutionState = "CANCELING"
	ExecutionSucceeded ExecutionState = "SUCCEEDED"
	ExecutionFailed    ExecutionState = "FAILED"
	ExecutionCanceled  ExecutionState = "CANCELED"
)

// Terminal tells whether the state is final within a round.
func (s ExecutionState) Terminal() bool {
	switch s {
	case ExecutionSucceeded, ExecutionFailed, ExecutionCanceled:
		return true
	default:
		return false
	}
}

// ExecutionData is an execution as stored.
type ExecutionData struct {
	ID             uuid.UUID
	Namespace      string
	Name           string
	State          ExecutionState
	Round          int
	FailFast       bool
	Stopping       bool // live attempts are asked to stop: a cancel, or fail_fast
	CreatedAt      time.Time
	DueAt          time.Time
	StartedAt      *time.Time
	EndedAt        *time.Time
	Timeout        time.Duration
	CancelGrace    time.Duration
	Deadline       *time.Time
	CancelDeadline *time.Time
	CancelReason   string
	Failure        *Failure

	// Counters. They never go back.
	Revision int64 // number of the last timeline entry: each change leaves one at least
	Sequence int64 // events written

	EndEntry          int64 // number of the end of this round in the timeline, or 0
	StepCount         int
	OpenSteps         int
	UnsuccessfulSteps int
	LiveAttempts      int
}

// Execution is the root: it changes under one lock, together with the steps read with it.
type Execution struct {
	d        ExecutionData
	steps    map[uuid.UUID]*Step
	base     int64 // revision when it was read, or handed out last
	changes  Changes
	frontier Frontier
	ending   bool // its deadline ends it: fail_fast has nothing more to stop
}

// RestoreExecution makes an execution from what was stored. Steps are added as they are read.
func RestoreExecution(d ExecutionData) *Execution {
	return &Execution{d: d, base: d.Revision, steps: map[uuid.UUID]*Step{}}
}

// Data is what is to be stored.
func (e *Execution) Data() ExecutionData { return e.d }

// AddStep adds a step that was read; one that is there already stays as it is.
func (e *Execution) AddStep(s *Step) {
	if _, known := e.steps[s.d.ID]; !known {
		e.steps[s.d.ID] = s
	}
}

// Step is a step that was read, or nil.
func (e *Execution) Step(id uuid.UUID) *Step { return e.steps[id] }

// read is a step that was read; one that was not is the caller's mistake, never a panic.
func (e *Execution) read(id uuid.UUID, event string) (*Step, error) {
	if s := e.steps[id]; s != nil {
		return s, nil
	}
	return nil, &TransitionError{Entity: "step", From: "not read", Event: event}
}

// live is a step with a live attempt.
func (e *Execution) live(id uuid.UUID, event string) (*Step, *Attempt, error) {
	s, err := e.read(id, event)
	if err != nil {
		return nil, nil, err
	}
	if s.attempt == nil {
		return nil, nil, s.refuse(event)
	}
	return s, s.attempt, nil
}

func (e *Execution) refuse(event string) error {
	return &TransitionError{Entity: "execution", From: string(e.d.State), Event: event}
}

// BecomeDue moves it on when its start time has come.
func (e *Execution) BecomeDue(now time.Time) error {
	if e.d.State != ExecutionCreated || now.Before(e.d.DueAt) {
		return e.refuse("become due")
	}
	e.d.State = ExecutionQueued
	e.touch()
	e.entry(Entry{Milestone: e.milestone("queued"), Stage: StageScheduling, Component: "scheduler", Title: "Start time reached", At: now})
	return nil
}

// Grant is what a dispatcher gives to a worker.
type Grant struct {
	AttemptID    uuid.UUID
	Number       int
	WorkerID     uuid.UUID
	SessionID    uuid.UUID
	WorkerName   string
	Node         string
	LeaseVersion int64
	Duration     time.Duration
}

// LeaseData is a lease as stored.
type LeaseData struct {
	ExpiresAt time.Time
	CapAt     time.Time // no renewal goes beyond: the earliest deadline over it
}

// Lease grants the next attempt of a READY step. After a deadline over it there is no grant:
// such a lease would be over before it began. The timer of that deadline ends the step.
func (e *Execution) Lease(now time.Time, stepID uuid.UUID, g Grant) (*Attempt, LeaseData, error) {
	if !e.d.State.grants() {
		return nil, LeaseData{}, e.refuse("lease")
	}
	s, err := e.read(stepID, "lease")
	if err != nil {
		return nil, LeaseData{}, err
	}
	if e.d.Stopping || g.Number != s.d.AttemptsEnded+1 {
		return nil, LeaseData{}, s.refuse("lease")
	}
	if e.deadlineOver(s, now) != nil {
		return nil, LeaseData{}, s.refuse("lease after its deadline")
	}
	a := &Attempt{AttemptData{
		ID: g.AttemptID, StepID: stepID, Number: g.Number, Round: e.d.Round, State: AttemptLeased,
		WorkerID: g.WorkerID, SessionID: g.SessionID, WorkerName: g.WorkerName, Node: g.Node,
		LeaseVersion: g.LeaseVersion, LeasedAt: now, StartToCloseAt: now.Add(s.d.StartToClose),
	}}
	if err := s.lease(a); err != nil {
		return nil, LeaseData{}, err
	}
	e.leased(now, s, a)
	return a, e.leaseData(now, s, a, g.Duration), nil
}

// leased books a grant; the first of a round starts the execution.
func (e *Execution) leased(now time.Time, s *Step, a *Attempt) {
	started := e.d.State != ExecutionRunning
	if started {
		e.d.State, e.d.StartedAt = ExecutionRunning, &now
	}
	e.d.LiveAttempts++
	a.d.LeaseEntry = e.nextEntry()
	e.touch()
	e.changes.Leased = append(e.changes.Leased, a)
	if started {
		e.event(EventExecutionStarted, now, nil, nil)
	}
	e.event(EventAttemptLeased, now, s, a)
}

// deadlineOver is the deadline over a step that has come, or nil.
func (e *Execution) deadlineOver(s *Step, now time.Time) *time.Time {
	for _, at := range []*time.Time{e.d.Deadline, s.closeDeadline()} {
		if reached(at, now) {
			return at
		}
	}
	return nil
}

// reached tells whether a deadline, if there is one, has come.
func reached(at *time.Time, now time.Time) bool { return at != nil && !now.Before(*at) }

func (e *Execution) leaseData(now time.Time, s *Step, a *Attempt, d time.Duration) LeaseData {
	limit := a.d.StartToCloseAt
	for _, at := range []*time.Time{s.closeDeadline(), e.d.Deadline} {
		if at != nil && at.Before(limit) {
			limit = *at
		}
	}
	l := LeaseData{ExpiresAt: now.Add(d), CapAt: limit}
	if l.CapAt.Before(l.ExpiresAt) {
		l.ExpiresAt = l.CapAt
	}
	return l
}

// Report ends the live attempt of a step by its worker's word. The caller has deleted its lease.
// A worker cannot report what only the service decides, nor canceled unasked: such a step
// would be tried for ever, for that does not count.
func (e *Execution) Report(now time.Time, stepID uuid.UUID, o *Outcome, chance float64) error {
	s, a, err := e.live(stepID, "report")
	if err != nil {
		return err
	}
	switch {
	case o.State == AttemptSucceeded:
		err = a.Succeed(now)
	case o.State == AttemptFailed:
		err = a.Fail(now, o.Failure)
	case o.State == AttemptReleased:
		err = a.Release(now, o.Reason)
	case o.State == AttemptCanceled && e.d.Stopping:
		err = a.Cancel(now, "")
	default:
		err = &TransitionError{Entity: "attempt", From: string(a.d.State), Event: "report " + string(o.State)}
	}
	if err != nil {
		return err
	}
	a.d.Outcome = OutcomeFingerprint(o)
	if o.Checkpoint != nil {
		a.d.CheckpointBytes = o.Checkpoint.Size()
	}
	return e.attemptEnded(now, s, a, o, chance)
}

// AwaitsCancel tells whether a worker was asked to stop: only then it may report canceled.
func (e *Execution) AwaitsCancel() bool { return e.d.Stopping }

// LeaseEnd is a lease that was deleted because it was over.
type LeaseEnd struct {
	StepID         uuid.UUID
	ExpiresAt      time.Time
	SessionCurrent bool
}

// ExpireLease ends the attempt of a lease that was over, by the first of: a deadline that
// came, the end of a cancel's grace, or its worker's silence.
func (e *Execution) ExpireLease(now time.Time, l LeaseEnd, chance float64) error {
	s, a, err := e.live(l.StepID, "expire lease")
	if err != nil {
		return err
	}
	switch over := l.ExpiresAt; {
	case e.d.Stopping && reached(e.d.CancelDeadline, over):
		err = a.Cancel(now, EndCancelGrace)
	case reached(e.d.Deadline, over):
		e.beginDeadline() // the other steps follow by ExceedDeadline
		err = a.TimeOut(now, EndExecutionDeadline)
	case reached(s.closeDeadline(), over):
		err = a.TimeOut(now, EndScheduleToClose)
	case reached(&a.d.StartToCloseAt, over):
		err = a.TimeOut(now, EndStartToClose)
	case !l.SessionCurrent:
		err = a.Lose(now, EndSessionSuperseded)
	default:
		err = a.Lose(now, EndLeaseExpired)
	}
	if err != nil {
		return err
	}
	return e.attemptEnded(now, s, a, &Outcome{}, chance)
}

// LoseLease ends an attempt whose lease was taken away before its time.
func (e *Execution) LoseLease(now time.Time, stepID uuid.UUID, reason string, chance float64) error {
	s, a, err := e.live(stepID, "lose lease")
	if err != nil {
		return err
	}
	if err := a.Lose(now, reason); err != nil {
		return err
	}
	return e.attemptEnded(now, s, a, &Outcome{}, chance)
}

// ReturnLease takes back an attempt that provably never reached its worker.
func (e *Execution) ReturnLease(now time.Time, stepID uuid.UUID, chance float64) error {
	s, a, err := e.live(stepID, "return lease")
	if err != nil {
		return err
	}
	if err := a.Release(now, EndUndelivered); err != nil {
		return err
	}
	return e.attemptEnded(now, s, a, &Outcome{}, chance)
}

// attemptEnded books the end of an attempt and what it means for its step.
func (e *Execution) attemptEnded(now time.Time, s *Step, a *Attempt, o *Outcome, chance float64) error {
	e.d.LiveAttempts--
	if a.d.CheckpointBytes > 0 {
		s.d.CheckpointBytes = a.d.CheckpointBytes
	}
	a.d.EndEntry = e.nextEntry()
	e.changes.Ended = append(e.changes.Ended, a)
	e.touch()
	if a.d.State == AttemptSucceeded {
		s.count(a.d, 0, chance)
		if err := s.attemptSucceeded(o.Output); err != nil {
			return err
		}
		e.event(a.d.State.event(), now, s, a)
		e.stepClosed(now, s)
		return nil
	}
	due, err := s.attemptEnded(now, a.d, o.NotBefore, e.d.Stopping, chance)
	if err != nil {
		return err
	}
	if s.d.State == StepReady {
		a.d.NextDue = &due
	}
	e.event(a.d.State.event(), now, s, a)
	if s.d.State == StepReady {
		e.request(s, due)
		e.event(EventStepRetryScheduled, now, s, a)
		return nil
	}
	e.stepClosed(now, s)
	return nil
}

// NextDue is when the next attempt of a step is due, where that was decided just now.
func (e *Execution) NextDue(stepID uuid.UUID) *time.Time {
	if s := e.steps[stepID]; s != nil && s.d.State == StepReady {
		return s.due
	}
	return nil
}
