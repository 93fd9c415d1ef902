package history_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	"github.com/leasehold/leasehold/server/internal/history"
)

// breakage is what breaks a story, and the rule that has to tell, with a part of its text.
type breakage struct {
	rule, what, told string
	breaks           func(s *story)
}

// isRejectedWhenBroken: each rule is broken in several ways, in the calls or in the tables, of a
// run that keeps all of them.
func (s story) isRejectedWhenBroken(t *testing.T) {
	list := slices.Concat(brokenAnswers(), brokenLeases(), brokenEnds(), brokenEffects(), brokenRefusals(), brokenTables(),
		brokenRetries(), brokenParents(), brokenCancels(), brokenEvents())
	rejected := map[string]bool{}
	for _, b := range list {
		broken := s.clone()
		b.breaks(broken)
		found := history.CheckFinished(broken.History, broken.Committed)
		if !slices.ContainsFunc(found, func(v history.Violation) bool { return v.Rule == b.rule && strings.Contains(v.Text, b.told) }) {
			t.Errorf("%s: found %v, want one of rule %s that tells %q", b.what, found, b.rule, b.told)
		}
		rejected[b.rule] = true
	}
	for _, r := range history.Rules() {
		if !rejected[r.Name] {
			t.Errorf("nothing breaks rule %s", r.Name)
		}
		if r.Sentence == "" || !strings.HasSuffix(r.Sentence, ".") && !strings.HasSuffix(r.Sentence, ").") {
			t.Errorf("rule %s says %q", r.Name, r.Sentence)
		}
	}
}

// What follows finds parts of the story; one that is not there ends the test by its index.

func (s *story) execution(key string) *history.Execution {
	return &s.Committed.Executions[slices.IndexFunc(s.Committed.Executions, func(e history.Execution) bool { return e.Key == key })]
}

func (s *story) step(key, name string) *history.Step {
	id := s.execution(key).ID
	return &s.Committed.Steps[slices.IndexFunc(s.Committed.Steps, func(x history.Step) bool { return x.Execution == id && x.Name == name })]
}

func (s *story) attempt(key, name string, number int32) *history.Attempt {
	id := s.step(key, name).ID
	return &s.Committed.Attempts[slices.IndexFunc(s.Committed.Attempts, func(a history.Attempt) bool { return a.Step == id && a.Number == number })]
}

func (s *story) entry(key, milestone string) *history.Entry {
	id := s.execution(key).ID
	return &s.Committed.Entries[slices.IndexFunc(s.Committed.Entries, func(e history.Entry) bool {
		return e.Execution == id && strings.HasPrefix(e.Milestone, milestone)
	})]
}

func (s *story) dropEntry(key, milestone string) {
	e := *s.entry(key, milestone)
	s.Committed.Entries = slices.DeleteFunc(s.Committed.Entries, func(x history.Entry) bool { return x == e })
}

func (s *story) event(key, kind string) *history.Event {
	id := s.execution(key).ID
	return &s.Committed.Events[slices.IndexFunc(s.Committed.Events, func(e history.Event) bool {
		return e.Execution == id && strings.HasSuffix(e.Type, kind)
	})]
}

// unclearStep is the step of which the two reports were not answered.
func (s *story) unclearStep() string {
	for _, name := range []string{"a", "b"} {
		id := s.attempt("unclear", name, 1).ID
		if !slices.ContainsFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Report && o.Attempt == id && o.Outcome == history.OK }) {
			return name
		}
	}
	return ""
}

// op is the first op of a kind and outcome on an attempt or, without one, on an execution.
func (s *story) op(kind history.Kind, outcome history.Outcome, of uuid.UUID) *history.Op {
	return &s.History.Ops[slices.IndexFunc(s.History.Ops, func(o history.Op) bool {
		return o.Kind == kind && o.Outcome == outcome && (o.Attempt == of || o.Execution == of && o.Attempt == uuid.Nil || of == uuid.Nil)
	})]
}

// add adds an op after all others, made from another one.
func (s *story) add(like history.Op, change func(o *history.Op)) {
	last := int64(0)
	for _, o := range s.History.Ops {
		last = max(last, o.Begin, o.End)
	}
	like.Begin, like.End = last+1, last+2
	change(&like)
	s.History.Ops = append(s.History.Ops, like)
}

func brokenAnswers() []breakage {
	bug := func(code codes.Code) func(*story) {
		return func(s *story) { s.History.Ops[3].Outcome, s.History.Ops[3].Code = history.Unknown, code }
	}
	return []breakage{
		{"answers", "INTERNAL", "", bug(codes.Internal)},
		{"answers", "UNKNOWN", "", bug(codes.Unknown)},
		{"answers", "DATA_LOSS", "", bug(codes.DataLoss)},
	}
}

func brokenLeases() []breakage {
	return slices.Concat(brokenHolders(), brokenVersions(), []breakage{
		{"kept", "a report that is refused as late while the lease is good", "before the lease", func(s *story) {
			a := s.attempt("lost", "a", 1)
			grant, late := s.op(history.Grant, history.OK, a.ID), s.op(history.Report, history.Refused, a.ID)
			late.Reason, grant.Lasts = "LEASE_EXPIRED", late.End-grant.Begin+1
		}},
		{"kept", "a report that is refused as late while the lease is good, for another has it already", "before the lease", func(s *story) {
			a := s.attempt("lost", "a", 1)
			grant, late := s.op(history.Grant, history.OK, a.ID), s.op(history.Report, history.Refused, a.ID)
			late.Reason, grant.Lasts = "LEASE_SUPERSEDED", late.End-grant.Begin+1
		}},
		{"kept", "the next one was given while the lease was good, whose holder never asked again", "before the lease", func(s *story) {
			a := s.attempt("lost", "a", 1)
			grant, next := s.op(history.Grant, history.OK, a.ID), s.op(history.Grant, history.OK, s.attempt("lost", "a", 2).ID)
			grant.Lasts = next.End - grant.Begin + 1
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Report && o.Attempt == a.ID })
		}},
		{"linearizable", "a renewal after the end was answered", "", func(s *story) {
			a := s.attempt("lost", "a", 2)
			s.add(*s.op(history.Renew, history.OK, uuid.Nil), func(o *history.Op) { o.Attempt, o.Version = a.ID, a.Version })
		}},
		{"linearizable", "refused as expired, and renewed after that", "", func(s *story) {
			a := s.attempt("plain", "a", 3)
			renewed := s.op(history.Renew, history.OK, a.ID)
			s.add(*s.op(history.Report, history.Refused, uuid.Nil), func(o *history.Op) {
				o.Attempt, o.Version, o.Reason = a.ID, a.Version, "LEASE_EXPIRED"
				o.Begin, o.End = renewed.Begin-2, renewed.Begin-1
			})
		}},
		{"linearizable", "a lease that was given after its end was answered", "", func(s *story) {
			g := s.op(history.Grant, history.OK, s.attempt("lost", "a", 2).ID)
			end := s.op(history.Report, history.OK, g.Attempt).End
			g.Begin, g.End = end+1, end+2
		}},
		{"linearizable", "the next one was given before the report of this one was made", "", func(s *story) {
			report, next := s.op(history.Report, history.OK, s.attempt("plain", "a", 1).ID), s.op(history.Grant, history.OK, s.attempt("plain", "a", 2).ID)
			report.Begin, report.End = next.End+1, next.End+2
		}},
	})
}

func brokenHolders() []breakage {
	return []breakage{
		{"one-lease", "instants overlap", "began at entry", func(s *story) { s.attempt("plain", "a", 1).EndedAt = s.attempt("plain", "a", 2).LeasedAt + 1 }},
		{"one-lease", "numbers in the timeline overlap", "began at entry", func(s *story) { s.attempt("plain", "a", 1).EndEntry = s.attempt("plain", "a", 2).LeaseEntry + 1 }},
		{"one-lease", "an attempt is live beside a later one", "began while attempt", func(s *story) {
			a := s.attempt("plain", "a", 1)
			a.State, a.EndedAt, a.EndEntry = "LEASED", 0, 0
		}},
		{"one-lease", "a lease of an attempt that has ended", "is of no such live attempt", func(s *story) { s.addLease(s.attempt("plain", "a", 1)) }},
		{"one-lease", "two leases of a step", "has 2 leases", func(s *story) {
			s.addLease(s.attempt("plain", "a", 1))
			s.addLease(s.attempt("plain", "a", 2))
		}},
		{"one-lease", "a live attempt without a lease", "is live without a lease", func(s *story) { s.attempt("lost", "a", 2).State = "LEASED" }},
		{"one-lease", "the same lease for two sessions", "was given twice", func(s *story) {
			s.add(*s.op(history.Grant, history.OK, s.attempt("plain", "a", 1).ID), func(o *history.Op) { o.Session = uuid.New() })
		}},
		{"one-lease", "the same lease for two polls", "was given twice", func(s *story) {
			s.add(*s.op(history.Grant, history.OK, s.attempt("plain", "a", 1).ID), func(o *history.Op) { o.Key = "another" })
		}},
		{"one-lease", "renewed after the next one was given", "was answered OK after", func(s *story) {
			s.add(*s.op(history.Renew, history.OK, s.attempt("plain", "a", 1).ID), func(*history.Op) {})
		}},
		{"one-lease", "renewed by another session", "renewed a lease of session", func(s *story) { s.op(history.Renew, history.OK, uuid.Nil).Session = uuid.New() }},
		{"one-lease", "given, and taken back as undelivered", "taken back", func(s *story) { s.attempt("plain", "a", 2).Reason = "undelivered" }},
		{"one-lease", "work without a lease", "no lease that was given", func(s *story) { s.op(history.Work, history.OK, uuid.Nil).Version++ }},
		{"one-lease", "work before the lease", "no lease that was given", func(s *story) { s.op(history.Work, history.OK, uuid.Nil).Begin = 1 }},
	}
}

func (s *story) addLease(a *history.Attempt) {
	s.Committed.Leases = append(s.Committed.Leases, history.Lease{Attempt: a.ID, Step: a.Step, Version: a.Version, Session: a.Session})
}

func brokenVersions() []breakage {
	return []breakage{
		{"versions", "it goes back within a step", "has version", func(s *story) { s.attempt("plain", "a", 2).Version = 1 }},
		{"versions", "one version of two attempts", "and of attempt", func(s *story) { s.attempt("plain", "a", 1).Version = s.attempt("lost", "a", 1).Version }},
		{"versions", "a later grant of another step has a smaller one", "was answered", func(s *story) {
			s.op(history.Grant, history.OK, s.attempt("revoked", "a", 1).ID).Version = 1
		}},
		{"versions", "a grant of which an earlier call is not known", "was answered", func(s *story) { // with it, that call is why it may be small
			s.History.Ops = slices.DeleteFunc(s.History.Ops, func(o history.Op) bool { return o.Kind == history.Poll })
			g := s.op(history.Grant, history.OK, s.attempt("unclear", "a", 1).ID)
			s.add(*s.op(history.Grant, history.OK, s.attempt("revoked", "a", 1).ID), func(o *history.Op) {
				o.Attempt, o.Version, o.Key, o.Begin, o.End = uuid.New(), g.Version+1_000_000, "between", g.Begin-2, g.Begin-1
			})
		}},
	}
}

func brokenEnds() []breakage {
	return []breakage{
		{"final", "an entry after the end", "follows the end", func(s *story) {
			e := s.execution("plain")
			e.EndEntry--
			s.attempt("plain", "b", 1).EndEntry++
		}},
		{"final", "an entry between two rounds", "r1/step/b/SKIPPED, follows", func(s *story) {
			ended, reopened := s.entry("rounds", "r1/execution/ended"), s.entry("rounds", "r2/execution/reopened")
			ended.Sequence, s.entry("rounds", "r1/step/b/SKIPPED").Sequence = ended.Sequence-1, reopened.Sequence-1
		}},
		{"final", "an open step", "its step", func(s *story) { s.step("plain", "b").State = "READY" }},
		{"final", "a live attempt", "its attempt", func(s *story) { s.attempt("plain", "b", 1).State = "LEASED" }},
		{"final", "another state was seen later", "then RUNNING", func(s *story) {
			s.add(*s.op(history.Get, history.OK, s.execution("plain").ID), func(o *history.Op) { o.State = "RUNNING" })
		}},
		{"final", "an earlier round was seen later", "in round 1 by", func(s *story) {
			s.add(*s.op(history.Get, history.OK, s.execution("rounds").ID), func(o *history.Op) { o.Round = 1 })
			s.add(*s.op(history.Get, history.OK, s.execution("rounds").ID), func(o *history.Op) { o.Round, o.State = 1, "QUEUED" })
		}},
		{"final", "another end was seen", "the tables say", func(s *story) { s.op(history.Get, history.OK, s.execution("rounds").ID).State = "CANCELED" }},
		{"final", "another end was told to a worker", "told that", func(s *story) {
			s.op(history.Report, history.OK, s.attempt("plain", "b", 1).ID).State = "FAILED"
		}},
		{"final", "another end of the step was told to a worker", "told that", func(s *story) {
			s.op(history.Report, history.OK, s.attempt("plain", "b", 1).ID).StepState = "FAILED"
		}},
		{"ends", "an execution goes on", "is RUNNING", func(s *story) { s.execution("plain").State = "RUNNING" }},
		{"ends", "a lease is left", "the lease of", func(s *story) { s.addLease(s.attempt("plain", "a", 1)) }},
		{"ends", "an event waits", "is DEAD", func(s *story) { s.event("plain", "enqueued").Status = "DEAD" }},
	}
}
