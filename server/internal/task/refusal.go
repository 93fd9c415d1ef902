package task

import "bytes"

// Late is what is known of a call for an attempt whose lease row is not there.
type Late struct {
	Attempt         AttemptData
	HeldVersion     int64  // that the caller sent
	Outcome         []byte // fingerprint of the report; none for a renewal
	LaterAttempt    bool   // the step has a later one
	SessionCurrent  bool
	ExecutionClosed bool
}

// Replayed tells whether the call repeats the very report that ended the attempt.
func (l Late) Replayed() bool {
	return l.HeldVersion == l.Attempt.LeaseVersion && len(l.Outcome) > 0 && bytes.Equal(l.Outcome, l.Attempt.Outcome)
}

// Reason is why the call is refused: the first that fits.
func (l Late) Reason() Reason {
	switch {
	case l.HeldVersion != l.Attempt.LeaseVersion:
		return ReasonLeaseSuperseded
	case len(l.Attempt.Outcome) > 0:
		return ReasonOutcomeRecorded
	case l.Attempt.Reason == EndRevoked || l.Attempt.Reason == EndDeregistered:
		return ReasonLeaseRevoked
	case l.Attempt.Reason == EndSessionSuperseded || !l.SessionCurrent:
		return ReasonSessionSuperseded
	case l.LaterAttempt:
		return ReasonLeaseSuperseded
	case l.ExecutionClosed:
		return ReasonExecutionClosed
	default:
		return ReasonLeaseExpired
	}
}

// LateEntry is the trace that a refused report leaves in the timeline: one for each attempt,
// version and reason, counted. A version that never was the attempt's is not part of the key,
// so that nobody can grow the timeline by guessing.
func (e *Execution) LateEntry(l Late, stepName string) Entry {
	version := "another version"
	if l.HeldVersion == l.Attempt.LeaseVersion {
		version = "its version"
	}
	worker := l.Attempt.WorkerID
	return Entry{
		Milestone: "late/" + l.Attempt.ID.String() + "/" + version + "/" + string(l.Reason()),
		Stage:     StageRecovery, Component: "worker", Title: "Late report refused: " + string(l.Reason()),
		StepName: stepName, AttemptNumber: l.Attempt.Number, LeaseVersion: l.HeldVersion, WorkerID: &worker,
		Details: map[string]string{"reason": string(l.Reason())},
	}
}

// RecordLate gives a new late entry its number. Repeats of a milestone are only counted, by
// the store: they take none.
func (e *Execution) RecordLate(en Entry) { e.entry(en) }
