package history

import (
	"strings"

	"github.com/google/uuid"
)

// The states of executions, steps and attempts, as they are stored and answered.
const (
	blocked   = "BLOCKED"
	ready     = "READY"
	leased    = "LEASED"
	canceling = "CANCELING"
	succeeded = "SUCCEEDED"
	failed    = "FAILED"
	canceled  = "CANCELED"
	skipped   = "SKIPPED"
	timedOut  = "TIMED_OUT"
	lost      = "LOST"
	released  = "RELEASED"
)

// terminal tells whether a state of an execution or a step is final within a round.
func terminal(state string) bool {
	switch state {
	case succeeded, failed, canceled, skipped:
		return true
	default:
		return false
	}
}

// counts tells whether an attempt that ended so counts against maximum_attempts.
func counts(state string) bool {
	switch state {
	case succeeded, failed, timedOut, lost:
		return true
	default:
		return false
	}
}

// Committed is what the tables hold, all of one instant. Its rows have 32 to 220 bytes each,
// without payloads and free texts.
type Committed struct {
	Namespace string // of all rows; empty: of every namespace
	// EventTypes are those that are written at all (setting --events). Nil: every type.
	EventTypes []string

	Executions []Execution
	Steps      []Step
	Edges      []Edge
	Attempts   []Attempt
	Leases     []Lease
	Entries    []Entry
	Events     []Event
}

// Execution is a row of executions.
type Execution struct {
	ID                                             uuid.UUID
	Namespace, Key, State                          string
	Round                                          int32
	StepCount, OpenSteps, Unsuccessful, LiveLeases int32
	Revision, Sequence, EndEntry                   int64
	Started, Ended                                 bool
}

// Step is a row of steps, with the digests of its payloads.
type Step struct {
	ID, Execution               uuid.UUID
	Name, State, StoppedBecause string
	MaximumAttempts             int32 // -1: no limit
	WaitingParents              int32
	AttemptsEnded, Counted      int32
	Asked                       bool // there is a scheduling request for its next attempt, or a timer that is due will end it
	Output, Checkpoint          Digest
}

// Attempt is a row of attempts. Instants are microseconds of PostgreSQL's clock; 0: none.
type Attempt struct {
	ID, Step, Session          uuid.UUID
	Number, Round              int32
	State, Reason, FailureType string
	Final                      bool // it failed with what is not tried again
	Version                    int64
	LeasedAt, EndedAt, NextDue int64
	LeaseEntry, EndEntry       int64 // its numbers in the timeline; 0: none
	Reported                   bool  // ended by its worker's word
	HasProgress                bool
	Progress                   float64
	Message                    Digest
}

// Edge is a dependency.
type Edge struct{ Parent, Child uuid.UUID }

// Lease is a row of leases.
type Lease struct {
	Attempt, Step, Execution, Session uuid.UUID
	Version                           int64
}

// Entry is a row of timeline_entries: what stands in no other table.
type Entry struct {
	Execution uuid.UUID
	Sequence  int64
	Milestone string
	State     string // of the end of a round
	Step      string // its step's name
	RequestID string // of a retry
	Count     int32
}

// Event is a row of outbox_events.
type Event struct {
	ID, Execution uuid.UUID
	Subject       uuid.UUID // the attempt or else the step that it tells of; nil: the execution
	Sequence      int64
	Round         int32
	Type, Status  string
}

// Milestones of executions that are looked for.
const (
	milestoneEnded     = "ended"
	milestoneReopened  = "reopened"
	milestoneCancel    = "cancel_requested"
	milestoneTerminate = "terminate_requested"
)

// round splits a milestone of a round into it and the rest.
func (e *Entry) round() (round int32, rest string) {
	text, ok := strings.CutPrefix(e.Milestone, "r")
	if !ok {
		return 0, ""
	}
	number, rest, _ := strings.Cut(text, "/")
	for _, digit := range number {
		if digit < '0' || digit > '9' {
			return 0, ""
		}
		round = round*10 + digit - '0'
	}
	return round, rest
}

// execution is what happened to the execution itself, or nothing.
func (e *Entry) execution() (round int32, what string) {
	round, rest := e.round()
	what, _ = strings.CutPrefix(rest, "execution/")
	if what == rest {
		return 0, ""
	}
	return round, what
}

// stepEnd is how its step ended, or nothing.
func (e *Entry) stepEnd() string {
	_, rest := e.round()
	if state, ok := strings.CutPrefix(rest, "step/"+e.Step+"/"); ok && terminal(state) {
		return state
	}
	return ""
}

// late tells what a refused report left: the attempt, whose version it held, and the reason.
func (e *Entry) late() (l lateKey, ok bool) {
	text, ok := strings.CutPrefix(e.Milestone, "late/")
	if !ok {
		return l, false
	}
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return l, false
	}
	return lateKey{attempt: parse(parts[0]), itsVersion: parts[1] == "its version", reason: parts[2]}, true
}

// lateKey is what refused reports are told apart by.
type lateKey struct {
	attempt    uuid.UUID
	itsVersion bool
	reason     string
}

// afterEnd tells whether an entry may follow the end of a round.
func (e *Entry) afterEnd() bool {
	_, rest := e.round()
	return strings.HasPrefix(e.Milestone, "late/") || strings.HasPrefix(rest, "outbox/")
}
