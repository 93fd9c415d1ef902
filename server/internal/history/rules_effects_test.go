package history_test

import (
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/leasehold/leasehold/server/internal/history"
)

func brokenEffects() []breakage {
	return slices.Concat(brokenWritings(), []breakage{
		{"durable", "an accepted execution is not there", "no such execution", func(s *story) {
			id := s.execution("refused").ID
			s.Committed.Executions = slices.DeleteFunc(s.Committed.Executions, func(e history.Execution) bool { return e.ID == id })
		}},
		{"durable", "an accepted execution has fewer steps", "1 steps", func(s *story) { s.execution("plain").StepCount = 1 }},
		{"durable", "a granted attempt is not there", "no such attempt", func(s *story) {
			id := s.attempt("plain", "b", 1).ID
			s.Committed.Attempts = slices.DeleteFunc(s.Committed.Attempts, func(a history.Attempt) bool { return a.ID == id })
		}},
		{"durable", "a grant of another version", "no such attempt", func(s *story) { s.attempt("plain", "b", 1).Version++ }},
		{"durable", "a grant of another session", "the attempt is number", func(s *story) { s.attempt("plain", "b", 1).Session = uuid.New() }},
		{"durable", "a report is not there", "the attempt is LOST", func(s *story) {
			a := s.attempt("plain", "a", 1)
			a.State, a.Reported, a.Reason = "LOST", false, "lease_expired"
		}},
		{"durable", "a report of another failure", "(OTHER)", func(s *story) { s.attempt("plain", "a", 1).FailureType = "OTHER" }},
		{"durable", "the step of a success goes on", "its step is READY", func(s *story) { s.step("plain", "a").State = "READY" }},
		{"durable", "another output", "instead of", func(s *story) { s.step("plain", "a").Output = history.DigestOf([]byte(`"other"`)) }},
		{"durable", "no output", "instead of", func(s *story) { s.step("plain", "a").Output = 0 }},
		{"durable", "a cancel is not there", "nobody asked", func(s *story) { s.dropEntry("canceled", "r1/execution/cancel_requested") }},
		{"durable", "a terminate is not there", "nobody asked", func(s *story) { s.dropEntry("terminated", "r1/execution/terminate_requested") }},
		{"durable", "a retry is not there", "was not opened by it", func(s *story) { s.dropEntry("rounds", "r2/execution/reopened") }},
		{"durable", "a retry of another request", "was not opened by it", func(s *story) { s.entry("rounds", "r2/execution/reopened").RequestID = "other" }},
		{"durable", "a revocation is not there", "(lease_expired)", func(s *story) { s.attempt("revoked", "a", 1).Reason = "lease_expired" }},
		{"durable", "a revision went back", "the tables have", func(s *story) { s.op(history.Get, history.OK, s.execution("plain").ID).Revision = 1000 }},
		{"durable", "an accepted execution was not found", "EXECUTION_NOT_FOUND after", func(s *story) {
			s.add(*s.op(history.Get, history.OK, s.execution("plain").ID), func(o *history.Op) {
				o.Outcome, o.Code, o.Reason = history.Refused, codes.NotFound, "EXECUTION_NOT_FOUND"
			})
		}},
		{"durable", "a granted attempt was not found", "ATTEMPT_NOT_FOUND after", func(s *story) {
			s.add(*s.op(history.Report, history.Refused, uuid.Nil), func(o *history.Op) {
				o.Code, o.Reason = codes.NotFound, "ATTEMPT_NOT_FOUND"
			})
		}},
	})
}

func brokenWritings() []breakage {
	return []breakage{
		{"durable", "an earlier progress", "the progress of", func(s *story) { s.attempt("plain", "a", 1).Progress = 0.25 }},
		{"durable", "no progress", "the progress of", func(s *story) { s.attempt("plain", "a", 1).HasProgress = false }},
		{"durable", "an earlier message", "the progress message of", func(s *story) { s.attempt("plain", "a", 1).Message = history.DigestOf([]byte("a quarter")) }},
		{"durable", "an earlier attempt's checkpoint", "the checkpoint of", func(s *story) {
			s.step("plain", "a").Checkpoint = history.DigestOf([]byte(`"a half"`))
		}},
		{"durable", "no checkpoint", "the checkpoint of", func(s *story) { s.step("plain", "a").Checkpoint = 0 }},
		{"refused", "the progress of a refused renewal", "only a refused call", func(s *story) {
			a := s.attempt("refused", "a", 1)
			a.HasProgress, a.Progress = true, 0.9
		}},
	}
}

func brokenRefusals() []breakage {
	return []breakage{
		{"refused", "a refused report was done", "as a report said that was refused", func(s *story) {
			o := s.op(history.Report, history.OK, s.attempt("plain", "b", 1).ID)
			o.Outcome, o.Code, o.Reason = history.Refused, codes.FailedPrecondition, "LEASE_EXPIRED"
		}},
		{"refused", "a report that nobody made", "nobody made", func(s *story) {
			id := s.attempt("plain", "b", 1).ID
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Report && o.Attempt == id })
		}},
		{"refused", "a late report without its entry", "the timeline counts 0", func(s *story) { s.dropEntry("plain", "late/") }},
		{"refused", "a late report that was not counted", "the timeline counts 1", func(s *story) { s.entry("plain", "late/").Count = 1 }},
		{"refused", "two entries for one late report", "is there twice", func(s *story) {
			s.Committed.Entries = append(s.Committed.Entries, *s.entry("plain", "late/"))
		}},
		{"refused", "a cancel that was refused", "though that was refused", func(s *story) {
			e := *s.entry("canceled", "r1/execution/cancel_requested")
			e.Execution = s.execution("refused").ID
			s.Committed.Entries = append(s.Committed.Entries, e)
		}},
		{"refused", "a retry that was refused", "was opened anew", func(s *story) {
			e := *s.entry("rounds", "r2/execution/reopened")
			e.Execution = s.execution("refused").ID
			s.Committed.Entries = append(s.Committed.Entries, e)
		}},
		{"refused", "an enqueue that was refused", "every enqueue", func(s *story) { s.execution("lost").Key = "bad" }},
		{"keys", "one key answered with two executions", "was answered with execution", func(s *story) {
			s.op(history.Enqueue, history.OK, s.execution("unclear").ID).Key = "plain"
		}},
		{"keys", "one key refused with another execution", "was answered with execution", func(s *story) {
			s.op(history.Enqueue, history.Refused, s.execution("plain").ID).Execution = s.execution("lost").ID
		}},
		{"keys", "created twice", "was created twice", func(s *story) {
			s.add(*s.op(history.Enqueue, history.OK, s.execution("plain").ID), func(*history.Op) {})
		}},
		{"keys", "the tables have another execution", "the tables have", func(s *story) { s.execution("plain").Key, s.execution("lost").Key = "lost", "plain" }},
	}
}

func brokenTables() []breakage {
	return []breakage{
		{"whole", "open steps", "counts", func(s *story) { s.execution("plain").OpenSteps++ }},
		{"whole", "unsuccessful steps", "counts", func(s *story) { s.execution("plain").Unsuccessful++ }},
		{"whole", "live attempts", "counts", func(s *story) { s.execution("plain").LiveLeases++ }},
		{"whole", "all steps have ended, not the execution", "is RUNNING with", func(s *story) {
			e := s.execution("plain")
			e.State, e.Ended, e.EndEntry = "RUNNING", false, 0
		}},
		{"whole", "FAILED without a step that failed", "is FAILED with", func(s *story) { s.execution("plain").State = "FAILED" }},
		{"whole", "the timeline ends early", "the revision is", func(s *story) { s.execution("plain").Revision++ }},
		{"whole", "a gap in the timeline", "goes on with", func(s *story) { s.attempt("plain", "a", 2).EndEntry = s.attempt("plain", "a", 2).LeaseEntry }},
		{"whole", "an attempt is over without an end", "ended at 0", func(s *story) { s.attempt("plain", "b", 1).EndedAt = 0 }},
		{"whole", "half of a report: the step stayed", "its attempt 1 SUCCEEDED", func(s *story) { s.step("plain", "b").State = "READY" }},
		{"whole", "half of an unclear report: not its output", "of no report", func(s *story) {
			s.step("unclear", s.unclearStep()).Output = history.DigestOf([]byte(`"other"`))
		}},
		{"whole", "half of a report: the child stayed", "is BLOCKED", func(s *story) {
			b := s.step("plain", "b")
			b.State, b.WaitingParents = "BLOCKED", 1
		}},
		{"whole", "half of a report: no next attempt is asked for", "no attempt is asked for", func(s *story) {
			a := s.attempt("lost", "a", 2)
			a.State = "FAILED"
			st := s.step("lost", "a")
			st.State, st.Asked = "READY", false
		}},
		{"whole", "a live attempt of a step that has ended", "with a live attempt", func(s *story) {
			a := s.attempt("lost", "a", 2)
			a.State, a.EndedAt, a.EndEntry = "LEASED", 0, 0
			s.step("lost", "a").AttemptsEnded = 1
		}},
		{"whole", "SUCCEEDED without a success", "its last attempt did not", func(s *story) { s.attempt("lost", "a", 2).State = "CANCELED" }},
		{"whole", "a child waits in vain", "in vain: true", func(s *story) {
			s.step("plain", "a").State = "FAILED"
			b := s.step("plain", "b")
			b.State, b.WaitingParents = "BLOCKED", 1
		}},
		{"whole", "counted ends", "ended attempts", func(s *story) { s.step("plain", "a").AttemptsEnded++ }},
		{"whole", "a step of nothing", "of execution", func(s *story) { s.step("plain", "a").Execution = uuid.New() }},
		{"whole", "an attempt of nothing", "of step", func(s *story) { s.attempt("plain", "a", 1).Step = uuid.New() }},
		{"whole", "an edge to nothing", "no such ends", func(s *story) { s.Committed.Edges[0].Child = uuid.New() }},
		{"whole", "an entry of nothing", "entry", func(s *story) { s.Committed.Entries[0].Execution = uuid.New() }},
	}
}

func brokenRetries() []breakage {
	return []breakage{
		{"retries", "a gap in the numbers", "is number 4", func(s *story) { s.attempt("plain", "a", 3).Number = 4 }},
		{"retries", "a release was counted", "counts", func(s *story) { s.step("plain", "a").Counted++ }},
		{"retries", "a lost one was not counted", "counts", func(s *story) { s.step("lost", "a").Counted-- }},
		{"retries", "counted on in the next round", "counts", func(s *story) { s.step("rounds", "a").Counted++ }},
		{"retries", "more than maximum_attempts", "counted ones of 1", func(s *story) { s.step("plain", "a").MaximumAttempts = 1 }},
		{"retries", "after a failure that is not tried again", "not tried again", func(s *story) { s.attempt("plain", "a", 1).Final = true }},
		{"retries", "after a success", "follows a success", func(s *story) { s.attempt("plain", "a", 1).State = "SUCCEEDED" }},
		{"retries", "before it was due", "due at", func(s *story) { s.attempt("plain", "a", 1).NextDue = s.attempt("plain", "a", 2).LeasedAt + 1 }},
		{"retries", "though nobody made it due", "due at 0", func(s *story) { s.attempt("plain", "a", 1).NextDue = 0 }},
		{"retries", "stopped too early", "MAXIMUM_ATTEMPTS_REACHED", func(s *story) {
			s.step("rounds", "a").StoppedBecause, s.step("rounds", "a").MaximumAttempts = "MAXIMUM_ATTEMPTS_REACHED", 2
		}},
		{"retries", "goes on with none left", "is READY", func(s *story) {
			st := s.step("plain", "a")
			st.State, st.MaximumAttempts = "READY", 2
		}},
	}
}

func brokenParents() []breakage {
	return []breakage{
		{"parents", "leased before, in the timeline", "its parent", func(s *story) { s.attempt("plain", "b", 1).LeaseEntry = 2 }},
		{"parents", "leased before, by the clock", "its parent", func(s *story) { s.attempt("plain", "b", 1).LeasedAt = s.attempt("plain", "a", 3).EndedAt - 1 }},
		{"parents", "a parent did not succeed", "is FAILED", func(s *story) { s.step("plain", "a").State = "FAILED" }},
		{"parents", "SKIPPED for nothing", "is SKIPPED", func(s *story) { s.step("plain", "b").State = "SKIPPED" }},
		{"parents", "answered before its parent was reported", "came before", func(s *story) {
			s.op(history.Report, history.OK, s.attempt("plain", "a", 3).ID).Begin = s.op(history.Grant, history.OK, s.attempt("plain", "b", 1).ID).End + 1
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Replayed })
		}},
		{"parents", "worked on before its parent was reported", "work", func(s *story) {
			s.op(history.Work, history.OK, s.attempt("plain", "b", 1).ID).Begin = s.op(history.Report, history.OK, s.attempt("plain", "a", 3).ID).Begin - 1
		}},
	}
}

func brokenCancels() []breakage {
	return []breakage{
		{"cancel", "leased after it, in the timeline", "was leased at entry", func(s *story) {
			s.attempt("canceled", "a", 1).LeaseEntry = s.entry("canceled", "r1/execution/cancel_requested").Sequence + 1
		}},
		{"cancel", "granted after it was answered", "began after", func(s *story) {
			a := s.attempt("canceled", "a", 1)
			s.add(*s.op(history.Grant, history.OK, a.ID), func(o *history.Op) { o.Key = "later" })
		}},
		{"cancel", "it goes on", "was answered OK, and round", func(s *story) { s.execution("canceled").State = "RUNNING" }},
		{"cancel", "it succeeded after all", "terminate_requested, and it is", func(s *story) { s.execution("terminated").State = "SUCCEEDED" }},
		{"cancel", "nobody asked for it", "nobody asked", func(s *story) {
			s.dropEntry("canceled", "r1/execution/cancel_requested")
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Cancel })
		}},
	}
}

func brokenEvents() []breakage {
	return []breakage{
		{"events", "one is missing", "is no event", func(s *story) {
			id := s.event("plain", "attempt.v1.released").ID
			s.Committed.Events = slices.DeleteFunc(s.Committed.Events, func(e history.Event) bool { return e.ID == id })
		}},
		{"events", "one is there twice", "or again", func(s *story) {
			e := *s.event("plain", "execution.v1.succeeded")
			s.execution("plain").Sequence++
			e.ID, e.Sequence = uuid.New(), s.execution("plain").Sequence
			s.Committed.Events = append(s.Committed.Events, e)
		}},
		{"events", "the wrong type", "tells of nothing", func(s *story) { s.event("rounds", "step.v1.skipped").Type = "leasehold.step.v1.failed" }},
		{"events", "the wrong attempt", "tells of nothing", func(s *story) { s.event("plain", "attempt.v1.failed").Subject = s.attempt("plain", "a", 2).ID }},
		{"events", "the wrong round", "tells of nothing", func(s *story) { s.event("rounds", "reopened").Round = 1 }},
		{"events", "a gap", "is numbered", func(s *story) { s.event("plain", "execution.v1.succeeded").Sequence++ }},
		{"events", "written and gone", "it has written", func(s *story) { s.execution("plain").Sequence++ }},
		{"events", "one of nothing", "is not there", func(s *story) {
			e := *s.event("plain", "enqueued")
			e.ID, e.Execution = uuid.New(), uuid.New()
			s.Committed.Events = append(s.Committed.Events, e)
		}},
		{"events", "one that is not selected", "tells of nothing", func(s *story) { s.Committed.EventTypes = []string{"leasehold.step.v1.failed"} }},
		{"delivery", "one did not come", "was not delivered", func(s *story) { s.dropDelivery("execution.v1.succeeded") }},
		{"delivery", "one was left out", "before it was not", func(s *story) { s.dropDelivery("enqueued") }},
		{"delivery", "in another order", "first delivered before", func(s *story) {
			s.delivery("enqueued").At = s.delivery("execution.v1.succeeded").At + 1
		}},
		{"delivery", "as another one", "number 7", func(s *story) { s.delivery("enqueued").Sequence = 7 }},
		{"delivery", "never committed", "was delivered, and is not there", func(s *story) { s.delivery("execution.v1.succeeded").ID = uuid.New() }},
	}
}

// delivery is that of an event of the plain execution.
func (s *story) delivery(kind string) *history.Delivery {
	id := s.event("plain", kind).ID
	return &s.History.Deliveries[slices.IndexFunc(s.History.Deliveries, func(d history.Delivery) bool { return d.ID == id })]
}

func (s *story) dropDelivery(kind string) {
	id := s.event("plain", kind).ID
	s.History.Deliveries = slices.DeleteFunc(s.History.Deliveries, func(d history.Delivery) bool { return d.ID == id })
}
