package history_test

import (
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/leasehold/leasehold/server/internal/history"
)

func brokenEffects() []breakage {
	return slices.Concat(brokenWritings(), []breakage{
		{"durable", "an accepted execution is not there", func(s *story) {
			id := s.execution("refused").ID
			s.Committed.Executions = slices.DeleteFunc(s.Committed.Executions, func(e history.Execution) bool { return e.ID == id })
		}},
		{"durable", "an accepted execution has fewer steps", func(s *story) { s.execution("plain").StepCount = 1 }},
		{"durable", "a granted attempt is not there", func(s *story) {
			id := s.attempt("plain", "b", 1).ID
			s.Committed.Attempts = slices.DeleteFunc(s.Committed.Attempts, func(a history.Attempt) bool { return a.ID == id })
		}},
		{"durable", "a grant of another version", func(s *story) { s.attempt("plain", "b", 1).Version++ }},
		{"durable", "a grant of another session", func(s *story) { s.attempt("plain", "b", 1).Session = uuid.New() }},
		{"durable", "a report is not there", func(s *story) {
			a := s.attempt("plain", "a", 1)
			a.State, a.Reported, a.Reason = "LOST", false, "lease_expired"
		}},
		{"durable", "a report of another failure", func(s *story) { s.attempt("plain", "a", 1).FailureType = "OTHER" }},
		{"durable", "the step of a success goes on", func(s *story) { s.step("plain", "a").State = "READY" }},
		{"durable", "another output", func(s *story) { s.step("plain", "a").Output = history.DigestOf([]byte(`"other"`)) }},
		{"durable", "no output", func(s *story) { s.step("plain", "a").Output = 0 }},
		{"durable", "a cancel is not there", func(s *story) { s.dropEntry("canceled", "r1/execution/cancel_requested") }},
		{"durable", "a terminate is not there", func(s *story) { s.dropEntry("terminated", "r1/execution/terminate_requested") }},
		{"durable", "a retry is not there", func(s *story) { s.dropEntry("rounds", "r2/execution/reopened") }},
		{"durable", "a retry of another request", func(s *story) { s.entry("rounds", "r2/execution/reopened").RequestID = "other" }},
		{"durable", "a revocation is not there", func(s *story) { s.attempt("revoked", "a", 1).Reason = "lease_expired" }},
		{"durable", "a revision went back", func(s *story) { s.op(history.Get, history.OK, s.execution("plain").ID).Revision = 1000 }},
		{"durable", "an accepted execution was not found", func(s *story) {
			s.add(*s.op(history.Get, history.OK, s.execution("plain").ID), func(o *history.Op) {
				o.Outcome, o.Code, o.Reason = history.Refused, codes.NotFound, "EXECUTION_NOT_FOUND"
			})
		}},
		{"durable", "a granted attempt was not found", func(s *story) {
			s.add(*s.op(history.Report, history.Refused, uuid.Nil), func(o *history.Op) {
				o.Code, o.Reason = codes.NotFound, "ATTEMPT_NOT_FOUND"
			})
		}},
	})
}

func brokenWritings() []breakage {
	return []breakage{
		{"durable", "an earlier progress", func(s *story) { s.attempt("plain", "a", 1).Progress = 0.25 }},
		{"durable", "no progress", func(s *story) { s.attempt("plain", "a", 1).HasProgress = false }},
		{"durable", "an earlier message", func(s *story) { s.attempt("plain", "a", 1).Message = history.DigestOf([]byte("a quarter")) }},
		{"durable", "an earlier attempt's checkpoint", func(s *story) {
			s.step("plain", "a").Checkpoint = history.DigestOf([]byte(`"a half"`))
		}},
		{"durable", "no checkpoint", func(s *story) { s.step("plain", "a").Checkpoint = 0 }},
		{"refused", "the progress of a refused renewal", func(s *story) {
			a := s.attempt("refused", "a", 1)
			a.HasProgress, a.Progress = true, 0.9
		}},
	}
}

func brokenRefusals() []breakage {
	return []breakage{
		{"refused", "a refused report was done", func(s *story) {
			o := s.op(history.Report, history.OK, s.attempt("plain", "b", 1).ID)
			o.Outcome, o.Code, o.Reason = history.Refused, codes.FailedPrecondition, "LEASE_EXPIRED"
		}},
		{"refused", "a report that nobody made", func(s *story) {
			id := s.attempt("plain", "b", 1).ID
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Report && o.Attempt == id })
		}},
		{"refused", "a late report without its entry", func(s *story) { s.dropEntry("plain", "late/") }},
		{"refused", "a late report that was not counted", func(s *story) { s.entry("plain", "late/").Count = 1 }},
		{"refused", "two entries for one late report", func(s *story) {
			s.Committed.Entries = append(s.Committed.Entries, *s.entry("plain", "late/"))
		}},
		{"refused", "a cancel that was refused", func(s *story) {
			e := *s.entry("canceled", "r1/execution/cancel_requested")
			e.Execution = s.execution("refused").ID
			s.Committed.Entries = append(s.Committed.Entries, e)
		}},
		{"refused", "a retry that was refused", func(s *story) {
			e := *s.entry("rounds", "r2/execution/reopened")
			e.Execution = s.execution("refused").ID
			s.Committed.Entries = append(s.Committed.Entries, e)
		}},
		{"refused", "an enqueue that was refused", func(s *story) { s.execution("lost").Key = "bad" }},
		{"keys", "one key answered with two executions", func(s *story) {
			s.op(history.Enqueue, history.OK, s.execution("unclear").ID).Key = "plain"
		}},
		{"keys", "one key refused with another execution", func(s *story) {
			s.op(history.Enqueue, history.Refused, s.execution("plain").ID).Execution = s.execution("lost").ID
		}},
		{"keys", "created twice", func(s *story) {
			s.add(*s.op(history.Enqueue, history.OK, s.execution("plain").ID), func(*history.Op) {})
		}},
		{"keys", "the tables have another execution", func(s *story) { s.execution("plain").Key, s.execution("lost").Key = "lost", "plain" }},
	}
}

func brokenTables() []breakage {
	return []breakage{
		{"whole", "open steps", func(s *story) { s.execution("plain").OpenSteps++ }},
		{"whole", "unsuccessful steps", func(s *story) { s.execution("plain").Unsuccessful++ }},
		{"whole", "live attempts", func(s *story) { s.execution("plain").LiveLeases++ }},
		{"whole", "all steps have ended, not the execution", func(s *story) {
			e := s.execution("plain")
			e.State, e.Ended, e.EndEntry = "RUNNING", false, 0
		}},
		{"whole", "FAILED without a step that failed", func(s *story) { s.execution("plain").State = "FAILED" }},
		{"whole", "the timeline ends early", func(s *story) { s.execution("plain").Revision++ }},
		{"whole", "a gap in the timeline", func(s *story) { s.attempt("plain", "a", 2).EndEntry = s.attempt("plain", "a", 2).LeaseEntry }},
		{"whole", "an attempt is over without an end", func(s *story) { s.attempt("plain", "b", 1).EndedAt = 0 }},
		{"whole", "half of a report: the step stayed", func(s *story) { s.step("plain", "b").State = "READY" }},
		{"whole", "half of a report: the child stayed", func(s *story) {
			b := s.step("plain", "b")
			b.State, b.WaitingParents = "BLOCKED", 1
		}},
		{"whole", "half of a report: no next attempt is asked for", func(s *story) {
			a := s.attempt("lost", "a", 2)
			a.State = "FAILED"
			st := s.step("lost", "a")
			st.State, st.Asked = "READY", false
		}},
		{"whole", "a live attempt of a step that has ended", func(s *story) {
			a := s.attempt("lost", "a", 2)
			a.State, a.EndedAt, a.EndEntry = "LEASED", 0, 0
			s.step("lost", "a").AttemptsEnded = 1
		}},
		{"whole", "SUCCEEDED without a success", func(s *story) { s.attempt("lost", "a", 2).State = "CANCELED" }},
		{"whole", "a child waits in vain", func(s *story) {
			s.step("plain", "a").State = "FAILED"
			b := s.step("plain", "b")
			b.State, b.WaitingParents = "BLOCKED", 1
		}},
		{"whole", "counted ends", func(s *story) { s.step("plain", "a").AttemptsEnded++ }},
		{"whole", "a step of nothing", func(s *story) { s.step("plain", "a").Execution = uuid.New() }},
		{"whole", "an attempt of nothing", func(s *story) { s.attempt("plain", "a", 1).Step = uuid.New() }},
		{"whole", "an edge to nothing", func(s *story) { s.Committed.Edges[0].Child = uuid.New() }},
		{"whole", "an entry of nothing", func(s *story) { s.Committed.Entries[0].Execution = uuid.New() }},
	}
}

func brokenRetries() []breakage {
	return []breakage{
		{"retries", "a gap in the numbers", func(s *story) { s.attempt("plain", "a", 3).Number = 4 }},
		{"retries", "a release was counted", func(s *story) { s.step("plain", "a").Counted++ }},
		{"retries", "a lost one was not counted", func(s *story) { s.step("lost", "a").Counted-- }},
		{"retries", "counted on in the next round", func(s *story) { s.step("rounds", "a").Counted++ }},
		{"retries", "more than maximum_attempts", func(s *story) { s.step("plain", "a").MaximumAttempts = 1 }},
		{"retries", "after a failure that is not tried again", func(s *story) { s.attempt("plain", "a", 1).Final = true }},
		{"retries", "after a success", func(s *story) { s.attempt("plain", "a", 1).State = "SUCCEEDED" }},
		{"retries", "before it was due", func(s *story) { s.attempt("plain", "a", 1).NextDue = s.attempt("plain", "a", 2).LeasedAt + 1 }},
		{"retries", "though nobody made it due", func(s *story) { s.attempt("plain", "a", 1).NextDue = 0 }},
		{"retries", "stopped too early", func(s *story) {
			s.step("rounds", "a").StoppedBecause, s.step("rounds", "a").MaximumAttempts = "MAXIMUM_ATTEMPTS_REACHED", 2
		}},
		{"retries", "goes on with none left", func(s *story) {
			st := s.step("plain", "a")
			st.State, st.MaximumAttempts = "READY", 2
		}},
	}
}

func brokenParents() []breakage {
	return []breakage{
		{"parents", "leased before, in the timeline", func(s *story) { s.attempt("plain", "b", 1).LeaseEntry = 2 }},
		{"parents", "leased before, by the clock", func(s *story) { s.attempt("plain", "b", 1).LeasedAt = s.attempt("plain", "a", 3).EndedAt - 1 }},
		{"parents", "a parent did not succeed", func(s *story) { s.step("plain", "a").State = "FAILED" }},
		{"parents", "SKIPPED for nothing", func(s *story) { s.step("plain", "b").State = "SKIPPED" }},
		{"parents", "answered before its parent was reported", func(s *story) {
			s.op(history.Report, history.OK, s.attempt("plain", "a", 3).ID).Begin = s.op(history.Grant, history.OK, s.attempt("plain", "b", 1).ID).End + 1
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Replayed })
		}},
		{"parents", "worked on before its parent was reported", func(s *story) {
			s.op(history.Work, history.OK, s.attempt("plain", "b", 1).ID).Begin = s.op(history.Report, history.OK, s.attempt("plain", "a", 3).ID).Begin - 1
		}},
	}
}

func brokenCancels() []breakage {
	return []breakage{
		{"cancel", "leased after it, in the timeline", func(s *story) {
			s.attempt("canceled", "a", 1).LeaseEntry = s.entry("canceled", "r1/execution/cancel_requested").Sequence + 1
		}},
		{"cancel", "granted after it was answered", func(s *story) {
			a := s.attempt("canceled", "a", 1)
			s.add(*s.op(history.Grant, history.OK, a.ID), func(o *history.Op) { o.Key = "later" })
		}},
		{"cancel", "it goes on", func(s *story) { s.execution("canceled").State = "RUNNING" }},
		{"cancel", "it succeeded after all", func(s *story) { s.execution("terminated").State = "SUCCEEDED" }},
		{"cancel", "nobody asked for it", func(s *story) {
			s.dropEntry("canceled", "r1/execution/cancel_requested")
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Cancel })
		}},
	}
}

func brokenEvents() []breakage {
	return []breakage{
		{"events", "one is missing", func(s *story) {
			id := s.event("plain", "attempt.v1.released").ID
			s.Committed.Events = slices.DeleteFunc(s.Committed.Events, func(e history.Event) bool { return e.ID == id })
		}},
		{"events", "one is there twice", func(s *story) {
			e := *s.event("plain", "execution.v1.succeeded")
			s.execution("plain").Sequence++
			e.ID, e.Sequence = uuid.New(), s.execution("plain").Sequence
			s.Committed.Events = append(s.Committed.Events, e)
		}},
		{"events", "the wrong type", func(s *story) { s.event("rounds", "step.v1.skipped").Type = "leasehold.step.v1.failed" }},
		{"events", "the wrong attempt", func(s *story) { s.event("plain", "attempt.v1.failed").Subject = s.attempt("plain", "a", 2).ID }},
		{"events", "the wrong round", func(s *story) { s.event("rounds", "reopened").Round = 1 }},
		{"events", "a gap", func(s *story) { s.event("plain", "execution.v1.succeeded").Sequence++ }},
		{"events", "written and gone", func(s *story) { s.execution("plain").Sequence++ }},
		{"events", "one of nothing", func(s *story) { s.event("plain", "enqueued").Execution = uuid.New() }},
		{"events", "one that is not selected", func(s *story) { s.Committed.EventTypes = []string{"leasehold.step.v1.failed"} }},
		{"delivery", "one did not come", func(s *story) { s.dropDelivery("plain", "execution.v1.succeeded") }},
		{"delivery", "one was left out", func(s *story) { s.dropDelivery("plain", "enqueued") }},
		{"delivery", "in another order", func(s *story) {
			s.delivery("plain", "enqueued").At = s.delivery("plain", "execution.v1.succeeded").At + 1
		}},
		{"delivery", "as another one", func(s *story) { s.delivery("plain", "enqueued").Sequence = 7 }},
		{"delivery", "never committed", func(s *story) { s.delivery("plain", "execution.v1.succeeded").ID = uuid.New() }},
	}
}

func (s *story) delivery(key, kind string) *history.Delivery {
	id := s.event(key, kind).ID
	return &s.History.Deliveries[slices.IndexFunc(s.History.Deliveries, func(d history.Delivery) bool { return d.ID == id })]
}

func (s *story) dropDelivery(key, kind string) {
	id := s.event(key, kind).ID
	s.History.Deliveries = slices.DeleteFunc(s.History.Deliveries, func(d history.Delivery) bool { return d.ID == id })
}
